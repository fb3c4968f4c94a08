"""`turnstream demo`: the whole path once, from an agent to what a training loop is handed.

    agent ──► gateway ──► log ──► processor ──► log ──► subscribe()
                 └► a script, in the place of a model

Everything is what a deployment runs, in one process over one file: only the model is not there.
No setting is read.

Invariant: nothing is left behind, unless a folder was named to keep it in; every wait is bounded.
"""

import asyncio
import contextlib
import dataclasses
import shlex
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import click
import httpx
from tokenizers import Tokenizer

from schemas import codec
from schemas.events import Turn
from schemas.samples import Sample, SessionClosed
from streams.adapters.client import Turnstream
from streams.adapters.engines.scripted import ScriptedEngine
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.server import Gateway
from streams.cli.demo.game import SCRIPT, play, write_tokenizer
from streams.cli.inspect.session_on_log import find_session
from streams.cli.serving import fail, open_secrets
from streams.cli.up.command import alone
from streams.core.drawing import draw_ledger, draw_session, draw_tree, visible
from streams.core.provenance import tell_token
from streams.core.tree import Tree
from streams.errors import TurnstreamError
from streams.log.default_log import UP_FILE
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.processor.rules import rules_from
from streams.settings import Settings
from streams.trainer import Batch, subscribe_async

SECONDS_MAX = 60.0
GAMES = 2
TOKENIZER = "demo-tokenizer"
"""A folder of its own: the one that was named may be a model's, with files of the same names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """What runs."""

    settings: Settings
    log: SqliteLog
    gateway: Gateway
    tokenizer: Tokenizer
    run_id: str

    def spell(self, token: int) -> str:
        """A token as text."""
        return visible(self.tokenizer.decode([token], skip_special_tokens=False))


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep everything here, to look at it with other commands; else it is removed.",
)
def demo(data: Path | None) -> None:
    """Show the whole path on this machine, explained as it goes: seconds, no model, no broker.

    An agent plays a game with a model whose place a script takes; what was sampled goes through
    gateway, log and processor and comes out of subscribe(), as a training loop gets it.
    """
    try:
        with contextlib.ExitStack() as stack:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(alone(folder))
            asyncio.run(_shown(folder, kept=data is not None))
    except TurnstreamError as error:
        fail(error)


async def _shown(folder: Path, *, kept: bool) -> None:
    async with asyncio.timeout(SECONDS_MAX), _staged(folder) as stage:
        _heading(
            "1  A gateway and a processor",
            "Both run in this process over one file. There is no model: a script answers, with "
            "token ids and logprobs as an engine gives them.",
        )
        _shown_lines(f"gateway    {stage.gateway.base_url}", f"log        {stage.settings.log}")
        sessions = await _games(stage)
        await _turns(stage, sessions[0])
        async with subscribe_async(
            stage.settings, run_id=stage.run_id, batch_groups=1, advantages="grpo"
        ) as batches:
            batch = await anext(batches)  # whole groups: so the processor is through with both
            await _trees(stage, sessions)
            _batch(batch)
            await batches.commit(1, 1)
        _shown_lines(
            "", "batches.commit(1, 1)    the step is in the log: turnstream inspect --step"
        )
    log, session = shlex.quote(str(folder / UP_FILE)), sessions[1]
    tokenizer = shlex.quote(str(folder / TOKENIZER))
    look = f"turnstream inspect {session} --log {log} --tokenizer {tokenizer}"
    keep = "turnstream demo --data DIR    keeps all of this, to look at it with other commands"
    _heading(
        "6  Go on",
        "`turnstream up --tokenizer FOLDER --engine sglang:URL` is the same with a model, "
        "`examples/trainer/train.py` a training loop.",
    )
    _shown_lines(look if kept else keep)


@contextlib.asynccontextmanager
async def _staged(folder: Path) -> AsyncIterator[Stage]:
    settings = Settings(log=str(folder / UP_FILE), gateway_port=0)
    tokenizer = write_tokenizer(folder / TOKENIZER)
    renderer = Renderer(folder / TOKENIZER)
    engine = ScriptedEngine(SCRIPT, renderer.backend, journal_keep=1)
    stop = asyncio.Event()
    async with SqliteLog(Path(settings.log), settings) as log:
        working = asyncio.create_task(EmbeddedProcessor(settings, log).run(stop))
        try:
            async with Gateway(settings, log, engine, renderer, open_secrets(settings)) as gateway:
                run_id = f"demo-{uuid.uuid4().hex[:8]}"
                yield Stage(settings, log, gateway, tokenizer, run_id)
        finally:
            stop.set()
            await engine.close()
            await working


async def _games(stage: Stage) -> list[str]:
    """Play, and give every game its reward."""
    _heading(
        "2  An agent plays twice",
        "Two sessions of one group. It has a base URL and a key and knows nothing of Turnstream. "
        "Each game ends with a reward, and with a side call that asks for a title.",
    )
    control = Turnstream(stage.gateway.base_url, stage.gateway.keys.control_key)
    played: list[str] = []
    async with httpx.AsyncClient(trust_env=False, timeout=SECONDS_MAX) as http:
        for game in range(GAMES):
            async with control.session(
                run_id=stage.run_id,
                group_id=f"{stage.run_id}-game",
                group_size=GAMES,
                rollout_index=game,
            ) as session:
                _shown_lines(f"session {session.session_id}")
                reward = await play(http, session, forgets=game > 0, say=_indented)
                await session.reward(reward)
                _indented(f"reward {reward:g}")
            played.append(session.session_id)
    return played


async def _turns(stage: Stage, session_id: str) -> None:
    """What was recorded of a game, call by call."""
    _heading(
        "3  What the log holds",
        "A turn is what was sampled, written before the agent saw its end. A prompt is written as "
        "what is new in it: the rest is the recorded turn before, token by token, not its text.",
    )
    for turn in await _recorded(stage, session_id):
        sampled = turn.output_ids.tolist()
        spelled = "|".join(stage.spell(token) for token in sampled)
        again = stage.tokenizer.encode(stage.tokenizer.decode(sampled)).ids
        ends = sum(token not in stage.tokenizer.get_added_tokens_decoder() for token in sampled)
        kept = f"{turn.kept_ids or 0} kept + {len(turn.prompt_ids)} new ids"
        _shown_lines(f"turn   prompt {kept:<21} sampled {spelled}")
        if len(again) != ends:
            _shown_lines(f"       ({ends} tokens of text; a tokenizer would make it {len(again)})")


async def _recorded(stage: Stage, session_id: str) -> list[Turn]:
    topic = stage.settings.turns_topic
    ends = await stage.log.end_positions(topic)
    reader = await stage.log.read(topic, dict.fromkeys(ends, 0))
    found: list[Turn] = []
    try:
        while any(reader.positions[partition] < end for partition, end in ends.items()):
            events = [codec.from_msgpack(e.value or b"") for e in await reader.next_batch(1.0)]
            found += [e for e in events if isinstance(e, Turn) and e.session_id == session_id]
    finally:
        await reader.close()
    return found


async def _trees(stage: Stage, sessions: list[str]) -> None:
    """What the processor made of the games."""
    _heading(
        "4  What the processor made of it",
        "Each session is a tree of messages. What was sampled stands in [brackets] and trains, "
        "once; the ledger says why the rest does not. In the second game the agent dropped a guess "
        "from its history: a second branch and a second sample, and nothing is lost.",
    )
    won, lost = [await _story(stage, session_id) for session_id in sessions]
    _shown_lines(draw_session(won.tree, won.outcome, won.samples, stage.spell), "")
    _shown_lines(f"session {sessions[1]}", draw_tree(lost.tree, lost.outcome.ledger))
    _shown_lines(draw_ledger(lost.outcome), "")
    last, count = lost.samples[-1], len(lost.samples)
    _shown_lines(
        f"one token, as `turnstream inspect SESSION --sample {count} --token {last.prompt_len}`"
        " tells of it:",
        tell_token(lost.tree, lost.outcome, lost.samples, last, last.prompt_len),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    """A session that is over, from its events."""

    tree: Tree
    outcome: SessionClosed
    samples: Sequence[Sample]


async def _story(stage: Stage, session_id: str) -> Closed:
    rules = rules_from(stage.settings)
    story = await find_session(stage.log, stage.settings, rules, session_id)
    assert story is not None, "it was handed to the trainer"
    assert story.tree is not None, "its events are in the log"
    assert story.outcome is not None, "it has ended"
    return Closed(story.tree, story.outcome, story.samples)


def _batch(batch: Batch) -> None:
    """What a training loop is handed."""
    _heading(
        "5  What the trainer reads: for batch in subscribe(log, advantages='grpo')",
        "Whole groups. An advantage is one a rollout, over the rewards of rollouts; siblings share "
        "it and weigh 1 together, so that a game which forked counts once.",
    )
    _shown_lines("sample    tokens  trained  reward  advantage  weight")
    for row in batch.rows:
        sample = row.sample
        name = f"{row.rollout.outcome.rollout_index}/{sample.index}"
        _shown_lines(
            f"{name:<9} {len(sample.tokens):>6}  {sample.trained:>7}  {row.rollout.reward:>6g}  "
            f"{row.advantage:>+9.2f}  {row.weight:>6.2f}"
        )


def _heading(title: str, text: str) -> None:
    click.echo()
    click.secho(title, bold=True)
    click.echo(click.wrap_text(text, 100, "   ", "   "))
    click.echo()


def _indented(line: str) -> None:
    _shown_lines(f"  {line}")


def _shown_lines(*texts: str) -> None:
    for text in texts:
        for line in text.split("\n"):
            click.echo(f"   {line}".rstrip())
