"""A live Faust worker that stands still: what the watchdog and SIGUSR1 say of it."""

import asyncio
import dataclasses
import signal
import sys
import time
from pathlib import Path

from streams.settings import Settings
from tests.cli.up_process import until
from tests.harness import linearized
from tests.kafka.test_processor import as_json, events, publish, records, worker

STALL_S = 1.0
PATIENCE_S = 180.0


def standing(texts: list[str]) -> list[str]:
    """Those that tell where it stands still, from the agent down."""
    chain = (" Processor._consume\n", " Blocked._arrive\n", " Blocked.stand_still\n")
    return [text for text in texts if all(place in text for place in chain)]


def test_a_worker_that_stands_still_says_where_and_goes_on(
    settings: Settings, tmp_path: Path
) -> None:
    block, folder, said = tmp_path / "block", tmp_path / "dumps", tmp_path / "worker.log"
    block.touch()
    watched = dataclasses.replace(
        settings, metrics_port=0, dump_folder=str(folder), stall_after_s=STALL_S
    )

    def dumps(why: str) -> list[str]:
        texts = [path.read_text() for path in sorted(folder.glob("turnstream-processor-*.txt"))]
        return [text for text in texts if why in text.splitlines()[0]]

    stands_still = (sys.executable, "-m", "tests.kafka.blocked_worker", block)
    with worker(watched, said, *stands_still) as running:
        asyncio.run(publish(watched, events()))
        # It may have stood still before, while it was given its partitions.
        until(lambda: len(standing(dumps("no progress for 1 s"))) >= 2, said.read_text, PATIENCE_S)
        running.send_signal(signal.SIGUSR1)
        until(lambda: len(dumps("as SIGUSR1 asked")) == 1, said.read_text, PATIENCE_S)
        block.unlink()
        found = asyncio.run(records(watched, watched.samples_topic, 2))
        time.sleep(2 * STALL_S)  # one that began before it moved may still come
        count = len(dumps("no progress"))
        time.sleep(3 * STALL_S)
        assert len(dumps("no progress")) == count
        assert running.poll() is None
    assert len(standing(dumps("as SIGUSR1 asked"))) == 1
    for text in dumps(""):
        assert not [word for word in ("How big", "du -sh", "look after a") if word in text]
    offline = linearized(events())
    assert as_json(found) == offline.samples + offline.closed
