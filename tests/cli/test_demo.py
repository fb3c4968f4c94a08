"""`turnstream demo` shows what it says, and leaves nothing behind that was not asked for."""

import os
import re
import subprocess
from pathlib import Path

from click.testing import CliRunner

from streams.cli.demo.command import demo
from streams.cli.up.command import alone

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^ +(\d/\d) +(\d+) +(\d+) +([01]) +([+-]0\.71) +([01]\.\d\d)$", re.MULTILINE)


def test_make_demo_goes_from_an_agent_to_what_a_trainer_is_handed(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ran = subprocess.run(
        ["make", "--silent", "demo"],
        cwd=ROOT,
        # A setting of the user's is no concern of it.
        env={**env, "TMPDIR": str(tmp_path), "TURNSTREAM_LOG": "nowhere"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = ran.stdout
    assert (ran.returncode, ran.stderr) == (0, ""), said
    assert "tokens of text; a tokenizer would make it" in said
    assert "[Half·of·it:·50.<|im_end|>]⏎" in said
    assert "untrained: auxiliary 3" in said
    assert "trains, logprob -" in said
    rows = ROW.findall(said)
    assert [(name, reward, advantage) for name, _, _, reward, advantage, _ in rows] == [
        ("0/0", "1", "+0.71"),
        ("1/0", "0", "-0.71"),
        ("1/1", "0", "-0.71"),
    ]
    assert float(rows[0][5]) == float(rows[1][5]) + float(rows[2][5]) == 1.0
    totals = re.findall(r"total  trained (\d+) of (\d+)", said)
    # All that was sampled trains, but for the title.
    assert [int(generated) - int(trained) for trained, generated in totals] == [3, 3]
    assert int(rows[0][2]) == int(totals[0][0])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_another_works_is_left_alone(tmp_path: Path) -> None:
    with alone(tmp_path):
        refused = CliRunner().invoke(demo, ["--data", str(tmp_path)])
    assert refused.exit_code == 1
    assert f"--data {tmp_path}: another" in refused.stderr


def test_files_of_a_model_in_the_folder_stay_as_they_are(tmp_path: Path) -> None:
    theirs = {name: f"{name} of a model" for name in ("tokenizer.json", "tokenizer_config.json")}
    for name, text in theirs.items():
        (tmp_path / name).write_text(text)
    shown = CliRunner().invoke(demo, ["--data", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs
