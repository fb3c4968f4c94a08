"""No installed version of a package may change what a record is read as without an error.

The classes that stand for arrays in the records' fields are recognised by identity, a field of a
kind that no reader knows is an error, and every command makes a round trip before it begins.
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from msgspec import inspect

from schemas import codec, round_trip
from schemas.record import Floats, Ids, Octets, Record
from schemas.round_trip import PACKAGES, RecordsChanged, check_round_trip, versions
from streams.adapters.environments import Recorder
from streams.cli.main import COMMANDS, UNCHECKED, cli
from streams.trainer import subscribe


class Wide(Record, frozen=True, kw_only=True, tag="wide"):
    """A field of a kind that the codec has no reader for."""

    numbers: npt.NDArray[np.int64]


@pytest.fixture
def floats_for_ids(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Wire bytes are read as float32, as numpy 2.5 once had it."""
    monkeypatch.setattr(codec, "_INT32", np.dtype("<f4"))
    check_round_trip.cache_clear()
    yield
    check_round_trip.cache_clear()


def custom_kinds(kind: inspect.Type) -> set[type]:
    if isinstance(kind, inspect.CustomType):
        return {kind.cls}
    parts: list[inspect.Type] = []
    for name in ("types", "item_types"):
        parts += getattr(kind, name, ())
    for name in ("item_type", "key_type", "value_type"):
        if isinstance(part := getattr(kind, name, None), inspect.Type):
            parts.append(part)
    if isinstance(kind, inspect.StructType):
        parts += [field.type for field in kind.fields]
    return set().union(*map(custom_kinds, parts))


@pytest.mark.parametrize("record", codec._ALL, ids=lambda kind: kind.__name__)
def test_every_field_is_of_a_kind_that_the_codec_reads(record: type[Record]) -> None:
    assert custom_kinds(inspect.type_info(record)) <= {Ids, Floats, Octets}


@pytest.mark.parametrize("read", [codec._decode_wire_value, codec._decode_json_value])
def test_a_field_of_an_unknown_kind_is_an_error_and_never_floats(read: Any) -> None:
    with pytest.raises(AssertionError, match="no reader for"):
        msgspec.convert({"type": "wide", "numbers": b"12345678"}, Wide, dec_hook=read)


@pytest.mark.parametrize("spelt", ["wire", "json"])
def test_arrays_of_the_other_kind_are_refused(spelt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = codec.from_json(round_trip._LINES[1])
    data = codec.to_msgpack(record) if spelt == "wire" else codec.to_json(record)
    monkeypatch.setattr(codec, "_INT32", np.dtype("<f4"))
    with pytest.raises(codec.BadRecord, match="Expected `Ids`"):
        codec.from_msgpack(data) if spelt == "wire" else codec.from_json(data)


def test_a_turn_and_a_sample_are_read_back_as_written_here() -> None:
    check_round_trip.cache_clear()
    check_round_trip()


@pytest.mark.usefixtures("floats_for_ids")
def test_what_is_read_back_otherwise_names_the_packages_and_what_to_install() -> None:
    with pytest.raises(RecordsChanged) as caught:
        check_round_trip()
    assert versions() in str(caught.value)
    assert "install other versions, e.g. pip install 'numpy<" in str(caught.value)
    assert all(package in str(caught.value) for package in PACKAGES)


@pytest.mark.usefixtures("floats_for_ids")
@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - UNCHECKED))
def test_no_command_begins_where_records_are_read_otherwise(command: str) -> None:
    done = CliRunner().invoke(cli, [command, "--help"])
    assert done.exit_code == 1
    assert "turnstream: a record is not read back as it was written with" in done.output


@pytest.mark.usefixtures("floats_for_ids")
def test_the_doctor_says_so_instead_of_that_all_is_well() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--log", "none.db"])
    assert done.exit_code == 1
    assert "FAIL  records" in done.output
    assert "-> install other versions" in done.output


@pytest.mark.usefixtures("floats_for_ids")
def test_neither_recorder_nor_trainer_begins() -> None:
    with pytest.raises(RecordsChanged):
        Recorder()
    with pytest.raises(RecordsChanged):
        subscribe("none.db", batch_groups=1)
