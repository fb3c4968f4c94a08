"""`kill -USR1` on every service: a file that says what its tasks wait for; the service goes on."""

import asyncio
import signal
from pathlib import Path

import openai
import pytest

from streams.adapters.client import Turnstream
from streams.log.interface import Outgoing
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.cli.command import turnstream
from tests.cli.test_gateway_command import RUNS, control_key, url_of
from tests.cli.up_process import started, until
from tests.drift.qwen3 import tokenizer_folder

READY = "SIGUSR1 writes a task dump to"
SECRET = "The patient is called Ada"
SERVICES: dict[str, tuple[list[str | Path], str]] = {
    "up": (["up", "--port", "0", "--tokenizer", tokenizer_folder()], "_until"),
    "processor": (["processor", "--log", "run.db"], "EmbeddedProcessor.run"),
    "sink-jsonl": (["sink", "jsonl", "--log", "run.db"], "Consuming.run"),
    "judge": (["judge", "judgers:one", "--log", "run.db"], "JudgingConsumer.run"),
}


async def made(file: Path) -> None:
    """A log that somebody has written to."""
    settings = Settings(log=str(file))
    async with SqliteLog(file, settings) as log:
        await log.publish(Outgoing(topic=settings.control_topic, key=b"r", value=b"v"))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_writes_one_and_goes_on(name: str, tmp_path: Path) -> None:
    (tmp_path / "judgers.py").write_text("def one(case):\n    return 1\n")
    asyncio.run(made(tmp_path / "run.db"))
    arguments, waits_in = SERVICES[name]
    given = {"TURNSTREAM_GATEWAY_PORT": "0", "TURNSTREAM_DUMP_FOLDER": str(tmp_path / "dumps")}
    with started(tmp_path, *arguments, until=READY, **given) as running:
        for number in (1, 2):
            running.process.send_signal(signal.SIGUSR1)
            path = tmp_path / "dumps" / f"turnstream-{name}-{running.process.pid}-000{number}.txt"
            until(path.exists, lambda: running.said)
            assert f" {waits_in}\n" in path.read_text()
        assert running.process.poll() is None
        assert running.stop() == 0
    assert "stall watchdog off" in running.said


@pytest.mark.parametrize("name", [*SERVICES, "processor on Kafka"])
def test_a_service_whose_folder_for_dumps_cannot_be_used_does_not_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judgers.py").write_text("def one(case):\n    return 1\n")
    asyncio.run(made(tmp_path / "run.db"))
    ran = turnstream(
        *SERVICES.get(name, (["processor"], ""))[0],
        TURNSTREAM_METRICS_PORT="0",
        TURNSTREAM_DUMP_FOLDER=str(tmp_path / "run.db"),
    )
    assert ran.code == 1
    assert f": TURNSTREAM_DUMP_FOLDER={tmp_path}/run.db: no folder " in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err


def test_a_call_whose_engine_hangs_is_found_and_its_text_is_not_told(tmp_path: Path) -> None:
    script = tmp_path / "slow.json"
    script.write_text('{"answers": [{"text": "Never", "delay_ms": 600000}]}')
    log, dumps = tmp_path / "run.db", tmp_path / "dumps"
    engine: list[str | Path] = ["--engine", f"scripted:{script}", "--tokenizer", tokenizer_folder()]
    given = {
        "TURNSTREAM_GATEWAY_PORT": "0",
        "TURNSTREAM_DUMP_FOLDER": str(dumps),
        "TURNSTREAM_STALL_AFTER_S": "0.5",
        "TURNSTREAM_GATEWAY_DRAIN_TIMEOUT_S": "0.1",
    }
    with started(tmp_path, "gateway", "--log", log, *engine, until=RUNS, **given) as running:
        client = Turnstream(url_of(running), control_key(log))
        with (
            client.session() as session,
            openai.OpenAI(base_url=session.base_url, api_key=session.key, max_retries=0) as sdk,
            pytest.raises(openai.APITimeoutError),
        ):
            sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": SECRET}], timeout=4.0
            )
        running.process.send_signal(signal.SIGUSR1)

        def texts() -> list[str]:
            return [path.read_text() for path in sorted(dumps.glob("turnstream-gateway-*.txt"))]

        until(lambda: any("as SIGUSR1 asked" in text for text in texts()), lambda: running.said)
        stalled = [text for text in texts() if "no progress for 0.5 s" in text]
        assert len(stalled) >= 2
        assert " RunningTurn._answered\n" in stalled[0]
        assert not [text for text in texts() if "Ada" in text]
        assert running.stop() == 0
