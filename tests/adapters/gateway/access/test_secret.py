"""Where secrets come from: made once, whole, and for their owner alone."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streams.adapters.gateway.access.keys import KeyRing
from streams.adapters.gateway.access.minted import Kind, Minter
from streams.adapters.gateway.access.secret import derived, secrets_from, secrets_of
from streams.errors import BadSetting


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secret"
    first = secrets_from(path)
    assert secrets_from(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["secret"]
    assert len(first[0]) >= 43


def test_two_places_have_two_secrets(tmp_path: Path) -> None:
    assert secrets_from(tmp_path / "a") != secrets_from(tmp_path / "b")


def test_all_that_start_at_once_have_the_same_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = set(threads.map(secrets_from, [tmp_path / "secret"] * 64))
    assert len(found) == 1


def test_lines_are_secrets_and_the_first_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("# since spring\nthe newer secret here\n\n  the older secret here \n")
    assert secrets_from(path) == (b"the newer secret here", b"the older secret here")


@pytest.mark.parametrize("text", ["", "\n", "# nothing", "short", "long enough for one\nshort"])
def test_what_can_be_guessed_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    with pytest.raises(BadSetting, match=str(path)):
        secrets_from(path)
    with pytest.raises(BadSetting, match="TURNSTREAM_SECRET"):
        secrets_of(text, "TURNSTREAM_SECRET")


def test_a_secret_is_never_part_of_an_error() -> None:
    with pytest.raises(BadSetting) as refused:
        secrets_of("hidden", "TURNSTREAM_SECRET")
    assert "hidden" not in str(refused.value)


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="file/secret"):
        secrets_from(tmp_path / "file" / "secret")
    (tmp_path / "bytes").write_bytes(b"\xff" * 40)
    with pytest.raises(BadSetting, match="bytes"):
        secrets_from(tmp_path / "bytes")


def test_each_use_has_a_key_of_its_own() -> None:
    secret = b"a secret of the tests, never used elsewhere"
    assert derived(secret, b"one") != derived(secret, b"two")
    ring, minter = KeyRing([secret]), Minter([secret])
    assert minter.recognise(ring.mint("s", 1)) is None
    assert not ring.is_control(
        minter.mint(Kind.ANSWER, "s", "abcdefghijklmnop", index=0, prefix="msg_")
    )
