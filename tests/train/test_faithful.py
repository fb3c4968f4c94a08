"""What was recorded is what the weights say: every trained token's logprob, computed once more.

The engine samples with a cache, token by token; the re-scorer reads the whole sample in one pass
without one, and is other code.
"""

from pathlib import Path

import pytest

from schemas.samples import Sample
from tests.train.real import Real
from tests.train.stage import Stage, play, streamed

SAME = 1e-4
OTHER = 0.1
TOKENS = 48
QUESTIONS = (
    "Tell me a long story about a lighthouse keeper and a storm.",
    "Now tell it again from the point of view of the storm.",
    "And what did the ships make of it? Tell it at length.",
    "Tell the story of the lamp, too.",
)
"""More than updates: one may be answered before its update comes."""
NAMES = "Invent a long list of strange names of dragons, and say where each of them lives."
ANSWERS_MAX = 20


def trained(sample: Sample) -> dict[int, float]:
    """The recorded logprob at every trained place."""
    return {
        at: float(sample.logprobs[at])
        for start, end in sample.loss_mask
        for at in range(start, end)
    }


def versions(sample: Sample) -> dict[int, int]:
    """The version of the weights at every trained place."""
    runs = sample.weight_versions or ()
    return {at: version for version, start, end in runs for at in range(start, end)}


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_each_side_of_an_update_is_scored_by_its_own_weights(
    temperature: float, real: Real, found: list[str], tmp_path: Path
) -> None:
    async def story(stage: Stage) -> None:
        async with stage.session(sampling={"temperature": temperature}) as agent:
            version = 0
            for question in QUESTIONS:
                async for parts in streamed(agent, question, TOKENS):
                    if parts == TOKENS // 3:
                        version += 1
                        await real.engine.replace_weights(real.weights[version], version)
                if version == 2:
                    break
        became = await stage.became(agent)
        told = {tuple(run for run, _ in turn.weight_versions or ()) for turn in became.turns}
        assert {(0, 1), (1, 2)} <= told
        (sample,) = became.samples
        recorded, of = trained(sample), versions(sample)
        assert recorded.keys() == of.keys()
        assert len(recorded) == became.closed.trained == became.closed.generated > TOKENS
        scored = {
            version: real.rescorer.logprobs(weights, sample.tokens.tolist(), temperature)
            for version, weights in real.weights.items()
        }
        own = max(abs(recorded[at] - scored[of[at]][at]) for at in recorded)
        crossed = max(abs(recorded[at] - scored[(of[at] + 1) % 3][at]) for at in recorded)
        found.append(
            f"temperature {temperature}: {len(recorded)} trained tokens of 3 versions, "
            f"|recorded - recomputed| at most {own:.1e}; by another version's weights {crossed:.2f}"
        )
        assert own <= SAME
        assert crossed > OTHER

    play(tmp_path, real, story)


def test_tokens_of_the_same_text_encoded_again_have_other_logprobs(
    real: Real, found: list[str], tmp_path: Path
) -> None:
    async def story(stage: Stage) -> None:
        for asked in range(1, ANSWERS_MAX + 1):
            async with stage.session() as agent:
                async for _ in streamed(agent, NAMES, 2 * TOKENS):
                    pass
            (sample,) = (await stage.became(agent)).samples
            tokens, recorded = sample.tokens.tolist(), trained(sample)
            again = encoded_again(real, sample)
            if again == tokens:
                continue
            assert real.renderer.decode(again) == real.renderer.decode(tokens)
            own, other = (
                real.rescorer.logprobs(real.weights[0], ids, 1.0) for ids in (tokens, again)
            )
            same = max(abs(recorded[at] - own[at]) for at in recorded)
            apart = max(abs(recorded[at] - other[at]) for at in recorded if at < len(other))
            found.append(
                f"answer {asked}, {len(recorded)} trained tokens: |recorded - recomputed| at most "
                f"{same:.1e}; its text encoded again: {apart:.2f}"
            )
            assert same <= SAME
            assert apart > OTHER
            return
        pytest.fail(f"{ANSWERS_MAX} answers, and each was spelled as the tokenizer would")

    play(tmp_path, real, story)


def encoded_again(real: Real, sample: Sample) -> list[int]:
    """The prompt as it was, the answer through its text."""
    prompt, answer = sample.tokens[: sample.prompt_len], sample.tokens[sample.prompt_len :]
    text = real.renderer.decode(answer)
    return [*prompt.tolist(), *real.renderer.backend.encode(text, add_special_tokens=False).ids]
