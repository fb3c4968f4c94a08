"""`turnstream gateway` on a real broker."""

import asyncio
from pathlib import Path

import openai
import pytest

from schemas import codec
from schemas.events import Turn
from streams.adapters.client import Turnstream
from streams.log.kafka import KafkaLog
from streams.settings import Settings
from tests.cli.command import turnstream
from tests.cli.up_process import started
from tests.drift.qwen3 import tokenizer_folder
from tests.kafka.broker import free_port
from tests.kafka.entries import everything

ARGUMENTS = ["gateway", "--engine", "scripted", "--tokenizer", str(tokenizer_folder())]
CONTROL_KEY = "a-control-key-of-the-test"


def variables(settings: Settings) -> dict[str, str]:
    return {
        "TURNSTREAM_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "TURNSTREAM_TOPIC_PREFIX": settings.topic_prefix,
        "TURNSTREAM_PARTITIONS": "4",
        "TURNSTREAM_GATEWAY_PORT": "0",
        "TURNSTREAM_GATEWAY_SECRET": "a-secret-of-the-test",
        "TURNSTREAM_GATEWAY_CONTROL_KEY": CONTROL_KEY,
    }


def turns_of(settings: Settings) -> list[Turn]:
    async def read() -> list[Turn]:
        async with KafkaLog(settings) as log:
            entries = await everything(log, settings.turns_topic)
        events = [codec.from_msgpack(entry.value or b"") for entry in entries]
        return [event for event in events if isinstance(event, Turn)]

    return asyncio.run(read())


def test_a_call_is_in_the_topic_when_it_is_answered(settings: Settings, tmp_path: Path) -> None:
    until = "turnstream gateway: http"
    with started(tmp_path, *ARGUMENTS, until=until, **variables(settings)) as running:
        url = running.found(r"^turnstream gateway: (http://[^,]+),")
        with Turnstream(url, CONTROL_KEY).session() as session:
            with openai.OpenAI(base_url=session.base_url, api_key=session.key) as sdk:
                sdk.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Who are you?"}]
                )
            (turn,) = turns_of(settings)
            assert turn.session_id == session.session_id
        assert running.stop() == 0
        assert "Traceback" not in running.said


def test_topics_that_are_missing_end_it(
    bare_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(bare_settings).items():
        monkeypatch.setenv(name, value)
    ran = turnstream(*ARGUMENTS)
    assert (ran.code, ran.out) == (1, "")
    assert f"{bare_settings.turns_topic}: missing" in ran.err
    assert "Traceback" not in ran.err


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    away = Settings(bootstrap_servers=f"127.0.0.1:{free_port()}", request_timeout_s=1.0)
    given = {**variables(away), "TURNSTREAM_REQUEST_TIMEOUT_S": "1"}
    with started(tmp_path, *ARGUMENTS, until="; waiting for it", **given) as running:
        assert running.stop() == 0
        assert "Traceback" not in running.said
