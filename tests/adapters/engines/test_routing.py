"""Where a session is sent."""

import pytest

from streams.adapters.engines.routing import (
    AWAY_S,
    Replicas,
    addresses_of,
    shown,
    without_password,
)
from streams.errors import BadSetting

FOUR = tuple(f"http://engine-{n}:30000" for n in range(4))
KEYS = [f"session-{n}" for n in range(2000)]


def homes(addresses: tuple[str, ...]) -> dict[str, str]:
    replicas = Replicas(addresses)
    return {key: replicas.order(key)[0] for key in KEYS}


def test_sessions_spread_over_all_replicas() -> None:
    counts = [list(homes(FOUR).values()).count(address) for address in FOUR]
    assert sum(counts) == len(KEYS)
    assert min(counts) > len(KEYS) / 4 * 0.8


def test_one_replica_less_moves_only_its_own_sessions() -> None:
    before, after = homes(FOUR), homes(FOUR[:3])
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == FOUR[3]}


def test_the_order_of_addresses_does_not_matter() -> None:
    assert homes(FOUR) == homes(FOUR[::-1])


def test_a_replica_that_is_away_is_asked_last_for_a_while() -> None:
    now_s = 100.0
    replicas = Replicas(FOUR, clock_s=lambda: now_s)
    order = replicas.order("k")
    replicas.failed(order[0])
    assert replicas.order("k") == [*order[1:], order[0]]
    now_s += AWAY_S
    assert replicas.order("k") == order
    replicas.failed(order[0])
    replicas.answered(order[0])
    assert replicas.order("k") == order


def test_addresses_are_read_with_commas_between() -> None:
    assert addresses_of("http://a:1/, https://b") == ("http://a:1", "https://b")


NONE = ["", "a:1", "http://", "http://a:1,", "http://a:1,http://a:1/", "http://a:one", "http://[a"]
NONE += ["http://a:99999", "http://a:1?b=c", "http://u:p@a:1,http://v:q@a:1", "ftp://u:p@a"]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="address") as refused:
        addresses_of(text)
    assert "u:p" not in str(refused.value)


def test_a_password_is_told_apart_from_its_address() -> None:
    (address,) = addresses_of("https://me:a%40b@engine:1/path/")
    assert without_password(address) == ("https://engine:1/path", ("me", "a@b"))
    assert without_password("http://[::1]:1") == ("http://[::1]:1", None)
    assert without_password("http://me@a") == ("http://a", ("me", ""))


SHOWN = {
    "http://a:1": "http://a:1",
    "http://u:p@a:1": "http://a:1",
    "sglang:http://u:p/w@a:1": "sglang:http://a:1",
    "http://u:p@w@a": "http://a",
    "p@a": "a",
}


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_shown_has_no_password_in_it(text: str) -> None:
    assert shown(text) == SHOWN[text]
