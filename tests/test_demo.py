"""`make demo` shows what it says, and leaves nothing behind."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS_MAX = 180.0


def test_the_demo_takes_an_agent_to_a_sample_that_trains_whole(tmp_path: Path) -> None:
    ran = subprocess.run(
        [ROOT / "tools" / "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    said = ran.stdout
    assert ran.returncode == 0, said + ran.stderr
    assert "Traceback" not in said + ran.stderr
    assert "scripted: answers from a script, not from a model" in said
    # The agent's tool is a real shell: the file is mended and its test runs.
    assert "tool   passed\n" in said
    (session_id,) = re.findall(r"^reward 1, session (\S+)$", said, re.MULTILINE)
    closed = re.search(rf"^closed +{session_id} .* trained (\d+) of (\d+)", said, re.MULTILINE)
    assert closed is not None
    assert closed[1] == closed[2] != "0"
    assert '{"name":"bash","arguments":{"command":"sed' in said.replace("·", " ")
    assert said.count("]⏎\n") >= 3, "the sampled tokens stand in brackets"
    assert f"total  trained {closed[1]} of {closed[2]}  reward 1" in said
    assert "does not train: realigned" in said
    assert re.search(r"^untrained: realigned +17 +0 +-17$", said, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []
