"""SGLang and vLLM when something breaks: what is tried again, and what is said."""

import asyncio

import pytest

from tests.adapters.engines.calls import heard
from tests.adapters.engines.standins.kinds import EACH, KINDS, Kind, Stand, asks, tried
from tests.kafka.broker import free_port

KEYS = [f"s{n}" for n in range(200)]
BROKEN = {
    "a connection that breaks after some tokens": ({"breaks_after": 3}, "", True),
    "an answer without an end": ({"ends_after": 3}, "stops in the middle", True),
    "an answer without anything": ({"ends_after": 0}, "stops in the middle", True),
    "a failure of the server": ({"fails_after": 3}, "out of memory", True),
    "a failure before the first": ({"fails_after": 0}, "out of memory", True),
    "a request it cannot do": ({"fails_after": 0, "fails_with": 400}, "out of memory", False),
    "no JSON": ({"garbage_after": 3}, "cannot be understood", False),
    "one logprob too few": ({"drops_logprob": True}, "logprobs for", False),
    "logprobs of other tokens": ({"others_logprobs": True}, "or of others", False),
    "a full queue": ({"aborts_with": 503}, "", True),
}


@EACH
@pytest.mark.parametrize(("faults", "says", "retryable"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_is_an_error_and_is_not_asked_again(
    kind: Kind, faults: dict[str, object], says: str, retryable: bool
) -> None:
    async def story(at: Stand) -> None:
        for name, value in faults.items():
            setattr(at.server.faults, name, value)
        came = await heard(at.engine, asks())
        assert came.error is not None
        assert at.urls[0] in str(came.error)
        assert says in str(came.error)
        assert came.error.retryable is retryable
        assert len(at.server.bodies) == 1
        assert list(came.ids) == at.model.journal[0].ids[: len(came.ids)]
        assert came.finish is None

    tried(kind, story)


@EACH
@pytest.mark.parametrize(
    ("status", "retryable"), [(400, False), (403, False), (404, False), (429, True), (503, True)]
)
def test_a_refusal_is_told_with_its_words_and_not_asked_again(
    kind: Kind, status: int, retryable: bool
) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.refuses = status
        came = await heard(at.engine, asks())
        assert f"status {status}: " in str(came.error)
        assert "the server refuses" in str(came.error)
        assert came.error is not None
        assert came.error.retryable is retryable
        assert len(at.server.bodies) == 1

    tried(kind, story)


@EACH
def test_a_missing_logprob_is_an_error(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.null_logprob = True
        came = await heard(at.engine, asks())
        assert "no logprob for token" in str(came.error)
        assert came.ids == ()

    tried(kind, story)


@EACH
@pytest.mark.parametrize("when", ["resets", "resets_begun"])
def test_a_connection_that_broke_before_a_token_is_tried_again_with_the_same_id(
    kind: Kind, when: str
) -> None:
    async def story(at: Stand) -> None:
        setattr(at.server.faults, when, 2)
        came = await heard(at.engine, asks())
        assert came.error is None
        assert list(came.ids) == at.model.journal[-1].ids
        assert len(at.server.bodies) == 3
        assert at.server.bodies[0] == at.server.bodies[2]

    tried(kind, story)


@EACH
def test_retries_end(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.resets = 100
        came = await heard(at.engine, asks())
        assert came.error is not None
        assert came.error.retryable
        assert len(at.server.bodies) == 4

    tried(kind, story)


@EACH
def test_silence_is_bounded_and_not_asked_again(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.hangs_after = 2
        came = await heard(at.engine, asks())
        assert "no sign of life for 0.3 s" in str(came.error)
        assert len(came.ids) == 2
        assert len(at.server.bodies) == 1

    tried(kind, story, read_s=0.3)


@EACH
def test_a_replica_that_falls_silent_is_not_asked_next(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        home = at.home()
        at.servers[home].faults.hangs_after = 0
        assert (await heard(at.engine, asks())).error is not None
        assert (await heard(at.engine, asks(request_id="r2"))).error is None
        assert [len(server.bodies) for server in at.servers] == [1, 1]

    tried(kind, story, replicas=2, read_s=1.0)


def test_what_a_broken_connection_left_behind_is_aborted_first() -> None:
    async def story(at: Stand) -> None:
        at.server.faults.resets = 1
        at.server.held.add("r1")
        came = await heard(at.engine, asks())
        assert came.error is None
        assert at.server.aborted == ["r1"]
        assert len(at.server.bodies) == 3

    tried(KINDS["sglang"], story)


def test_an_id_that_is_taken_without_a_retry_is_an_error() -> None:
    async def story(at: Stand) -> None:
        at.server.held.add("r1")
        came = await heard(at.engine, asks())
        assert "Duplicate request ID" in str(came.error)
        assert at.server.aborted == []

    tried(KINDS["sglang"], story)


@EACH
def test_a_session_stays_with_its_replica(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        # Ports are free ones, so which sessions are whose differs: two of each.
        at_each = [[key for key in KEYS if at.home(key) == n][:2] for n in range(3)]
        for turn in range(3):
            for key in [key for keys in at_each for key in keys]:
                await heard(at.engine, asks(request_id=f"{key}/{turn}", key=key))
        for at_home, model in enumerate(at.models):
            keys = {entry.generation.routing_key for entry in model.journal}
            assert keys == set(at_each[at_home])
            assert len(model.journal) == 3 * 2

    tried(kind, story, replicas=3)


@EACH
def test_a_replica_that_breaks_is_replaced_by_the_next_until_it_is_back(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        home = at.home()
        at.servers[home].faults.resets = 1
        first = await heard(at.engine, asks(request_id="r1"))
        assert first.error is None
        other = next(n for n, model in enumerate(at.models) if model.journal)
        assert other != home
        second = await heard(at.engine, asks(request_id="r2"))
        assert second.error is None
        assert [len(model.journal) for model in at.models].count(2) == 1
        at.engine.replicas.answered(at.urls[home])
        await heard(at.engine, asks(request_id="r3"))
        assert len(at.models[home].journal) == 1

    tried(kind, story, replicas=3)


@EACH
def test_replicas_that_are_not_there_cost_no_answer(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        gone = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
        engine = kind.engine([*gone, *at.urls])
        try:
            came = await asyncio.gather(
                *(heard(engine, asks(request_id=f"r{n}", key=f"s{n}")) for n in range(8))
            )
            assert [each.error for each in came] == [None] * 8
            await engine.require_ready()
        finally:
            await engine.close()

    tried(kind, story)
