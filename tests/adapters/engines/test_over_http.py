"""SGLang and vLLM through their clients: tokens, aborts, and what is told of them."""

import asyncio
import contextlib

import numpy as np
import pytest

from streams.adapters.engines import over_http
from streams.adapters.engines.interface import EngineAway, EngineError, WrongEngine
from streams.adapters.gateway.sampling.sampled import Sampled
from tests.adapters.engines.calls import heard
from tests.adapters.engines.standins.kinds import EACH, KINDS, Kind, Stand, asks, tried
from tests.adapters.engines.standins.model import SmallModel
from tests.adapters.engines.standins.serving import standing
from tests.adapters.engines.standins.sglang import StandInSglang
from tests.adapters.engines.standins.vllm import StandInVllm
from tests.kafka.broker import free_port


@EACH
def test_what_comes_is_what_was_sampled(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        came = await heard(at.engine, asks(max_new_tokens=20))
        (entry,) = at.model.journal
        assert (list(came.ids), list(came.logprobs)) == (entry.ids, entry.logprobs)
        assert len(came.ids) == 20
        assert came.finish == "length"
        assert len(came.chunks) > 2
        assert entry.generation.input_ids.tolist() == [3, 1, 4, 1, 5]

    tried(kind, story)


@EACH
def test_sampling_arrives_as_given(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        given = asks(
            temperature=0.7,
            top_p=0.9,
            top_k=20,
            min_p=0.1,
            seed=5,
            stop=("END",),
            stop_ids=(7, 8),
            json_schema='{"type": "object"}',
        )
        await heard(at.engine, given)
        arrived = at.model.journal[0].generation
        assert arrived.sampling == given.sampling
        assert arrived.routing_key == given.routing_key

    tried(kind, story)


@EACH
def test_the_stop_token_is_part_of_the_answer(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        first = (await heard(at.engine, asks())).ids[0]
        came = await heard(at.engine, asks(request_id="r2", stop_ids=(first,)))
        assert came.ids == (first,)
        assert (came.finish, came.stop_reason) == ("stop", str(first))

    tried(kind, story)


@EACH
def test_an_abort_ends_it_with_what_came(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.model.gap_s = 0.02
        came = []
        async for tokens in at.engine.generate(asks(max_new_tokens=500)):
            came.append(tokens)
            if len(came) == 3:
                await at.engine.abort("r1")
        (entry,) = at.model.journal
        assert came[-1].finish == entry.finish == "abort"
        assert [token for tokens in came for token in tokens.ids] == entry.ids
        assert 3 <= len(entry.ids) < 500

    tried(kind, story)


@EACH
def test_closing_early_ends_the_generation_and_an_abort_still_reaches_it(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.model.gap_s = 0.02
        async with contextlib.aclosing(at.engine.generate(asks(max_new_tokens=500))) as stream:
            await anext(stream)
        await at.engine.abort("r1")
        assert [name.removeprefix("generate-tokens-") for name in at.server.aborted] == ["r1"]
        await at.engine.abort("never heard of")
        assert len(at.server.aborted) == 1

    tried(kind, story)


@EACH
def test_a_finished_answer_leaves_its_connection_to_the_next(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.lingers_s = 0.03
        for number in range(5):
            answer = at.engine.generate(asks(request_id=f"r{number}"))
            # As the gateway does: who has seen the end asks for no more.
            async with contextlib.aclosing(answer):
                async for tokens in answer:
                    if tokens.finish is not None:
                        break
        assert len(at.server.bodies) == 5
        assert len(at.server.peers) == 1

    tried(kind, story)


def test_a_connection_is_left_before_the_server_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert over_http.IDLE_S < 5.0  # as both have it
    monkeypatch.setattr(over_http, "IDLE_S", 0.1)

    async def story(at: Stand) -> None:
        for number in range(3):
            assert (await heard(at.engine, asks(request_id=f"r{number}"))).error is None
            await asyncio.sleep(0.5)
        assert len(at.server.peers) == 3

    tried(KINDS["sglang"], story)


@EACH
def test_answers_beside_each_other_are_not_mixed_up(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        asked = [
            asks((n, n + 1), request_id=f"r{n}", key=f"s{n}", max_new_tokens=1 + n % 17, seed=n)
            for n in range(60)
        ]
        for server in at.servers:
            server.faults.resets = 3
        came = await asyncio.gather(*(heard(at.engine, each) for each in asked))
        sampled = {
            entry.generation.request_id.removeprefix("generate-tokens-"): entry
            for model in at.models
            for entry in model.journal
        }
        for each, answer in zip(asked, came, strict=True):
            entry = sampled[each.request_id]
            assert (list(answer.ids), list(answer.logprobs)) == (entry.ids, entry.logprobs)
            assert answer.finish == "length"
            assert len(answer.ids) == each.sampling.max_new_tokens

    tried(kind, story, replicas=3)


@EACH
def test_weight_versions_are_right_at_every_token(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        sampled = Sampled()
        async for tokens in at.engine.generate(asks(max_new_tokens=9)):
            sampled.add(tokens)
            if len(sampled.ids) == 4:
                at.model.version = 8
        runs = sampled.weight_versions
        assert runs is not None
        assert [version for version, _ in runs] == [7, 8]
        assert sum(count for _, count in runs) == 9
        assert sampled.weight_label == "8"

    async def slowly(at: Stand) -> None:
        at.model.gap_s = 0.02
        await story(at)

    tried(kind, slowly)


@EACH
def test_a_label_that_is_no_number_is_a_label_alone(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.model.label = "step-12"
        sampled = Sampled()
        async for tokens in at.engine.generate(asks()):
            sampled.add(tokens)
        assert sampled.weight_versions is None
        assert sampled.weight_label == "step-12"

    tried(kind, story)


@EACH
def test_routed_experts_have_a_row_for_each_sampled_token(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.experts = (3, 2)
        came = await heard(at.engine, asks(routed_experts=True))
        experts = came.chunks[-1].routed_experts
        assert experts is not None
        assert experts.shape[0] == len(came.ids) == 6
        rows = np.frombuffer(experts.data, experts.dtype).reshape(experts.shape)
        assert rows.reshape(6, -1).shape == (6, 6)
        unasked = await heard(at.engine, asks(request_id="r2"))
        assert unasked.chunks[-1].routed_experts is None

    tried(kind, story)


@EACH
def test_the_prompt_comes_back_only_if_asked_for(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        echoed = await heard(at.engine, asks(echo=True))
        assert echoed.chunks[0].prompt_ids == (3, 1, 4, 1, 5)
        silent = await heard(at.engine, asks(request_id="r2"))
        assert all(tokens.prompt_ids is None for tokens in silent.chunks)

    tried(kind, story)


@EACH
def test_ready_is_asked_of_the_right_server(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        await at.engine.require_ready()
        at.server.faults.away = True
        with pytest.raises(EngineError, match=f"{at.urls[0]}: status 503 for /"):
            await at.engine.require_ready()

    tried(kind, story)


@EACH
def test_an_engine_that_is_away_is_not_ready(kind: Kind) -> None:
    async def work() -> None:
        engine = kind.engine([f"http://127.0.0.1:{free_port()}"])
        try:
            with pytest.raises(EngineAway, match=": no answer: ClientConnectorError: "):
                await engine.require_ready()
            await engine.abort("r1")
        finally:
            await engine.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("kind", "other"), [(KINDS["sglang"], StandInVllm), (KINDS["vllm"], StandInSglang)]
)
def test_another_server_is_not_taken_for_it(
    kind: Kind, other: type[StandInVllm] | type[StandInSglang]
) -> None:
    async def work() -> None:
        async with standing(other(SmallModel())) as urls:
            engine = kind.engine(urls)
            with pytest.raises(WrongEngine, match=rf"{urls[0]}: .* this is no "):
                await engine.require_ready()
            await engine.close()

    asyncio.run(work())
