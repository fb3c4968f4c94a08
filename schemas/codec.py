"""Bytes to records and back: MessagePack on the wire, JSON lines for people and files.

Both spellings have the same field names. They differ only in how a value is written:

    value                 MessagePack               JSON line
    per-token array       little-endian bytes       list of numbers (float32 in shortest text)
    message, metadata     its JSON text             the JSON itself
    digest, raw bytes     bytes                     hex text

How the contract may change, so that old and new programs read each other:

1. A new field is optional and has a default; a reader ignores fields it does not know.
2. A field never changes its type or its meaning, and its name is never used again.
3. A new record gets a new `type`; old readers dead-letter it as `unknown_type`.
4. Anything else raises the major version `v`, which old readers refuse as `unknown_version`.

Invariant: what `from_*` returns has passed every check of the contract; what it cannot use
raises `BadRecord` with a dead-letter code, never another error.
"""

import json
from typing import Any

import msgpack
import msgspec
import numpy as np
import orjson

from schemas.bad_record import BadRecord
from schemas.checks import check, score
from schemas.control import CONTROL_TYPES
from schemas.dead_letters import DEAD_LETTER_TYPES
from schemas.events import EVENT_TYPES, Reward, SessionEnded, Turn
from schemas.finite import builtin_of, finite_terms
from schemas.json_lines import read_python_spelling, split_fields, too_deep
from schemas.packed import PACKED_TYPES
from schemas.record import MAJOR_VERSION, TOKEN_ID_MAX, Floats, Ids, Octets, Record
from schemas.samples import SAMPLE_TYPES
from schemas.traces import TRACE_TYPES
from schemas.trained import TRAINED_TYPES

__all__ = ["BadRecord", "from_json", "from_msgpack", "settled", "to_json", "to_msgpack"]

_ALL = (
    *(*EVENT_TYPES, *SAMPLE_TYPES, *PACKED_TYPES, *TRACE_TYPES),
    *(*DEAD_LETTER_TYPES, *TRAINED_TYPES, *CONTROL_TYPES),
)
_TYPES: dict[str, type[Record]] = {str(kind.__struct_config__.tag): kind for kind in _ALL}
_REQUIRED = {
    kind: frozenset(field.name for field in msgspec.structs.fields(kind) if field.required)
    for kind in _ALL
}
_JSON_TEXTS = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.type is msgspec.Raw)
    for kind in _ALL
}

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
_MESSAGES = msgspec.json.Decoder(tuple[msgspec.Raw, ...])
_PAYLOAD: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_ONE_VALUE = msgspec.json.Decoder(msgspec.Raw)
_NULL = msgspec.Raw(b"null")
_REWARDED = (Turn, Reward, SessionEnded)


def from_json(line: bytes) -> Record:
    """A JSON line as a record."""
    reward = None
    try:
        fields = split_fields(line)
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        fields, reward = read_python_spelling(line, str(error))
    ids = _ids(fields)
    kind = _kind(_value(fields.get("type")), _value(fields.get("v")), ids)
    if reward is None and kind in _REWARDED and "reward" in fields:
        reward = _too_large(fields)
    required = _REQUIRED[kind]
    present = {k: v for k, v in fields.items() if v != _NULL or k in required}
    for name in _JSON_TEXTS[kind]:
        if present.get(name) == _NULL:
            raise BadRecord("invalid_field", f"`{name}` is missing", **ids)
    if reward is not None:
        present.pop("reward", None)
    if len(present) != len(fields) or reward is not None:
        # `null` means absent, also where a field's type has no null of its own.
        line = msgspec.json.encode(present)
    try:
        record = msgspec.json.decode(line, type=kind, dec_hook=_decode_json_value)
    except (ValueError, RecursionError) as error:
        raise BadRecord("invalid_field", str(error), **ids) from None
    if reward is not None and isinstance(record, _REWARDED):
        if isinstance(reward, bool) or not isinstance(reward, int | float | dict):
            raise BadRecord("invalid_field", f"a reward of {reward!r:.80}", **ids)
        record = msgspec.structs.replace(record, reward=reward)
    return _checked(record, ids)


def from_msgpack(data: bytes) -> Record:
    """Wire bytes as a record."""
    try:
        fields = msgpack.unpackb(data)
    except Exception as error:  # msgpack raises many kinds; all mean "not ours"
        raise BadRecord("undecodable", f"not MessagePack: {error!r:.200}") from None
    if not isinstance(fields, dict):
        raise BadRecord("undecodable", "the bytes are MessagePack, but not a map")
    ids = {k: v for k in ("session_id", "turn_id") if isinstance(v := fields.get(k), str)}
    kind = _kind(fields.get("type"), fields.get("v"), ids)
    required = _REQUIRED[kind]
    present = {k: v for k, v in fields.items() if v is not None or k in required}
    try:
        _texts_to_raw(kind, present)
        record = msgspec.convert(present, kind, dec_hook=_decode_wire_value)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRecord("invalid_field", str(error), **ids) from None
    return _checked(record, ids)


def to_json(record: Record) -> bytes:
    """A record as one JSON line, without its newline."""
    text = msgspec.json.encode(settled(record), enc_hook=_encode_json_value)
    # Inside JSON text a line break can only be blank space between tokens.
    return text.replace(b"\n", b" ").replace(b"\r", b" ")


def to_msgpack(record: Record) -> bytes:
    """A record as wire bytes."""
    fields = msgspec.to_builtins(
        settled(record), enc_hook=_encode_wire_value, builtin_types=(bytes,)
    )
    if isinstance(record, Turn):
        fields["prompt_messages"] = "[" + ",".join(fields["prompt_messages"]) + "]"
    if isinstance(fields.get("reward"), dict):
        fields["reward"] = msgspec.json.encode(fields["reward"]).decode()
    return bytes(msgpack.packb(fields))


def settled(record: Record) -> Record:
    """The one form of what can be said in two ways: no logprobs, a reward that is no number."""
    if isinstance(record, Turn) and record.logprobs is not None and not record.logprobs.size:
        record = msgspec.structs.replace(record, logprobs=None)
    if isinstance(record, _REWARDED) and record.reward is not None and score(record.reward) is None:
        record = msgspec.structs.replace(record, reward=None, reward_invalid=True)
    if isinstance(record, _REWARDED) and isinstance(record.reward, dict):
        record = msgspec.structs.replace(record, reward=finite_terms(record.reward))
    return record


def _checked(record: Record, ids: dict[str, str]) -> Record:
    try:
        record = settled(record)
        check(record)
    except BadRecord as error:
        raise BadRecord(error.code, error.detail, **ids) from None
    return record


def _kind(name: Any, version: Any, ids: dict[str, str]) -> type[Record]:
    if version is not None and version != MAJOR_VERSION:
        detail = f"version {version!r:.40}; this reader knows {MAJOR_VERSION}: upgrade the reader"
        raise BadRecord("unknown_version", detail, **ids)
    if name is None:
        raise BadRecord("invalid_field", "`type` is missing", **ids)
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BadRecord("unknown_type", f"no record has the type {name!r:.80}", **ids)
    return kind


def _too_large(fields: dict[str, msgspec.Raw]) -> Any:
    """A reward too large for a float is, like NaN, one that is no number."""
    try:
        msgspec.json.decode(fields["reward"])
    except msgspec.ValidationError:
        try:
            return json.loads(bytes(fields["reward"]))
        except ValueError:
            return None  # more digits than any reader takes: the typed reader says so
    return None


def _value(text: msgspec.Raw | None) -> Any:
    try:
        return None if text is None else msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return bytes(text or b"")


def _ids(fields: dict[str, msgspec.Raw]) -> dict[str, str]:
    values = {key: _value(fields.get(key)) for key in ("session_id", "turn_id")}
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _texts_to_raw(kind: type[Record], fields: dict[str, Any]) -> None:
    for name in _JSON_TEXTS[kind]:
        if (text := fields.get(name)) is not None:
            fields[name] = _read_text(_ONE_VALUE, name, text)
            if fields[name] == _NULL:
                del fields[name]
    if kind is Turn and "prompt_messages" in fields:
        text = fields["prompt_messages"]
        fields["prompt_messages"] = _read_text(_MESSAGES, "prompt_messages", text)
    if kind in _REWARDED and isinstance(fields.get("reward"), str):
        fields["reward"] = _read_text(_PAYLOAD, "reward", fields["reward"])
    elif kind in _REWARDED and isinstance(fields.get("reward"), dict):
        _check_map(fields["reward"])


def _read_text(reader: Any, name: str, text: Any) -> Any:
    if not isinstance(text, str | bytes):
        raise ValueError(f"`{name}` is not JSON text")
    try:
        data = text.encode() if isinstance(text, str) else text.decode().encode()
        if too_deep(data):
            raise ValueError("nested too deep")
        return reader.decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{name}`: {error}") from None


def _check_map(reward: dict[Any, Any]) -> None:
    """A payload written as a map has to have a JSON text, which is how it is passed on."""
    try:
        text = msgspec.json.encode(reward)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"`reward`: {error}") from None
    if too_deep(text):
        raise ValueError("`reward`: nested too deep")


def _decode_wire_value(kind: Any, value: Any) -> Any:
    if not isinstance(value, bytes):
        detail = f"Expected bytes, got {type(value).__name__}"
        raise TypeError(detail)
    if kind is Octets:
        return Octets(value)
    if kind is Ids:
        return np.frombuffer(value, _INT32)
    if kind is Floats:
        return np.frombuffer(value, _FLOAT32)
    raise AssertionError(f"no reader for {kind}")


def _decode_json_value(kind: Any, value: Any) -> Any:
    if kind is Octets:
        return Octets.fromhex(msgspec.convert(value, str))
    if kind is Ids:
        values = _listed(value, list[int])
        if values and not 0 <= min(values) <= max(values) <= TOKEN_ID_MAX:
            detail = f"Expected ids from 0 to {TOKEN_ID_MAX}, got {min(values)} to {max(values)}"
            raise ValueError(detail)
        array: Any = np.array(values, _INT32)
    elif kind is Floats:
        with np.errstate(over="ignore"):
            array = np.array(_listed(value, list[float]), _FLOAT32)
    else:
        raise AssertionError(f"no reader for {kind}")
    array.flags.writeable = False
    return array


def _listed(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        # The outer reader adds the field's name; its own path would replace it.
        raise ValueError(str(error).replace(" - at `$", " - at `")) from None


def _encode_json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # orjson writes a float32 as the shortest text that reads back to it; msgspec would
        # write the longer double.
        return msgspec.Raw(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    if isinstance(value, Octets):
        return value.hex()
    return _plain_number(value, "JSON")


def _encode_wire_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Octets):
        return bytes(value)
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    return _plain_number(value, "wire")


def _plain_number(value: Any, form: str) -> Any:
    """A numpy scalar as the number or truth value that it stands for."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return builtin_of(value)
    detail = f"{type(value).__name__} has no {form} form"
    raise TypeError(detail)
