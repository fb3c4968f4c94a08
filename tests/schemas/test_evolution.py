"""How the contract may change, so that old and new programs read each other.

    an old reader, a new event    unknown fields are ignored, at every depth
    a new reader, an old event    every optional field may be missing and has its default
    a new record                  old readers refuse the type, and only that line
    anything else                 a new major version, which old readers refuse

Both spellings follow the same rules.
"""

import json
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest

from schemas.codec import BadRecord, from_json, from_msgpack, to_json, to_msgpack
from schemas.record import MAJOR_VERSION, Record
from tests.schemas.records import FULL, MINIMAL, name

Json = dict[str, Any]
every_type = pytest.mark.parametrize("record", FULL, ids=map(name, FULL))

UNKNOWN: Json = {
    "field_of_tomorrow": {"deep": [1, {"v": 2}]},
    "another": None,
    "third": "text",
    "zero": 0,
}
# Structs that stand inside records: a new field may appear there, too.
INNER = ("sampling", "reason")
INNER_LISTS = ("ledger", "turns")


def with_unknown_fields(fields: Json) -> Json:
    """The same record as a newer program would write it."""
    grown = UNKNOWN | fields
    for key in INNER:
        if isinstance(grown.get(key), dict):
            grown[key] = UNKNOWN | grown[key]
    for key in INNER_LISTS:
        if isinstance(grown.get(key), list):
            grown[key] = [UNKNOWN | item for item in grown[key]]
    if isinstance(grown.get("channels"), dict):
        grown["channels"] = {k: UNKNOWN | item for k, item in grown["channels"].items()}
    return grown


def line(fields: Json) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def wire(fields: Json) -> bytes:
    return bytes(msgpack.packb(fields))


def from_line(fields: Json) -> Record:
    return from_json(line(fields))


def from_wire(fields: Json) -> Record:
    return from_msgpack(wire(fields))


@every_type
def test_an_old_reader_reads_a_new_json_line(record: Record) -> None:
    fields = with_unknown_fields(json.loads(to_json(record)))
    assert from_json(line(fields)) == record


@every_type
def test_an_old_reader_reads_new_wire_bytes(record: Record) -> None:
    fields = with_unknown_fields(msgpack.unpackb(to_msgpack(record)))
    assert from_msgpack(wire(fields)) == record


OPTIONAL = {
    f"{name(record)}.{field.name}": (record, field)
    for record in FULL
    for field in msgspec.structs.fields(record)
    if not field.required and field.name != "v"
}


@pytest.mark.parametrize(("record", "field"), OPTIONAL.values(), ids=OPTIONAL)
def test_a_new_reader_reads_an_old_event_without_a_newer_field(
    record: Record, field: msgspec.structs.FieldInfo
) -> None:
    dependent = {"base_turn_id": ("kept_messages", "kept_ids")}.get(field.name, ())
    spellings: tuple[tuple[Json, Callable[[Json], Record]], ...] = (
        (json.loads(to_json(record)), from_line),
        (msgpack.unpackb(to_msgpack(record)), from_wire),
    )
    for fields, read in spellings:
        old = {k: v for k, v in fields.items() if k != field.name and k not in dependent}
        again = read(old)
        assert getattr(again, field.name) == _default(field)
        assert set(json.loads(to_json(again))) == set(old)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


@pytest.mark.parametrize("record", MINIMAL, ids=map(name, MINIMAL))
def test_the_oldest_event_has_only_what_is_required(record: Record) -> None:
    required = {field.name for field in msgspec.structs.fields(record) if field.required}
    required |= {"reward"} if name(record) == "reward" else set()
    fields = json.loads(to_json(record))
    for missing in sorted(required):
        old = {key: value for key, value in fields.items() if key != missing}
        with pytest.raises(BadRecord) as refused:
            from_json(line(old))
        assert refused.value.code == "invalid_field"
        assert missing in refused.value.detail


@every_type
@pytest.mark.parametrize("version", [MAJOR_VERSION + 1, 0, -1, 10**30, "1", "x", [], {}, 1.5])
def test_an_unknown_major_version_is_refused(record: Record, version: object) -> None:
    fields = json.loads(to_json(record)) | {"v": version}
    with pytest.raises(BadRecord) as refused:
        from_json(line(fields))
    assert refused.value.code == "unknown_version"
    assert refused.value.session_id == fields.get("session_id")
    assert refused.value.turn_id == fields.get("turn_id")
    if version != 10**30:
        with pytest.raises(BadRecord) as refused:
            from_msgpack(wire(msgpack.unpackb(to_msgpack(record)) | {"v": version}))
        assert refused.value.code == "unknown_version"


def test_an_unknown_version_may_change_everything_else() -> None:
    # What the type is called, and what is in it, is for the readers of that version.
    for fields in ({"v": 2}, {"v": 2, "type": "nobody knows"}, {"v": 2, "type": {"a": 1}}):
        with pytest.raises(BadRecord) as refused:
            from_json(line(fields))
        assert refused.value.code == "unknown_version"
        with pytest.raises(BadRecord) as refused:
            from_msgpack(wire(fields))
        assert refused.value.code == "unknown_version"


@every_type
def test_the_known_version_may_be_written_down(record: Record) -> None:
    for version in (MAJOR_VERSION, None):
        assert from_json(line(json.loads(to_json(record)) | {"v": version})) == record
        assert from_msgpack(wire(msgpack.unpackb(to_msgpack(record)) | {"v": version})) == record


@pytest.mark.parametrize("kind", ["turn_split", "Turn", "", 7, ["turn"], {"turn": 1}, True])
def test_an_unknown_type_is_refused(kind: object) -> None:
    fields = {"type": kind, "session_id": "s", "turn_id": "t1", "anything": 1}
    for read in (from_line, from_wire):
        with pytest.raises(BadRecord) as refused:
            read(fields)
        assert refused.value.code == "unknown_type"
        assert (refused.value.session_id, refused.value.turn_id) == ("s", "t1")


def test_a_line_without_a_type_is_refused() -> None:
    for fields in ({"session_id": "s"}, {"session_id": "s", "type": None}):
        with pytest.raises(BadRecord) as refused:
            from_json(line(fields))
        assert (refused.value.code, refused.value.session_id) == ("invalid_field", "s")
