"""Agents rewarded for letters, the example trainer, and weights that go back to the engine.

agents ──HTTP──► gateway ──► local engine ◄── new weights, a step after the other ─┐
                    └──► log ──► processor ──► log ──► examples/trainer/train.py ──┘

An agent asks for an answer of some tokens and its score is the share of them that are letters.
Rollouts of one step begin when the weights of the step before the last are there: while the
trainer computes, the next ones are sampled, and new weights come in the middle of answers.

With `shuffled`, scores are dealt out anew among all rollouts of a step before any of them becomes
a reward. Everything else is the same.
"""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from examples.trainer.train import Options, train
from streams.adapters.client import AsyncSession, Turnstream
from streams.adapters.engines.local import LocalEngine
from streams.adapters.gateway.rendering.renderer import Renderer
from tests.train.models import CONTROL, small_model
from tests.train.stage import SECONDS_MAX, Stage, play

RUN = "learning"
TOKENS = 6
RUN_SECONDS_MAX = 900.0
"""A run takes half a minute of one processor; where others work, it waits."""
PROMPTS = ("Letters, please.", "A word?", "Write.", "Spell something.")
GROUPS, GROUP_SIZE = len(PROMPTS), 8


@dataclass
class Run:
    """One training run, from random weights."""

    folder: Path
    steps: int
    shuffled: bool
    seed: int = 1
    scores: list[list[float]] = field(default_factory=list)
    """By step: what every rollout was worth, whatever it was told."""

    def __post_init__(self) -> None:
        self.model = small_model(self.folder / "model", self.seed)
        self.renderer = Renderer(self.model)
        self.engine = LocalEngine(self.model, self.renderer.backend, seed=self.seed)
        self._deal = random.Random(self.seed)
        self._version = 0
        self._newer = asyncio.Condition()

    @property
    def checkpoints(self) -> Path:
        """Where the trainer leaves them."""
        return self.folder / "checkpoints"

    def play(self) -> None:
        """All of it; the model ends with it."""
        play(self.folder, self, self._story, RUN_SECONDS_MAX)

    async def _story(self, stage: Stage) -> None:
        loop = asyncio.get_running_loop()

        def load(folder: Path, version: int) -> None:
            """Called in the trainer's thread."""
            asyncio.run_coroutine_threadsafe(self._load(folder, version), loop).result(SECONDS_MAX)

        url, key = stage.gateway.base_url, stage.gateway.keys.control_key
        options = Options(
            model=self.model,
            checkpoints=self.checkpoints,
            log=stage.settings.log,
            run=RUN,
            steps=self.steps,
            groups=GROUPS,
            learning_rate=6e-3,
            max_staleness=1,
            gateway=url,
            control_key=key,
        )
        control = Turnstream(url, key)
        await control.resume_async(0, RUN)  # declared; from here on there is a log to read
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_in_thread(lambda: train(options, load)))
                both.create_task(self._rollouts(control))
        finally:
            await self.engine.close()

    async def _load(self, folder: Path, version: int) -> None:
        await self.engine.replace_weights(folder, version)
        async with self._newer:
            self._version = version
            self._newer.notify_all()

    async def _rollouts(self, control: Turnstream) -> None:
        for step in range(self.steps):
            async with self._newer:
                while self._version < step - 1:
                    await self._newer.wait()
            deal = self._deal.shuffle if self.shuffled else None
            self.scores.append(await rolled_out(control, f"step-{step}", deal))


async def _in_thread(work: Callable[[], None]) -> None:
    """In one that nobody waits for when the rest fails: without rollouts it would never end."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    await asyncio.wrap_future(done)


async def rolled_out(
    control: Turnstream, name: str, deal: Callable[[list[float]], None] | None = None
) -> list[float]:
    """Some groups, all at once; what each rollout was worth. `deal` may change the rewards."""
    sessions = await asyncio.gather(
        *(
            control.session(
                run_id=RUN, group_id=f"{name}-{group}", group_size=GROUP_SIZE, rollout_index=slot
            ).__aenter__()
            for group in range(GROUPS)
            for slot in range(GROUP_SIZE)
        )
    )
    prompts = [prompt for prompt in PROMPTS for _ in range(GROUP_SIZE)]
    async with httpx.AsyncClient(trust_env=False, timeout=SECONDS_MAX) as http:
        asked = zip(sessions, prompts, strict=True)
        scores = await asyncio.gather(*(_scored(http, *one) for one in asked))
    rewards = list(scores)
    if deal is not None:
        deal(rewards)
    pairs = zip(sessions, rewards, strict=True)
    await asyncio.gather(*(session.end(reward=reward) for session, reward in pairs))
    return scores


async def _scored(http: httpx.AsyncClient, session: AsyncSession, prompt: str) -> float:
    """One call, and the share of letters in what came."""
    answer = await http.post(
        f"{session.base_url}/chat/completions",
        headers={"authorization": f"Bearer {session.key}"},
        json={
            "model": "m",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": TOKENS,
        },
    )
    answer.raise_for_status()
    text: str = answer.json()["choices"][0]["message"]["content"] or ""
    for name in CONTROL:
        # A control token comes as its name, and writing those is what would be learned.
        text = text.replace(name, "")
    return sum(letter.isascii() and letter.isalpha() for letter in text) / TOKENS
