"""`turnstream up`: a real agent's SDK against a real process, and what is left in the folder."""

import json
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from schemas.events import SessionEnded, Turn
from streams.adapters.client import Turnstream
from streams.settings import Settings
from tests.cli.command import turnstream
from tests.cli.up_process import LAST_LINE, PATIENCE_S, Up, read, started, up
from tests.drift.qwen3 import tokenizer_folder

BASH: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
SLOW = {"otherwise": {"text": "Slow but sure.", "gap_ms": 400}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("up")) as shared:
        yield shared


def client(base_url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=PATIENCE_S)


def agent(sdk: openai.OpenAI) -> str:
    """A tool loop until the model is done; what it said last."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
    while True:
        answer = sdk.chat.completions.create(model="m", messages=messages, tools=[BASH])
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        assert len(messages) < 10, "the model does not end"
        messages.append(message.model_dump(exclude_none=True))  # type: ignore[arg-type]
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "hello"})


def test_an_agent_with_the_printed_variables_alone_becomes_a_sample(running: Up) -> None:
    with client(running.base_url, running.key) as sdk:
        assert agent(sdk) == "The tool says: hello"
    command = running.running.found(r"(curl (?:.*\\\n)?.*)$")
    ended = subprocess.run(
        ["bash", "-c", command.replace("curl ", "curl --noproxy '*' -sS ")],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert json.loads(ended.stdout)["end_status"] == "completed"

    outcome = running.closed(running.session_id)
    assert (outcome.end_status, outcome.reward, outcome.turns) == ("completed", 1.0, 2)
    assert outcome.trained == outcome.generated > 0
    turns = [each for each in running.events(running.session_id) if isinstance(each, Turn)]
    assert [turn.prompt_built for turn in turns] == ["render", "bridge"]
    (sample,) = running.samples(running.session_id)
    assert sample.sample_id in outcome.sample_ids


def test_the_printed_tail_shows_the_sample(running: Up) -> None:
    with Turnstream(running.url, running.control_key).session() as session:
        with client(session.base_url, session.key) as sdk:
            agent(sdk)
        session.reward(1)
    running.closed(session.session_id)
    words = running.running.found(r"^  turnstream (tail .*)$").split()
    ran = turnstream(*words, "--max", "2")
    assert ran.code == 0
    assert "sample" in ran.out


def test_every_session_leaves_a_trace(running: Up) -> None:
    control = Turnstream(running.url, running.control_key)
    for _ in range(5):  # by the usual share of 1 in 100 hardly one of them would
        with control.session() as session:
            session.reward(1)
        running.closed(session.session_id)
        assert len(read(running.log, Settings().traces_topic, session.session_id)) == 1


def test_it_says_what_answers_and_where_everything_is(running: Up) -> None:
    said = running.running.said
    assert "scripted: answers from a script, not from a model" in said
    assert str(tokenizer_folder()) in said
    assert str(running.log) in said
    assert str(running.data / "turnstream.secret") in said


def test_the_secret_is_the_owners_alone(running: Up) -> None:
    assert stat.S_IMODE((running.data / "turnstream.secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(running.data.stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0_and_the_next_start_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    with up(tmp_path) as first:
        with client(first.base_url, first.key) as sdk:
            agent(sdk)
        session_id, key, control = first.session_id, first.key, first.control_key
        assert first.running.stop(number) == 0
        assert "Traceback" not in first.running.said
    with up(tmp_path) as second:
        assert second.control_key == control
        with client(second.base_url, key) as sdk:
            agent(sdk)
        turns = [each for each in second.events(session_id) if isinstance(each, Turn)]
        assert len(turns) == 4


def test_a_session_that_nobody_tried_is_cancelled(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        session_id = running.session_id
        assert running.running.stop() == 0
    (ended,) = [each for each in running.events(session_id) if isinstance(each, SessionEnded)]
    assert ended.end_status == "cancelled"


def test_a_call_under_way_is_answered_and_recorded_before_it_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SLOW))
    answers: list[str | None] = []
    with up(tmp_path, "--engine", f"scripted:{script}") as running:
        sdk = client(running.base_url, running.key)

        def ask() -> None:
            stream = sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Well?"}], stream=True
            )
            for chunk in stream:
                first.set()
                answers.extend(choice.delta.content for choice in chunk.choices)

        first = threading.Event()
        asking = threading.Thread(target=ask)
        asking.start()
        assert first.wait(PATIENCE_S)
        assert running.running.stop() == 0
        asking.join(PATIENCE_S)
        sdk.close()
    assert "".join(text or "" for text in answers) == "Slow but sure."
    (turn,) = [each for each in running.events(running.session_id) if isinstance(each, Turn)]
    assert turn.delivered


def test_the_example_s_rollouts_succeed_every_time_and_no_tokenizer_is_needed(
    tmp_path: Path,
) -> None:
    examples = Path(__file__).parents[2] / "examples"
    options = ["--port", "0", "--engine", f"scripted:{examples / 'rollout-script.json'}"]
    with started(tmp_path, "up", *options, until=LAST_LINE) as running:
        started_up = Up(running, tmp_path / "turnstream-data")
        assert "which comes with the package" in running.said
        for _ in range(2):
            rollouts = subprocess.run(
                [
                    sys.executable,
                    examples / "rollout.py",
                    started_up.url,
                    started_up.control_key,
                ],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=True,
            )
            sessions = re.findall(r"^reward 1, session (\S+)$", rollouts.stdout, re.MULTILINE)
            assert len(sessions) == 2
            closed = [started_up.closed(session_id) for session_id in sessions]
            assert {one.run_id for one in closed} == {"r1"}
            # All that was sampled trains: the tool calls were read, and the prompts go on.
            assert [one.trained / one.generated for one in closed] == [1.0, 1.0]


def test_an_engine_of_its_own_process_is_named_by_its_url(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streams.adapters.engines.scripted"]
    engine = subprocess.Popen(
        [*command, "--tokenizer", str(tokenizer_folder())], stdout=subprocess.PIPE, text=True
    )
    try:
        assert engine.stdout is not None
        url = engine.stdout.readline().strip()
        with up(tmp_path, "--engine", url) as running:
            with client(running.base_url, running.key) as sdk:
                assert agent(sdk) == "The tool says: hello"
            assert f"scripted engine at {url}" in running.running.said
    finally:
        engine.terminate()
        assert engine.wait(PATIENCE_S) == 0
        assert engine.stdout is not None
        engine.stdout.close()


REFUSED = {
    "no such engine": (["--engine", "gpt"], "--engine gpt: no such engine: give `scripted`"),
    "no script": (["--engine", "scripted:none.json"], "none.json: "),
    "nobody at the URL": (["--engine", "http://127.0.0.1:9"], "Cannot connect to host 127.0.0.1:9"),
    "no tokenizer": (["--tokenizer", "nowhere"], "--tokenizer nowhere: there is no such folder"),
    "a folder that is a file": (["--data", "pyproject.toml"], "is a file"),
}


@pytest.mark.parametrize(("options", "told"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_said_in_a_line(
    tmp_path: Path, options: list[str], told: str
) -> None:
    given = ["--data", str(tmp_path), "--port", "0", "--tokenizer", str(tokenizer_folder())]
    ran = turnstream("up", *given, *options)
    assert ran.code in {1, 2}
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_another_server_at_the_engines_url_is_no_engine(running: Up, tmp_path: Path) -> None:
    given = ["--data", str(tmp_path), "--port", "0", "--tokenizer", str(tokenizer_folder())]
    ran = turnstream("up", *given, "--engine", running.url)
    assert ran.code == 1
    assert "this is no scripted engine: give `scripted`" in ran.err
    assert ran.err.count("\n") == 1


def test_an_engine_that_is_none_is_refused_before_a_tokenizer_is_asked_for(tmp_path: Path) -> None:
    ran = turnstream("up", "--data", tmp_path, "--engine", "gpt")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("turnstream: --engine gpt: no such engine: give `scripted`")


def test_a_url_needs_the_tokenizer_of_its_model(tmp_path: Path) -> None:
    ran = turnstream("up", "--data", tmp_path, "--engine", "http://127.0.0.1:9")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "turnstream: --tokenizer is needed: give the folder of the engine's own model\n"
    )


def test_a_port_in_use_is_said(running: Up, tmp_path: Path) -> None:
    port = running.url.rpartition(":")[2]
    ran = turnstream("up", "--data", tmp_path, "--port", port, "--tokenizer", tokenizer_folder())
    assert ran.code == 1
    at_once, at_last = ran.err.splitlines()[-2:]
    assert at_once == f"turnstream: 127.0.0.1:{port} is in use; trying again for 5 s"
    assert at_last.startswith(f"turnstream: 127.0.0.1:{port} is in use: end what listens there")
    assert "Traceback" not in ran.err


def test_a_second_one_on_the_same_folder_ends_and_harms_nothing(running: Up) -> None:
    ran = turnstream("up", "--data", running.data, "--port", "0", "--tokenizer", tokenizer_folder())
    assert (ran.code, ran.out) == (1, "")
    assert "another `turnstream up` works there" in ran.err
    assert ran.err.count("\n") == 1
    with Turnstream(running.url, running.control_key).session() as session:
        session.reward(1)
    assert running.closed(session.session_id).reward == 1.0


def test_a_file_that_is_no_log_is_said(tmp_path: Path) -> None:
    (tmp_path / "turnstream.db").write_text("something else\n" * 100)
    ran = turnstream("up", "--data", tmp_path, "--port", "0", "--tokenizer", tokenizer_folder())
    assert (ran.code, ran.out) == (1, "")
    assert str(tmp_path / "turnstream.db") in ran.err
    assert ran.err.count("\n") == 1
