"""`turnstream gateway`: the service of a deployment, on a file; tests/kafka has it on a broker."""

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from schemas.events import Turn
from streams.adapters.client import Turnstream
from streams.settings import Settings
from tests.adapters.engines.standins.kinds import KINDS
from tests.adapters.engines.standins.model import SmallModel, Told
from tests.cli.command import turnstream
from tests.cli.test_doctor_engine import serving
from tests.cli.up_process import PATIENCE_S, Running, read, started
from tests.drift.qwen3 import tokenizer_folder

OPTIONS = ["--engine", "scripted", "--tokenizer", str(tokenizer_folder())]
RUNS = "turnstream gateway: http"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway") / "run.db"


@pytest.fixture(scope="module")
def gateway(log: Path) -> Iterator[Running]:
    arguments = ["gateway", "--log", str(log), *OPTIONS]
    with started(log.parent, *arguments, until=RUNS, TURNSTREAM_GATEWAY_PORT="0") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.said


def url_of(running: Running) -> str:
    return running.found(r"^turnstream gateway: (http://[^,]+),")


def pages_of(running: Running) -> str:
    return running.found(r"^turnstream gateway: health and metrics on (http://\S+)$")


def asked(base_url: str, key: str) -> str:
    with openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=PATIENCE_S) as sdk:
        answer = sdk.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Who are you?"}]
        )
    return answer.choices[0].message.content or ""


def control_key(log: Path) -> str:
    printed = turnstream("gateway", "--log", log, "--print-control-key")
    assert (printed.code, printed.err) == (0, "")
    return printed.out.strip()


def test_a_call_is_answered_and_in_the_log(gateway: Running, log: Path) -> None:
    with Turnstream(url_of(gateway), control_key(log)).session() as session:
        assert "scripted engine" in asked(session.base_url, session.key)
    events = read(log, Settings().turns_topic, session.session_id)
    assert [event.__struct_config__.tag for event in events] == [
        "session_opened",
        "turn",
        "session_ended",
    ]


def test_another_gateway_on_the_same_log_goes_on_with_the_session(
    gateway: Running, log: Path
) -> None:
    control = Turnstream(url_of(gateway), control_key(log))
    arguments = ["gateway", "--log", str(log), *OPTIONS]
    with (
        started(log.parent, *arguments, until=RUNS, TURNSTREAM_GATEWAY_PORT="0") as other,
        control.session() as session,
    ):
        asked(session.base_url, session.key)
        asked(f"{url_of(other)}/v1", session.key)
        assert other.stop(signal.SIGINT) == 0
    events = read(log, Settings().turns_topic, session.session_id)
    turns = [event for event in events if isinstance(event, Turn)]
    assert len({turn.source for turn in turns}) == 2


def test_the_control_key_is_nowhere_in_what_it_prints(gateway: Running, log: Path) -> None:
    assert control_key(log) not in gateway.said


def test_health_says_whether_calls_can_be_recorded(gateway: Running) -> None:
    url = pages_of(gateway)
    assert _health(url.rpartition(":")[2]) == (0, "healthy: log and engine answer\n", "")


def test_health_tells_a_gateway_from_a_worker(gateway: Running) -> None:
    port = pages_of(gateway).rpartition(":")[2]
    ran = turnstream("health", TURNSTREAM_METRICS_PORT=port)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"turnstream: 127.0.0.1:{port}: a gateway is there: ask it with --gateway\n"


@pytest.mark.parametrize("path", ["/metrics", "/readyz"])
def test_the_port_of_agents_says_nothing_about_others(gateway: Running, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url_of(gateway) + path, timeout=30)
    with urllib.request.urlopen(f"{url_of(gateway)}/healthz", timeout=30) as answer:
        assert json.load(answer) == {"ok": True, "draining": False}
    with urllib.request.urlopen(f"{pages_of(gateway)}{path}", timeout=30) as answer:
        assert answer.status == 200


def test_health_knows_a_gateway_that_is_away() -> None:
    code, out, err = _health("9")
    assert (code, out) == (1, "")
    assert err.startswith("turnstream: 127.0.0.1:9: no answer: ")


def _health(port: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNSTREAM_METRICS_PORT", port)
        ran = turnstream("health", "--gateway")
    return ran.code, ran.out, ran.err


def test_an_engine_that_is_away_is_waited_for_and_a_signal_ends_that(tmp_path: Path) -> None:
    tokenizer = ["--tokenizer", str(tokenizer_folder())]
    arguments = ["gateway", "--log", "a.db", "--engine", "http://127.0.0.1:9", *tokenizer]
    with started(tmp_path, *arguments, until="; waiting for it") as running:
        assert running.stop() == 0
        assert "Traceback" not in running.said


REFUSED = {
    "no engine": (["--tokenizer", str(tokenizer_folder())], "--engine is needed: give `scripted`"),
    "no tokenizer": (["--engine", "scripted"], "--tokenizer is needed: give the folder"),
    "not a tokenizer": (
        ["--engine", "scripted", "--tokenizer", "/"],
        "holds no tokenizer that can be loaded",
    ),
}


@pytest.mark.parametrize(("options", "told"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_said_in_a_line(
    tmp_path: Path, options: list[str], told: str
) -> None:
    ran = turnstream("gateway", "--log", tmp_path / "a.db", *options)
    assert (ran.code, ran.out) == (1, "")
    assert told in ran.err
    assert ran.err.startswith("turnstream: ")
    assert ran.err.count("\n") == 1


def test_a_file_that_is_no_log_is_said_before_it_listens(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("something else\n" * 100)
    ran = turnstream("gateway", "--log", file, *OPTIONS)
    assert (ran.code, ran.out) == (1, "")
    assert str(file) in ran.err
    assert ran.err.count("\n") == 1


def test_on_kafka_the_secret_has_to_be_given() -> None:
    ran = turnstream("gateway", "--log", "kafka", *OPTIONS)
    assert (ran.code, ran.out) == (1, "")
    assert "TURNSTREAM_GATEWAY_SECRET: not set" in ran.err
    assert ran.err.count("\n") == 1


def test_an_engine_that_wants_a_key_ends_it_with_the_name_of_the_setting(tmp_path: Path) -> None:
    for kind in ("sglang", "vllm"):
        server = KINDS[kind].server(SmallModel())
        server.api_key = "sk-of-the-engine"
        with serving(server) as (url,):
            options = ["--engine", f"{kind}:{url}", "--tokenizer", str(tokenizer_folder())]
            ran = turnstream("gateway", "--log", tmp_path / f"{kind}.db", *options)
        assert (ran.code, ran.out) == (1, "")
        assert "set TURNSTREAM_ENGINE_API_KEY to the --api-key" in ran.err
        assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("told", ["raw", "processed"])
def test_whose_logprobs_they_are_is_asked_at_the_start(tmp_path: Path, told: Told) -> None:
    server = KINDS["vllm"].server(SmallModel(told=told))
    with serving(server) as (url,):
        options = ["--engine", f"vllm:{url}", "--tokenizer", str(tokenizer_folder())]
        arguments = ["gateway", "--log", str(tmp_path / "run.db"), *options]
        with started(tmp_path, *arguments, until=RUNS, TURNSTREAM_GATEWAY_PORT="0") as running:
            with urllib.request.urlopen(f"{pages_of(running)}/healthz", timeout=30) as answer:
                assert json.load(answer)["logprobs"] == told
            assert running.stop() == 0
        warned = "sessions that train at another temperature than 1 are refused" in running.said
    assert warned == (told == "raw")
    assert len(server.bodies) == 16


ON_KAFKA = {
    "TURNSTREAM_BOOTSTRAP_SERVERS": "127.0.0.1:9",
    "TURNSTREAM_GATEWAY_SECRET": "a-secret-of-this-test-of-32-letters",
}
"""A broker that is not there: a check asks nobody."""
UNUSABLE = {
    "no secret": ({"TURNSTREAM_GATEWAY_SECRET": ""}, OPTIONS, "TURNSTREAM_GATEWAY_SECRET: not set"),
    "no tokenizer": ({}, [*OPTIONS[:3], "/nowhere"], "--tokenizer /nowhere: there is no such"),
    "no engine of that name": ({}, ["--engine", "sgl", *OPTIONS[2:]], "--engine sgl: no such"),
}


def test_a_check_says_what_the_gateway_would_be_and_asks_nobody() -> None:
    ran = turnstream("gateway", "--check", *OPTIONS, given=b"", **ON_KAFKA)
    assert ran.code == 0, ran.err
    assert re.fullmatch(r"turnstream gateway: engine scripted, prompts \w{16}\n", ran.out)


@pytest.mark.parametrize(("changed", "options", "told"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_check_says_what_the_gateway_would_end_with(
    changed: dict[str, str], options: list[str], told: str
) -> None:
    ran = turnstream("gateway", "--check", *options, given=b"", **(ON_KAFKA | changed))
    assert (ran.code, ran.out) == (1, "")
    assert told in ran.err
