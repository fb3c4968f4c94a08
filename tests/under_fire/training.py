"""A trainer as a process: steps, commits, checkpoints, and new weights in the middle of turns.

    batch ──► journal ──► commit ──► every second step: checkpoint ──► pause, load, resume
                 └ may die here ┘        └ or here ┘        └ or here ┘

It is one life of a trainer. The next one goes on from the checkpoint, and first makes whole what
this one may have left half done: a run that is paused, an engine without its weights.

    UNDER_FIRE_SPEC        a JSON file: settings, options, files, addresses
    UNDER_FIRE_UNTIL_END   set: it ends with what the log holds now
    CHAOS_FOLDER           of this life; a file `die` there names where it kills itself

Invariant: weights are given to the engine only when a checkpoint holds them.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import httpx
import msgspec

from schemas import codec
from schemas.record import NOT_GIVEN
from schemas.samples import Sample
from streams.adapters.client import Turnstream
from streams.errors import LogAway
from streams.settings import Settings
from streams.trainer import Batch, Subscription, subscribe
from tests.chaos.leash import die_with_parent
from tests.trainer.trainer_child import rows, save

SAVE_EVERY = 2
LOG_AWAY = 75
"""Exit code: the log is away, start me again."""
BEFORE_COMMIT = "between step and commit"
BEFORE_SAVE = "between commit and checkpoint"
PAUSED = "while the run is paused"
IGNORES_CHECKPOINT = "trainer-ignores-its-positions"
"""Built wrong: its weights come back, where it was reading does not."""
CONTROL_SECONDS_MAX = 180.0
FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))


class Trainer:
    """One life."""

    def __init__(self, spec: dict[str, Any], journal: TextIO, batches: Subscription) -> None:
        self._spec = spec
        self._journal = journal
        self._batches = batches
        self._checkpoint = Path(spec["checkpoint"])
        self._gateway = Turnstream(
            spec["gateway_url"], spec["control_key"], patience_s=CONTROL_SECONDS_MAX
        )
        self._engine = httpx.Client(
            base_url=spec["engine_url"], verify=False, trust_env=False, timeout=30.0
        )
        self._step = 0

    def live(self) -> None:
        if self._checkpoint.exists():
            saved = json.loads(self._checkpoint.read_text("utf-8"))
            self._step = saved["step"]
            if self._spec.get("variant") != IGNORES_CHECKPOINT:
                self._batches.load_state_dict(saved["turnstream"])
        self._tell(life=self._batches.run_epoch, after=self._step)
        self._update()
        for batch in self._batches:
            self._train(batch)
        self._tell(dropped=dict(self._batches.status.dropped))

    def _train(self, batch: Batch) -> None:
        self._step += 1
        samples = [sample for sample, _ in rows(batch)]
        ids, digests = [one.sample_id for one in samples], [digest_of(one) for one in samples]
        self._tell(step=self._step, ids=ids, digests=digests, worth=worth_of(batch))
        time.sleep(self._spec["step_s"])
        perish(BEFORE_COMMIT)
        self._commit()
        if self._step % SAVE_EVERY == 0:
            perish(BEFORE_SAVE)
            save(self._checkpoint, self._step, self._step, self._batches.state_dict())
            self._update()

    def _commit(self) -> None:
        while True:
            try:
                self._batches.commit(self._step, self._step)
            except LogAway:
                time.sleep(0.5)
            else:
                return

    def _update(self) -> None:
        """The version is the step."""
        version, run_id = self._step, self._spec["options"]["run_id"]
        self._gateway.pause(run_id)
        perish(PAUSED)
        self._engine.post("/pause", json={"abort": True}).raise_for_status()
        self._engine.post("/weights", json={"version": version, "abort": False}).raise_for_status()
        self._gateway.resume(
            version, run_id, run_epoch=self._batches.run_epoch, cache_flushed=version % 4 == 0
        )
        self._engine.post("/resume").raise_for_status()
        self._tell(updated=version)

    def _tell(self, **line: Any) -> None:
        print(json.dumps(line), file=self._journal, flush=True)


def worth_of(batch: Batch) -> list[list[Any]]:
    """Of every rollout its group, its session, its reward and its advantage."""
    return [
        [group.group_id, one.session_id, one.reward, one.advantage]
        for group in batch.groups
        for one in group.rollouts
    ]


def digest_of(sample: Sample) -> str:
    """Of all that a trainer is given but the reward, which may change until it is handed out."""
    rewardless = msgspec.structs.replace(
        sample,
        reward=None,
        session_reward=None,
        reward_payload=NOT_GIVEN,
        turn_rewards=None,
        revision=0,
    )
    return hashlib.blake2b(codec.to_msgpack(rewardless), digest_size=16).hexdigest()


def perish(where: str) -> None:
    """Die here, if that was asked for; no handler runs."""
    told = FOLDER / "die"
    if told.exists() and told.read_text("utf-8") == where:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    die_with_parent()
    spec = json.loads(Path(os.environ["UNDER_FIRE_SPEC"]).read_text("utf-8"))
    until_end = bool(os.environ.get("UNDER_FIRE_UNTIL_END"))
    options = spec["options"] | {"until_end": until_end}
    try:
        with (
            Path(spec["journal"]).open("a", encoding="utf-8") as journal,
            subscribe(Settings(**spec["settings"]), **options) as batches,
        ):
            Trainer(spec, journal, batches).live()
    except LogAway as error:
        print(f"the log is away: {error}", file=sys.stderr)
        sys.exit(LOG_AWAY)


if __name__ == "__main__":
    main()
