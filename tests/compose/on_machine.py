"""What a user does on the machine that runs the compose file."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.compose.stand_in import BASE_ENVIRONMENT, SECONDS_MAX, StandIn, replaced


def on_this_machine(stack: StandIn, *command: str | Path) -> str:
    """What a user's own command prints, through the port that the file publishes."""
    (published,) = stack.services["kafka"].options["ports"]
    address = replaced(published.rpartition(":")[0], stack.new_table(""))
    run = subprocess.run(
        [Path(sys.executable).parent / "turnstream", *command],
        env=BASE_ENVIRONMENT | {"TURNSTREAM_BOOTSTRAP_SERVERS": address},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def replay(stack: StandIn, events: list[dict[str, Any]], folder: Path) -> None:
    """Publish events."""
    file = folder / "events.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    assert f"published {len(events)} events" in on_this_machine(stack, "replay", file)


def tailed(stack: StandIn, count: int) -> list[dict[str, Any]]:
    """So many different records, waiting for them; a record may have come twice."""
    most, until_s = count, time.monotonic() + SECONDS_MAX
    while time.monotonic() < until_s:
        told = on_this_machine(stack, "tail", "--json", "--from-beginning", "--max", str(most))
        different = dict.fromkeys(told.splitlines())
        if len(different) >= count:
            return [json.loads(line) for line in different]
        most += count - len(different)
    raise TimeoutError(f"only {len(different)} of {count} records")
