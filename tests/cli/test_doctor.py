"""`turnstream doctor` sees what is wrong, says what to change, and changes nothing."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import SECONDS_MAX, Ran
from tests.cli.up_process import Up, up
from tests.drift.qwen3 import tokenizer_folder
from tests.kafka.broker import free_port

TURNSTREAM = Path(sys.executable).parent / "turnstream"


def doctor(*arguments: str | Path, **variables: str) -> Ran:
    ports = {"TURNSTREAM_GATEWAY_PORT": str(free_port()), "TURNSTREAM_METRICS_PORT": "0"}
    run = subprocess.run(
        [TURNSTREAM, "doctor", *map(str, arguments)],
        env={**os.environ, **ports, **variables},
        capture_output=True,
        text=True,
        timeout=3 * SECONDS_MAX,  # it waits for engines that are slow on purpose
        check=False,
    )
    return Ran(run.returncode, run.stdout, run.stderr)


def rows(ran: Ran) -> dict[str, str]:
    """The state of each row by its name, of a table whose columns two blanks divide."""
    lines = [line for line in ran.out.splitlines() if line[:4] in {"ok  ", "note", "FAIL"}]
    return {line[6:].split("  ")[0]: line[:4].strip() for line in lines}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("doctor")) as shared:
        yield shared


def test_where_all_is_well_every_row_says_so(tmp_path: Path) -> None:
    ran = doctor("--log", tmp_path / "new.db", "--tokenizer", tokenizer_folder())
    assert (ran.code, ran.err) == (0, "")
    # By itself the template drops reasoning; what the gateway makes of it is well.
    noted = {name for name, state in rows(ran).items() if state != "ok"}
    assert noted == {"template alone", "serving"}
    assert ran.out.splitlines()[-1] == "all is well"
    assert {"python", "packages", "schemas", "streams", "log"} <= rows(ran).keys()
    assert {"tokenizer", "template", "next turns", "system message"} <= rows(ran).keys()
    assert "bridge of qwen3, suffix, tested" in ran.out
    assert "faust-streaming 0.15.3" in ran.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["schemas"])
def test_a_package_of_the_same_name_earlier_on_the_path_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    ran = doctor(PYTHONPATH=str(tmp_path))
    assert (ran.code, ran.err) == (1, "")
    assert rows(ran)[name] == "FAIL"
    assert f"take {tmp_path / name} off the path" in ran.out


def test_a_distribution_with_a_package_of_the_same_name_is_found(tmp_path: Path) -> None:
    about = tmp_path / "rival-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (about / "top_level.txt").write_text("streams\n")
    ran = doctor(PYTHONPATH=str(tmp_path))
    assert ran.code == 1
    assert rows(ran)["streams"] == "FAIL"
    assert "-> uninstall rival" in ran.out


def test_a_package_of_another_version_is_found(tmp_path: Path) -> None:
    about = tmp_path / "faust_streaming-0.16.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: faust-streaming\nVersion: 0.16.0\n"
    )
    ran = doctor(PYTHONPATH=str(tmp_path))
    assert ran.code == 1
    assert rows(ran)["packages"] == "FAIL"
    assert "faust-streaming==0.15.3 is asked for, 0.16.0 is installed" in ran.out


def test_a_broker_that_is_away_is_found() -> None:
    servers = f"127.0.0.1:{free_port()}"
    ran = doctor(
        "--log",
        "kafka",
        TURNSTREAM_BOOTSTRAP_SERVERS=servers,
        TURNSTREAM_REQUEST_TIMEOUT_S="1",
    )
    assert (ran.code, ran.err) == (1, "")
    assert rows(ran)["log"] == "FAIL"
    assert f"no answer from {servers}" in ran.out
    assert "-> start the broker" in ran.out


def test_a_file_that_is_no_log_is_found(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("something else\n" * 100)
    ran = doctor("--log", file)
    assert (ran.code, rows(ran)["log"]) == (1, "FAIL")
    assert file.read_text() == "something else\n" * 100


def test_a_folder_that_is_not_there_is_found(tmp_path: Path) -> None:
    ran = doctor("--log", tmp_path / "no/such/run.db")
    assert (ran.code, rows(ran)["log"]) == (1, "FAIL")
    assert f"-> make {tmp_path / 'no/such'}" in ran.out


def test_a_port_of_somebody_else_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        ran = doctor("--log", tmp_path / "run.db", TURNSTREAM_GATEWAY_PORT=port)
    assert (ran.code, rows(ran)["gateway port"]) == (1, "FAIL")
    assert "-> set TURNSTREAM_GATEWAY_PORT to another" in ran.out


def test_a_gateway_that_runs_is_no_failure_and_neither_is_its_log(running: Up) -> None:
    port = running.url.rpartition(":")[2]
    ran = doctor("--log", running.log, TURNSTREAM_GATEWAY_PORT=port)
    assert ran.code == 0, ran.out
    assert (rows(ran)["log"], rows(ran)["gateway port"]) == ("ok", "note")
    assert "has a gateway of ours" in ran.out


def test_a_wrong_setting_is_found() -> None:
    ran = doctor(TURNSTREAM_PARTITIONS="many")
    assert (ran.code, ran.err, rows(ran)["settings"]) == (1, "", "FAIL")
    assert "TURNSTREAM_PARTITIONS=many" in ran.out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of the test's own."""
    copy = tmp_path / "tokenizer"
    shutil.copytree(tokenizer_folder(), copy)
    return copy


def test_a_folder_without_a_tokenizer_is_found(tmp_path: Path) -> None:
    ran = doctor("--log", tmp_path / "a.db", "--tokenizer", tmp_path)
    assert (ran.code, rows(ran)["tokenizer"]) == (1, "FAIL")
    assert "-> name a folder with tokenizer.json" in ran.out


def with_template(folder: Path, template: str) -> None:
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "chat_template": template}))


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COUNTED = PLAIN.replace("{{ m.role }}", "{{ m.role }} {{ loop.index }} of {{ messages|length }}")
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system first') }}{% endif %}{% endfor %}" + PLAIN
)


def test_a_template_that_refuses_a_system_message_in_the_middle_is_a_note(
    folder: Path, tmp_path: Path
) -> None:
    with_template(folder, STRICT)
    ran = doctor("--log", tmp_path / "a.db", "--tokenizer", folder)
    assert ran.code == 0, ran.out
    assert rows(ran)["system message"] == "note"


def test_a_template_that_looks_back_is_a_failure(folder: Path, tmp_path: Path) -> None:
    with_template(folder, COUNTED)
    ran = doctor("--log", tmp_path / "a.db", "--tokenizer", folder)
    assert (ran.code, rows(ran)["next turns"]) == (1, "FAIL")
    assert "sampled tokens may change" in ran.out


def test_a_template_that_cannot_print_is_a_failure(folder: Path, tmp_path: Path) -> None:
    with_template(folder, "{{ raise_exception('never') }}")
    ran = doctor("--log", tmp_path / "a.db", "--tokenizer", folder)
    assert (ran.code, rows(ran)["tokenizer"]) == (1, "FAIL")
