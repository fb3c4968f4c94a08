"""The local engine draws from the distribution that its logprobs are of."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.engines.interface import EngineError, Sampling
from streams.adapters.engines.local_sampling import Drawing, Scores
from streams.adapters.engines.local_stops import Stops
from tests.adapters.engines.calls import encode, tokenizer

SCORES = np.asarray([2.0, 1.0, 0.5, -1.0, -3.0], np.float32)

scored = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30).map(
    lambda values: np.asarray(values, np.float32)
)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(-1, 40),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(-(2**63), 2**63),
)


def shares(scores: Scores = SCORES, **sampling: Any) -> list[float]:
    """The probability of every token."""
    whole = np.exp(Drawing(Sampling(**sampling), ()).distribution(scores))
    return [float(share) for share in whole]


def plain(scores: list[float]) -> list[float]:
    """A softmax as it is defined."""
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def test_untouched_it_is_the_softmax_of_the_scores() -> None:
    assert shares() == pytest.approx(plain(SCORES.tolist()), abs=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 0.7, 2.0])
def test_the_temperature_divides_the_scores(temperature: float) -> None:
    expected = plain([score / temperature for score in SCORES.tolist()])
    assert shares(temperature=temperature) == pytest.approx(expected, abs=1e-12)


def test_at_temperature_0_the_highest_score_is_certain() -> None:
    assert shares(temperature=0.0) == [1, 0, 0, 0, 0]
    assert Drawing(Sampling(temperature=0.0), ()).draw(SCORES[::-1].copy()) == (4, 0.0)


CUTS: dict[str, tuple[dict[str, Any], int]] = {
    # SCORES are 0.6236, 0.2294, 0.1391, 0.0310, 0.0042 of the whole.
    "the two likeliest": ({"top_k": 2}, 2),
    "more than there are": ({"top_k": 9}, 5),
    "as many as it takes": ({"top_p": 0.7}, 2),
    "one at least": ({"top_p": 0.0}, 1),
    "all, by the most": ({"top_p": 0.999}, 5),
    "of what top_k leaves": ({"top_k": 3, "top_p": 0.87}, 3),
    "a part of the highest": ({"min_p": 0.2}, 3),
    "at the temperature's own shares": ({"temperature": 2.0, "top_p": 0.5}, 2),
}


@pytest.mark.parametrize(("sampling", "left"), CUTS.values(), ids=CUTS)
def test_what_is_cut_off_has_no_share_and_the_rest_sums_to_one(
    sampling: dict[str, Any], left: int
) -> None:
    scores = [score / sampling.get("temperature", 1.0) for score in SCORES.tolist()]
    assert shares(**sampling) == pytest.approx(
        [*plain(scores[:left]), *[0.0] * (5 - left)], abs=1e-12
    )


def test_penalties_are_taken_off_what_was_sampled() -> None:
    drawing = Drawing(Sampling(temperature=0.0, frequency_penalty=0.4, presence_penalty=0.3), (1,))
    drawn = [drawing.draw(SCORES)[0] for _ in range(4)]
    # 2.0 goes down by 0.7, then by 0.4 each: 1.3, 0.9; 1.0 goes down to 0.3.
    assert drawn == [0, 0, 1, 0]


def test_the_repetition_penalty_counts_the_prompt_and_the_answer() -> None:
    drawing = Drawing(Sampling(repetition_penalty=4.0, temperature=0.0), (0, 3))
    assert drawing.draw(SCORES)[0] == 1  # 2.0 became 0.5
    assert drawing.draw(SCORES)[0] == 0  # 1.0 became 0.25; of equal scores the first
    low = Drawing(Sampling(repetition_penalty=4.0), (3,)).distribution(SCORES)
    assert low[3] - low[4] == pytest.approx(-4.0 - -3.0)


@given(scores=scored, sampling=samplings)
def test_what_is_drawn_has_a_share_and_that_is_its_logprob(
    scores: Scores, sampling: Sampling
) -> None:
    whole = Drawing(sampling, ()).distribution(scores)
    assert np.exp(whole).sum() == pytest.approx(1.0)
    token, logprob = Drawing(sampling, ()).draw(scores)
    assert logprob == whole[token] > -math.inf
    assert (token, logprob) == Drawing(sampling, ()).draw(scores)


def test_tokens_come_as_often_as_their_logprobs_say() -> None:
    drawing = Drawing(Sampling(temperature=0.7, top_k=4, seed=1), ())
    draws = 20_000
    counts = Counter(drawing.draw(SCORES)[0] for _ in range(draws))
    for token, share in enumerate(shares(temperature=0.7, top_k=4)):
        assert counts[token] / draws == pytest.approx(share, abs=0.015)
    assert counts[4] == 0


def test_a_call_without_a_seed_draws_from_what_it_is_given() -> None:
    def drawn(seed: int) -> list[int]:
        drawing = Drawing(Sampling(temperature=3.0), (), np.random.default_rng(seed))
        return [drawing.draw(SCORES)[0] for _ in range(50)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_an_error(wrong: float) -> None:
    with pytest.raises(EngineError, match="no numbers"):
        Drawing(Sampling(), ()).draw(np.asarray([0.0, wrong], np.float32))


def met(text: str, stops: Stops) -> tuple[int, str | None]:
    """How many of the text's tokens it takes, and what is met."""
    ids = encode(text)
    for count, token in enumerate(ids, 1):
        reason = stops.met(token)
        if reason is not None:
            return count, reason
    return len(ids), None


def test_a_stop_token_ends_an_answer() -> None:
    (end,) = encode("<|im_end|>")
    assert met("One two<|im_end|> three", Stops([end], (), None)) == (3, str(end))


def test_a_stop_string_ends_it_with_the_token_that_completes_it() -> None:
    assert met("One two three four", Stops((), ("never", "wo t"), tokenizer())) == (3, "wo t")
    assert met("One two three four", Stops((), ("never", ""), tokenizer())) == (4, None)


def test_a_stop_string_is_met_late_in_an_answer_and_across_characters_of_many_tokens() -> None:
    text = "Well then. " * 100 + "🤝🏿 done"
    count, reason = met(text, Stops((), ("🤝🏿",), tokenizer()))
    assert reason == "🤝🏿"
    assert tokenizer().decode(list(encode(text)[:count])).endswith("🤝🏿")


def test_without_a_tokenizer_texts_are_not_seen() -> None:
    assert met("One two", Stops((), ("two",), None)) == (2, None)
