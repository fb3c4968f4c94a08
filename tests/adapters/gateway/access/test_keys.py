"""Keys: what was minted opens its session until it expires, and nothing else opens anything."""

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.gateway.access.keys import BadKey, KeyRing, SessionKey
from streams.errors import BadSetting
from streams.log.interface import Position

SECRET = b"a secret of the tests, never used elsewhere"
OTHER = b"another secret of the tests, likewise"
RING = KeyRing([SECRET])
LATER = 2_000_000_000_000
NOW = 1_900_000_000_000
KEY = RING.mint("session-1", LATER, Position("turnstream.turns", 3, 77))

sessions = st.text(string.ascii_letters + string.digits + "._:-", min_size=1, max_size=200)
places = st.none() | st.builds(
    Position, st.just("t"), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
)


def reason(key: str, ring: KeyRing = RING, now_ms: int = NOW) -> str:
    with pytest.raises(BadKey) as refused:
        ring.read(key, now_ms)
    assert str(refused.value) == str(BadKey("anything"))
    return refused.value.reason


@given(session=sessions, place=places, expires=st.integers(NOW + 1, 2**63))
def test_a_key_says_what_it_was_minted_for(
    session: str, place: Position | None, expires: int
) -> None:
    key = RING.read(RING.mint(session, expires, place), NOW)
    assert key.session_id == session
    assert key.expires_ms == expires
    assert key.place("t") == place


@given(session=sessions, place=places)
def test_a_key_is_safe_in_a_header_and_in_a_path(session: str, place: Position | None) -> None:
    key = RING.mint(session, LATER, place)
    assert key.startswith("ts-")
    assert set(key) <= set(string.ascii_letters + string.digits + "-_")
    assert len(key) <= 400


@given(place=st.integers(0, len(KEY) - 1), letter=st.characters())
def test_a_key_with_any_other_character_is_refused(place: int, letter: str) -> None:
    changed = KEY[:place] + letter + KEY[place + 1 :]
    if changed == KEY:
        assert RING.read(changed, NOW).session_id == "session-1"
    else:
        assert reason(changed)


def test_each_letter_at_each_place_of_a_key_counts() -> None:
    letters = string.ascii_letters + string.digits + "-_"
    for place in range(len(KEY)):
        for letter in letters.replace(KEY[place], ""):
            assert reason(KEY[:place] + letter + KEY[place + 1 :])


@given(text=st.text(max_size=80))
def test_a_text_that_was_not_minted_is_refused(text: str) -> None:
    assert reason(text)
    assert reason(f"ts-{text}")


@given(cut=st.integers(0, len(KEY) - 1))
def test_a_part_of_a_key_is_refused(cut: int) -> None:
    assert reason(KEY[:cut])
    assert reason(KEY + KEY[: cut + 1])


OTHER_SPELLINGS = {
    "padded": KEY + "=" * (-(len(KEY) - 3) % 4 or 4),
    "with blanks": f"{KEY[:20]} {KEY[20:]}",
    "with a newline": f"{KEY}\n",
    "upper prefix": f"TS-{KEY[3:]}",
    "no prefix": KEY[3:],
    "half a surrogate": f"ts-\ud800{KEY[3:]}",
    "endless": "ts-" + "A" * 100_000,
    "nothing": "ts-",
    "empty": "",
}


@pytest.mark.parametrize("key", OTHER_SPELLINGS.values(), ids=OTHER_SPELLINGS)
def test_another_spelling_of_a_key_is_refused(key: str) -> None:
    assert reason(key)


def test_what_is_longer_than_any_key_is_not_even_read() -> None:
    assert reason("ts-" + "A" * 398) == "too long"


def test_a_key_opens_its_session_until_it_expires() -> None:
    assert RING.read(KEY, LATER - 1).session_id == "session-1"
    assert "expired" in reason(KEY, now_ms=LATER)


def test_a_key_of_another_secret_is_refused() -> None:
    assert "signature" in reason(KeyRing([OTHER]).mint("session-1", LATER))


def test_a_session_written_into_a_key_by_hand_is_refused() -> None:
    whole = base64.urlsafe_b64decode(KEY[3:] + "=" * (-(len(KEY) - 3) % 4))
    forged = whole.replace(b"session-1", b"session-2")
    assert "signature" in reason("ts-" + base64.urlsafe_b64encode(forged).decode().rstrip("="))


def test_the_first_secret_mints_and_all_are_accepted() -> None:
    rotated = KeyRing([OTHER, SECRET])
    assert rotated.read(KEY, NOW).session_id == "session-1"
    minted = rotated.mint("session-2", LATER)
    assert KeyRing([OTHER]).read(minted, NOW).session_id == "session-2"
    assert reason(minted)


def test_what_is_wrong_is_said_to_the_log_alone() -> None:
    with pytest.raises(BadKey) as refused:
        RING.read(KEY, LATER)
    assert "session-1" in refused.value.reason
    assert "session-1" not in str(refused.value)


def test_a_key_may_be_minted_before_the_log_has_the_session() -> None:
    key = RING.read(RING.mint("s", LATER), NOW)
    assert key == SessionKey(session_id="s", expires_ms=LATER, partition=None, offset=None)
    assert key.place("t") is None


@pytest.mark.parametrize("session", ["", "a/b", "a b", "s" * 201, "é", "s\n"])
def test_only_a_session_id_gets_a_key(session: str) -> None:
    with pytest.raises(ValueError, match="session"):
        RING.mint(session, LATER)


def test_the_control_key_opens_control_and_no_session() -> None:
    assert RING.is_control(RING.control_key)
    assert reason(RING.control_key)


def test_a_session_key_opens_no_control() -> None:
    assert not RING.is_control(KEY)


@given(text=st.text(st.characters(exclude_categories=[]), max_size=60))
def test_no_other_text_opens_control(text: str) -> None:
    assert not RING.is_control(text)
    assert not RING.is_control(RING.control_key + text) or not text


def test_the_secret_itself_opens_nothing() -> None:
    assert not RING.is_control(SECRET.decode())
    assert reason(SECRET.decode())


def test_a_control_key_of_the_operators_replaces_the_derived_one() -> None:
    chosen = KeyRing([SECRET], control_key="chosen by the operator")
    assert chosen.is_control("chosen by the operator")
    assert not chosen.is_control(RING.control_key)
    assert chosen.read(KEY, NOW).session_id == "session-1"


@pytest.mark.parametrize("key", ["", "short", KEY])
def test_a_control_key_that_can_be_guessed_or_mistaken_is_refused(key: str) -> None:
    with pytest.raises(BadSetting, match="control key"):
        KeyRing([SECRET], control_key=key)


def test_control_keys_rotate_with_their_secrets() -> None:
    rotated = KeyRing([OTHER, SECRET])
    assert rotated.control_key == KeyRing([OTHER]).control_key
    assert rotated.is_control(RING.control_key)
    assert not RING.is_control(rotated.control_key)
