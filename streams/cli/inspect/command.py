"""`turnstream inspect`: a session drawn as text, and the story of one token."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import click
import msgspec
from tokenizers import Tokenizer

from schemas.record import SessionId
from schemas.samples import Sample, SessionClosed
from streams.cli.inspect.session_on_log import find_session
from streams.cli.inspect.session_text import as_if, draw_revisions, draw_story, duration, names_of
from streams.cli.inspect.step import StepLook, inspect_step, print_drawing
from streams.cli.offline import run_file
from streams.cli.on_the_log import log_option, run_on_the_log
from streams.cli.policy_options import chosen_rules, policy_options
from streams.cli.progress import counted
from streams.core.drawing import Spell, draw_session, visible
from streams.core.limits import DEFAULT_LIMITS
from streams.core.policy import PROFILES
from streams.core.provenance import tell_token
from streams.core.state import Rules
from streams.core.tree import Tree
from streams.errors import LogError
from streams.log.opening import log_name, open_log
from streams.settings import Settings

_SQLITE = b"SQLite format 3\0"


@click.command()
@click.argument("target", required=False)
@log_option
@click.option("--session", "session_id", metavar="ID", help="Only this session of a file.")
@click.option(
    "--search",
    is_flag=True,
    help="On a log: if the processor's table does not know the session, look through its "
    "partition of the turns, and through the samples. Reads much.",
)
@policy_options
@click.option("--token", type=click.IntRange(min=0), metavar="N", help="Tell the story of token N.")
@click.option(
    "--sample",
    "index",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="The sample that --token counts in, from 1.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="A tokenizer.json, or a folder with one: show tokens as text instead of ids.",
)
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="S",
    help="Instead of a session: a training step, as its trainer told of it, and its samples.",
)
@click.option("--run", "run_id", metavar="RUN", help="The run of --step, where there are several.")
@click.option(
    "--top",
    metavar="NAME",
    help="With --step: the samples where this statistic of the trainer is largest.",
)
def inspect(
    target: str | None,
    log: str | None,
    session_id: str | None,
    search: bool,
    profile: str | None,
    fork_threshold: int | None,
    default_reward: float | None,
    token: int | None,
    index: int,
    tokenizer: Path | None,
    step: int | None,
    run_id: str | None,
    top: str | None,
) -> None:
    """Draw sessions: turns, tree, samples, ledger.

    TARGET is a file of events, one a line as JSON (- for standard input), or the id of a session
    on the log; with --log it is always a session. An open session is drawn as the processor
    knows it, with the samples it would give if it ended now; a closed one from its events, with
    the rewards that came later.

    Trained tokens stand in [brackets]; blanks in messages are visible (space ·, newline ⏎,
    tab ⇥). --token N says which turn gave a token, under which weights, and what masked it.
    With the folder of a tokenizer and its chat template, prompts that were kept as text are
    printed once more from their messages: one that differs is said, and the exit code is 1.

    With --step there is no TARGET: the samples that went into that step of the optimizer, with the
    trainer's statistics; --token and --sample then count in that table.
    """
    if step is not None or target is None:
        if step is None or target is not None:
            raise click.UsageError("give a file or a session, or --step S")
        spelled = _spelling(tokenizer) if tokenizer is not None else None
        look_at = StepLook(step, run_id, top, token, index, spelled)
        run_on_the_log(lambda settings: inspect_step(settings, look_at), log)
        return
    if run_id is not None or top is not None:
        raise click.UsageError("--run and --top go with --step")
    rules = chosen_rules(profile, fork_threshold, default_reward)
    spell = _spelling(tokenizer) if tokenizer is not None else None
    folder = tokenizer if tokenizer is not None and tokenizer.is_dir() else None
    look = Look(rules, spell, token, index, in_log_only=log is not None, template_folder=folder)
    if log is None and (target == "-" or _is_file(target)):
        file = click.File("rb").convert(target, None, click.get_current_context())
        sys.exit(_inspect_file(cast(BinaryIO, file), look, session_id))
    _check_session(target, log, session_id)
    run_on_the_log(lambda settings: _inspect_log(settings, target, look, search=search), log)


@dataclass(frozen=True, slots=True)
class Look:
    """What the command line asks to see."""

    rules: Rules
    spell: Spell | None
    token: int | None
    index: int
    in_log_only: bool
    """The log was named, so no file was looked for."""
    template_folder: Path | None = None


def _inspect_file(file: BinaryIO, look: Look, session_id: str | None) -> int:
    drawn = refused = otherwise = 0
    told = False
    names: dict[str, str] = {}
    for session, effects, letters in run_file(file, look.rules, session_id=session_id):
        refused += len(letters)
        for letter in letters:
            place = f"line {letter.line}" if letter.line else f"session {letter.session_id}"
            click.echo(visible(f"{place}: {letter.code}: {letter.detail}", most=None), err=True)
        if effects.revisions and look.token is None:
            name = effects.revisions[0].session_id
            changed = draw_revisions(effects.revisions, names)
            print_drawing(f"session {name}, late reward\n{changed}\n")
        if effects.outcome is None:
            continue
        drawn += 1
        names |= names_of(effects.samples)
        # A session that its first event closed never had a turn.
        tree = session.tree if session is not None else Tree(PROFILES["seed"], DEFAULT_LIMITS)
        if look.token is None:
            print_drawing(draw_session(tree, effects.outcome, effects.samples, look.spell) + "\n")
            otherwise += not _prompts_are_the_same(tree, look)
        else:
            told = told or _tell(tree, effects.outcome, effects.samples, look)
    if not drawn:
        wanted = f"session {session_id}" if session_id else "any session"
        raise click.UsageError(f"{file.name} does not hold {wanted}")
    return 1 if refused or otherwise or (look.token is not None and not told) else 0


async def _inspect_log(settings: Settings, session_id: str, look: Look, *, search: bool) -> int:
    try:
        async with open_log(settings) as log:
            story = await find_session(log, settings, look.rules, session_id, search=search)
            lag = (await log.lag(settings.processor_id, settings.turns_topic)) if not story else {}
    except LogError as error:
        no_file = "" if look.in_log_only else " (no file has that name)"
        raise type(error)(f"session {session_id}{no_file}: {error}") from error
    if story is None:
        no_file = "" if look.in_log_only else ", and there is no such file"
        where = _where(settings, sum(lag.values()), search=search)
        click.echo(f"turnstream: session {session_id} is not known{no_file}: {where}", err=True)
        return 1
    if look.token is None:
        rules = look.rules
        chosen = rules.forced_policy is not None or rules.fork_threshold_tokens is not None
        print_drawing(draw_story(story, settings, look.spell, chosen=chosen) + "\n")
        same = story.tree is None or _prompts_are_the_same(story.tree, look)
        return 0 if story.outcome is not None and same else 1
    if story.tree is None or story.outcome is None:
        click.echo(
            f"turnstream: session {session_id}: its events are no longer in the log, "
            "so a token's story cannot be told; without --token what was sent is shown",
            err=True,
        )
        return 1
    if story.still_open is not None:
        print_drawing(f"session {session_id} is open; {as_if(story)}:")
    return 0 if _tell(story.tree, story.outcome, story.samples, look) else 1


def _where(settings: Settings, lag: int, *, search: bool) -> str:
    """Where was looked, and what may be the reason."""
    text = f"looked in the processor's table on {log_name(settings)}"
    if search:
        text += f", {settings.turns_topic} and {settings.samples_topic}"
    if lag:
        text += f"; the processor has {lag} events still to read"
    if not search:
        kept = duration(settings.marker_retention_s)
        text += f"; a session that closed more than {kept} ago is forgotten there: try --search"
    return text


def _tell(tree: Tree, outcome: SessionClosed, samples: Sequence[Sample], look: Look) -> bool:
    """Print the story of a token; whether there is such a token."""
    assert look.token is not None, "asked for with --token"
    if look.index > len(samples):
        gave = counted(len(samples), "sample")
        click.echo(f"turnstream: session {outcome.session_id} gave {gave}", err=True)
        return False
    sample = samples[look.index - 1]
    if look.token >= sample.tokens.size:
        has = f"sample {look.index} has {counted(sample.tokens.size, 'token')}, from 0"
        click.echo(f"turnstream: session {outcome.session_id}: {has}", err=True)
        return False
    print_drawing(tell_token(tree, outcome, samples, sample, look.token))
    return True


def _prompts_are_the_same(tree: Tree, look: Look) -> bool:
    """Print whether kept prompts are what the tokenizer's template prints; whether they are."""
    if look.template_folder is None:
        return True
    # By name: drawing alone must not wait for templates to load.
    check = importlib.import_module("streams.cli.inspect.raw_prompts").check_raw_prompts
    lines, same = check(tree, look.template_folder)
    if lines:
        print_drawing("\n".join(["prompts kept as text", *(f"  {line}" for line in lines), ""]))
    return bool(same)


def _is_file(target: str) -> bool:
    path = Path(target)
    if not path.exists() or path.is_dir():
        return False
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                raise click.UsageError(
                    f"{target} is an embedded log; name one of its sessions: "
                    f"turnstream inspect SESSION --log {target}"
                )
    return True


def _check_session(target: str, log: str | None, session_id: str | None) -> None:
    """Refuse what cannot be a session before any log is asked."""
    if session_id is not None:
        where = "--log is given" if log is not None else f"there is no file {target}"
        raise click.UsageError(f"--session {session_id} is for a file of events, and {where}")
    try:
        msgspec.convert(target, SessionId)
    except msgspec.ValidationError:
        detail = f"there is no file {target}, and no session can have that id"
        raise click.UsageError(visible(detail, most=None)) from None


def _spelling(path: Path) -> Spell:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise click.UsageError(f"--tokenizer {path}: {error}") from None
    return lambda token: (
        visible(tokenizer.decode([token], skip_special_tokens=False)) or f"<{token}>"
    )
