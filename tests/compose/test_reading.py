"""A compose file is read as compose reads it, and what is not understood is refused."""

import pytest

from tests.compose.compose_file import BadCompose, interpolate, read_services, seconds

GIVEN = {"SET": "value", "EMPTY": ""}
FILLED = {
    "nothing to fill": "nothing to fill",
    "$SET-$EMPTY-$MISSING": "value--",
    "${SET} ${EMPTY} ${MISSING}": "value  ",
    "${SET:-other} ${EMPTY:-other} ${MISSING:-other}": "value other other",
    "${SET-other} ${EMPTY-other} ${MISSING-other}": "value  other",
    "${SET:+other} ${EMPTY:+other} ${MISSING:+other}": "other  ",
    "${SET+other} ${EMPTY+other} ${MISSING+other}": "other other ",
    "${SET:?why} ${EMPTY?why}": "value ",
    "${MISSING:-host:9092}": "host:9092",
    "${MISSING:-}": "",
    "$$SET $${SET}": "$SET ${SET}",
}


@pytest.mark.parametrize(("text", "filled"), FILLED.items(), ids=FILLED)
def test_a_variable_is_filled_in(text: str, filled: str) -> None:
    assert interpolate(text, GIVEN) == filled


@pytest.mark.parametrize(
    "text", ["${MISSING:?why}", "${EMPTY:?why}", "${MISSING?why}", "${SET", "$", "${A:-${B}}", "$1"]
)
def test_a_variable_that_is_required_or_misspelt_is_an_error(text: str) -> None:
    with pytest.raises(BadCompose):
        interpolate(text, GIVEN)


DURATIONS = {"10s": 10, "1m": 60, "1m30s": 90, "2h": 7200, "500ms": 0.5, "1s50ms": 1.05, "0s": 0}


@pytest.mark.parametrize(("text", "number"), DURATIONS.items())
def test_a_duration_is_a_number_of_seconds(text: str, number: float) -> None:
    assert seconds(text) == number


@pytest.mark.parametrize("text", ["", "10", "s", "1.5s", "-1s", "10 s"])
def test_what_is_no_duration_is_an_error(text: str) -> None:
    with pytest.raises(BadCompose):
        seconds(text)


def test_shared_parts_are_merged_and_a_service_may_add_to_them() -> None:
    text = """
x-shared: &shared
  image: i
  environment: &environment {A: 1, B: "${B:-b}"}
services:
  plain: {<<: *shared, command: [run]}
  other:
    <<: *shared
    environment: {<<: *environment, B: no, C: 12:30}
"""
    read = read_services(text, {})
    assert read["plain"].environment == {"A": "1", "B": "b"}
    assert read["plain"].command == ["run"]
    assert read["other"].environment == {"A": "1", "B": "no", "C": "12:30"}


NOT_UNDERSTOOD = {
    "an option": "network_mode: host",
    "an option of the health check": "healthcheck: {test: [CMD, x], disable: true}",
    "a health check as one text": "healthcheck: {test: [x]}",
}


@pytest.mark.parametrize("option", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
def test_what_this_reader_does_not_understand_is_an_error(option: str) -> None:
    with pytest.raises(BadCompose):
        read_services(f"services:\n  one:\n    image: i\n    {option}\n", {})
