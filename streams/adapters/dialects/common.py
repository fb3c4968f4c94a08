"""What every dialect does alike: JSON in and out, content as text, server-sent events.

Content in parts becomes one text, because that is what chat templates read:

    "hi"                                       ─┐
    [{"type": "text", "text": "hi"}]           ─┴─► "hi"
    [text "look", an image, text "what is it"] ───► "look", "[image omitted]", "what is it"

Invariant: whatever bytes a client sends, reading them gives a value or `CallRefused`, and what
is read can be written again: it is text without lone surrogates, nested no deeper than a record.
"""

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec

from schemas.json_lines import NESTING_MAX, too_deep
from streams.adapters.dialects.calls import CallRefused, Tool

T = TypeVar("T")

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

STOPS_MAX = 64
STOP_CHARACTERS_MAX = 16_384
JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream; charset=utf-8"

_WRITE = msgspec.json.Encoder().encode
_OBJECT = msgspec.json.Decoder(dict[str, Any])

# What a record nests around tool definitions and arguments, with some room to spare.
_AROUND = b"[" * 10

MENDED_ESCAPES_MAX = 500_000
"""Of a text, else it is refused as it is: five for each line of a full window."""
_ESCAPED_BACKSLASH, _SAME_LENGTH = rb"\\", b"\0\0"
_FIRST, _SECOND = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_FIRST, _SECOND, _FIRST, _SECOND))
"""Of a surrogate pair, alone, in a text without escaped backslashes."""
_MISFIT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


class ContextOverflow(CallRefused):
    """The prompt does not fit; worded so that clients recognise it and compact."""

    def __init__(self, prompt_tokens: int, limit_tokens: int) -> None:
        """Both counts, for the dialects that word it in their own way."""
        message = (
            f"This model's maximum context length is {limit_tokens} tokens, but the prompt has"
            f" {prompt_tokens} tokens. Reduce the length of the messages."
        )
        super().__init__(400, message, code="context_length_exceeded", param="messages")
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


def refused(param: str, why: str, code: str | None = None) -> CallRefused:
    """A request that is wrong in one place, or asks there for what cannot be given."""
    return CallRefused(400, f"`{param}` {why}.", code=code, param=param)


def read_stops(texts: Iterable[str], param: str) -> tuple[str, ...]:
    """Texts that end an answer; each is looked for at every token."""
    stops = tuple(text for text in texts if text)
    if len(stops) > STOPS_MAX:
        raise refused(param, f"has {len(stops)} texts, {STOPS_MAX} are allowed")
    size = sum(map(len, stops))
    if size > STOP_CHARACTERS_MAX:
        raise refused(param, f"has {size} characters, {STOP_CHARACTERS_MAX} are allowed")
    return stops


# ---------------------------------------------------------------------------- JSON


def read_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """A request's body as the decoder's type."""
    try:
        return _read(decoder, body)
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from None
    except RecursionError:
        raise CallRefused(400, "The body is nested too deep.") from None
    except ValueError as error:
        raise CallRefused(400, f"The body is not JSON in UTF-8: {error}.") from None


def _read(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except ValueError:
        return decoder.decode(_mended(text))


def _mended(text: bytes) -> bytes:
    # Clients written in JavaScript cut texts between the two halves of a character and send the
    # lone half as an escape. It has no UTF-8 and no token; refusing it would end the session.
    # Python runs for none of the escapes: a body may hold millions, and the event loop waits.
    if b"\0" in text:
        return text  # no JSON, and what stands for a backslash would be mistaken
    if text.count(b"\\") > MENDED_ESCAPES_MAX:
        return text
    bare = text.replace(_ESCAPED_BACKSLASH, _SAME_LENGTH)
    mended = _HALF.sub(rb"\\ufffd", bare)
    return mended.replace(_SAME_LENGTH, _ESCAPED_BACKSLASH)


def _misfit(error: str) -> CallRefused:
    """What msgspec found, in the words of the API: which field, and what is wrong with it."""
    found = _MISFIT.fullmatch(error)
    what, where = (found["what"], found["where"]) if found else (error, None)
    missing = _MISSING.fullmatch(what)
    if missing:
        return refused(f"{where}.{missing[1]}" if where else missing[1], "is missing")
    what = what[:1].lower() + what[1:]
    return refused(where, f"is wrong: {what}") if where else CallRefused(400, f"The body: {what}.")


def to_json(value: Any) -> bytes:
    """JSON text; half a character, which a model may spell as an escape, is replaced."""
    try:
        return _WRITE(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def read_arguments(arguments: str | dict[str, Any] | None) -> dict[str, Any] | str:
    """A call's arguments as an object; the raw text where it is no JSON object."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or not arguments.strip():
        return {}
    text = arguments.encode()
    if too_deep(_AROUND + text):
        return arguments
    try:
        return _read(_OBJECT, text)
    except ValueError:
        return arguments


def function_tool(name: str, description: str | None, schema: Any, param: str) -> Tool:
    """A function that can be called; `param` is where its arguments are described."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if schema is not None:
        check_nesting(schema, param)
        function["parameters"] = schema
    return {"type": "function", "function": function}


def check_nesting(value: Any, param: str) -> None:
    """Refuse what a record could not hold."""
    if too_deep(_AROUND + _WRITE(value)):
        raise refused(param, f"is nested deeper than {NESTING_MAX - len(_AROUND)}")


# ---------------------------------------------------------------------------- content


class Part(msgspec.Struct):
    """One part of a message's content; cache marks, ids and annotations are not read."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


Content = str | list[Part | str] | None

_TEXTS = {"text", "input_text", "output_text"}
_OMITTED = {
    **dict.fromkeys(("image_url", "input_image", "image"), "[image omitted]"),
    **dict.fromkeys(("input_audio", "audio_url", "audio"), "[audio omitted]"),
    **dict.fromkeys(("file", "input_file", "document"), "[file omitted]"),
    **dict.fromkeys(("video_url", "input_video", "video"), "[video omitted]"),
}
AUDIO_OMITTED = _OMITTED["audio"]
IMAGE_OMITTED = _OMITTED["image"]


def omitted(kind: str) -> str | None:
    """What stands for a part that is no text; None if such a part is not known."""
    return _OMITTED.get(kind)


def flatten(content: Content, param: str, *, between: str = "\n") -> tuple[str, int]:
    """Content as one text, and how many of its parts are only placeholders there."""
    if isinstance(content, str):
        return content, 0
    texts: list[str] = []
    placeholders = 0
    for index, part in enumerate(content or ()):
        if isinstance(part, str):
            texts.append(part)
        elif part.type in _OMITTED:
            texts.append(_OMITTED[part.type])
            placeholders += 1
        else:
            texts.append(_text_of(part, f"{param}[{index}]"))
    return joined(texts, between), placeholders


def joined(texts: Iterable[str | None], between: str) -> str:
    """The texts that say something, as one."""
    return between.join(text for text in texts if text)


def _text_of(part: Part, param: str) -> str:
    if part.type in _TEXTS:
        field, text = "text", part.text
    elif part.type == "refusal":
        field, text = "refusal", part.refusal
    else:
        raise refused(f"{param}.type", f"is {part.type!r:.80}, which is not supported here")
    if text is None:
        raise refused(f"{param}.{field}", "is missing")
    return text


# ---------------------------------------------------------------------------- events


def event(data: bytes, name: str | None = None) -> bytes:
    """One server-sent event; JSON text has no bare line break, so one data line is enough."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + data + b"\n\n"
