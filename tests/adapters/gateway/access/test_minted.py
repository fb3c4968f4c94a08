"""Ids that name their turn: they fit every client, and only what was minted is recognised."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.gateway.access.minted import (
    ID_LENGTH_MAX,
    INDEX_MAX,
    LETTERS,
    PREFIXES,
    WIDTH,
    Kind,
    Minter,
    new_turn_id,
)

SECRET = b"a secret of the tests, never used elsewhere"
OTHER = b"another secret of the tests, likewise"
MINTER = Minter([SECRET])
TURN = "abcdefghijklmnop"

turns = st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=16, max_size=16)
sessions = st.text(string.ascii_letters + string.digits + "._:-", min_size=1, max_size=200)
indices = st.integers(0, INDEX_MAX)
kinds = st.sampled_from(Kind)
prefixes = st.sampled_from(PREFIXES)


def tool_call(minter: Minter, session: str, turn: str, index: int, prefix: str = "call_") -> str:
    return minter.mint(Kind.TOOL_CALL, session, turn, index=index, prefix=prefix)


def answer(minter: Minter, session: str, turn: str) -> str:
    return minter.mint(Kind.ANSWER, session, turn, index=0, prefix="chatcmpl-")


@given(session=sessions, turn=turns, kind=kinds, index=indices, prefix=prefixes)
def test_an_id_says_what_it_was_minted_for(
    session: str, turn: str, kind: Kind, index: int, prefix: str
) -> None:
    text = MINTER.mint(kind, session, turn, index=index, prefix=prefix)
    minted = MINTER.recognise(text)
    assert minted is not None
    assert (minted.kind, minted.turn_id, minted.index) == (kind, turn, index)
    assert minted.of(session)


@given(session=sessions, turn=turns, index=indices, prefix=prefixes)
def test_an_id_fits_every_client(session: str, turn: str, index: int, prefix: str) -> None:
    text = tool_call(MINTER, session, turn, index, prefix=prefix)
    assert len(text) <= ID_LENGTH_MAX
    assert text.startswith(prefix)
    assert text.removeprefix(prefix).isalnum()
    assert text.isascii()


@given(place=st.integers(0, WIDTH + len("call_") - 1), letter=st.characters())
def test_an_id_with_any_other_character_is_refused(place: int, letter: str) -> None:
    text = tool_call(MINTER, "s", TURN, 3)
    changed = text[:place] + letter + text[place + 1 :]
    recognised = MINTER.recognise(changed)
    assert (recognised is not None) == (changed == text)


def test_each_letter_at_each_place_of_an_id_counts() -> None:
    text = answer(MINTER, "s", TURN)
    changed = {
        text[:place] + letter + text[place + 1 :]
        for place in range(len("chatcmpl-"), len(text))
        for letter in LETTERS
    }
    assert [other for other in changed if MINTER.recognise(other)] == [text]


@given(text=st.text(max_size=60) | st.text(LETTERS, min_size=WIDTH, max_size=WIDTH))
def test_a_text_that_was_not_minted_is_not_recognised(text: str) -> None:
    assert MINTER.recognise(text) is None
    assert MINTER.recognise(f"call_{text}") is None


def test_the_largest_number_of_letters_is_no_id() -> None:
    assert MINTER.recognise("call_" + "z" * WIDTH) is None


@given(cut=st.integers(0, 35))
def test_a_part_of_an_id_is_none(cut: int) -> None:
    text = tool_call(MINTER, "s", TURN, 0)
    assert MINTER.recognise(text[:cut]) is None
    assert MINTER.recognise(text + text[:cut]) is None or not cut


def test_an_id_survives_a_change_of_api() -> None:
    text = tool_call(MINTER, "s", TURN, 2)
    assert MINTER.recognise(text.replace("call_", "toolu_")) == MINTER.recognise(text)


def test_an_id_is_nothing_under_another_secret() -> None:
    assert Minter([OTHER]).recognise(tool_call(MINTER, "s", TURN, 0)) is None


def test_the_first_secret_mints_and_all_are_recognised() -> None:
    old, new, rotated = Minter([SECRET]), Minter([OTHER]), Minter([OTHER, SECRET])
    assert rotated.recognise(tool_call(old, "s", TURN, 0)) is not None
    assert new.recognise(tool_call(rotated, "s", TURN, 0)) is not None
    assert old.recognise(tool_call(rotated, "s", TURN, 0)) is None


def test_an_id_tells_its_session_from_others() -> None:
    minted = MINTER.recognise(tool_call(MINTER, "session-1", TURN, 0))
    assert minted is not None
    assert not minted.of("session-2")


def test_ids_of_one_turn_differ_by_kind_and_place_and_session() -> None:
    ids = {
        MINTER.mint(kind, session, TURN, index=index, prefix="call_")
        for kind in Kind
        for index in range(20)
        for session in ("a", "b")
    }
    assert len(ids) == len(Kind) * 20 * 2


def test_ids_are_found_inside_a_longer_text() -> None:
    first, second = tool_call(MINTER, "s", TURN, 0), tool_call(MINTER, "s", TURN, 1, prefix="fc_")
    text = f"Calling tools: [{{'id': '{first}'}}], {first}|{second}, {second}x, x{first}"
    assert [minted.index for minted in MINTER.find(text)] == [0, 0, 1]


def test_a_turn_id_is_short_and_new_each_time() -> None:
    ids = {new_turn_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(turn) for turn in ids} == {16}
    assert all(MINTER.recognise(answer(MINTER, "s", turn)) for turn in ids)


WRONG_TURNS = ["", "t1", TURN.upper(), TURN[:-1], TURN + "a", "abcdefghijklmno1", "é" * 16]


@pytest.mark.parametrize("turn", WRONG_TURNS)
def test_only_turn_ids_of_ours_are_minted_into_others(turn: str) -> None:
    with pytest.raises(ValueError, match="turn"):
        tool_call(MINTER, "s", turn, 0)


@pytest.mark.parametrize("index", [-1, INDEX_MAX + 1])
def test_a_place_that_does_not_fit_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match=TURN):
        tool_call(MINTER, "s", TURN, index)
