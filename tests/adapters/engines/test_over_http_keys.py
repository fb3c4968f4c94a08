"""SGLang and vLLM started with --api-key: the key is sent, and a refusal names the setting."""

import asyncio

import pytest

from streams.adapters.engines.interface import KeyRefused
from streams.errors import BadSetting
from streams.settings import Settings, settings_from
from tests.adapters.engines.calls import heard
from tests.adapters.engines.standins.kinds import EACH, KINDS, Kind, Stand, asks, stand, tried
from tests.adapters.engines.standins.vllm import StandInVllm

KEY = "sk-of-the-engine"
SETTING = "TURNSTREAM_ENGINE_API_KEY"


@EACH
def test_the_key_is_sent_with_every_request(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.api_key = KEY
        await at.engine.require_ready()
        at.model.gap_s = 0.01
        chunks = []
        async for tokens in at.engine.generate(asks(max_new_tokens=10_000)):
            chunks.append(tokens)
            if len(chunks) == 1:
                await at.engine.abort("r1")
        assert chunks[-1].finish == "abort"
        assert len(at.server.aborted) == 1

    tried(kind, story, api_key=KEY)


@EACH
@pytest.mark.parametrize("key", [None, "sk-of-another"], ids=["no key", "another key"])
def test_a_refusal_names_the_setting_and_never_the_key(kind: Kind, key: str | None) -> None:
    async def story(at: Stand) -> None:
        at.server.api_key = KEY
        came = await heard(at.engine, asks())
        assert isinstance(came.error, KeyRefused)
        assert not came.error.retryable
        told = str(came.error)
        assert f"{at.urls[0]}: status 401: " in told
        assert (f"set {SETTING} to" in told) == (key is None)
        assert (f"{SETTING} is not the --api-key" in told) == (key is not None)
        assert (KEY in told, str(key) in told) == (False, False)
        assert at.model.journal == []

    tried(kind, story, api_key=key)


def test_sglang_is_not_ready_for_those_without_the_key_and_says_why() -> None:
    async def story(at: Stand) -> None:
        at.server.api_key = KEY
        with pytest.raises(KeyRefused, match=SETTING):
            await at.engine.require_ready()

    tried(KINDS["sglang"], story)


@EACH
def test_forbidden_is_about_the_key_too(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.refuses = 403
        came = await heard(at.engine, asks())
        assert isinstance(came.error, KeyRefused)
        assert SETTING in str(came.error)

    tried(kind, story)


def test_what_is_switched_off_is_not_about_the_key() -> None:
    async def work() -> None:
        kind = Kind("vllm", lambda model: StandInVllm(model, scale_out=False), KINDS["vllm"].engine)
        async with stand(kind) as at:
            came = await heard(at.engine, asks())
        assert not isinstance(came.error, KeyRefused)
        assert "--enable-scale-out" in str(came.error)
        assert SETTING not in str(came.error)

    asyncio.run(work())


USER, PASSWORD = "me", "of-the-proxy"


@EACH
def test_a_password_in_an_address_is_sent_and_never_shown(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        place = at.urls[0].partition("//")[2]
        engine = kind.engine([f"http://{USER}:{PASSWORD}@{place}"])
        try:
            at.server.basic = f"{USER}:{PASSWORD}"
            await engine.require_ready()
            at.model.gap_s = 0.01
            async for _ in engine.generate(asks(max_new_tokens=10_000)):
                await engine.abort("r1")
            assert len(at.server.aborted) >= 1
            await engine.learn()
            at.server.faults.refuses = 500
            refused = await heard(engine, asks(request_id="r2"))
            at.server.basic = "another"
            forbidden = await heard(engine, asks(request_id="r3"))
            told = [engine.name, str(refused.error), str(forbidden.error)]
            assert [place in text for text in told] == [True] * 3
            assert not any(PASSWORD in text for text in told)
        finally:
            await engine.close()

    tried(kind, story)


def test_a_password_and_a_key_are_one_too_many() -> None:
    with pytest.raises(BadSetting, match=f"{SETTING} too; an engine is sent one") as refused:
        KINDS["vllm"].engine([f"http://{USER}:{PASSWORD}@engine:1"], api_key=KEY)
    assert PASSWORD not in str(refused.value)


def test_the_setting_is_never_printed() -> None:
    settings = settings_from({SETTING: KEY})
    assert settings.engine_api_key == KEY
    assert KEY not in repr(settings)
    with pytest.raises(BadSetting) as refused:
        settings_from({SETTING: KEY, "TURNSTREAM_PARTITIONS": "0"})
    assert KEY not in str(refused.value)
    assert Settings().engine_api_key is None
