"""Whether the packages installed here read a record back as it was written.

A record passes through numpy, msgspec, msgpack and orjson. A version of one of them that changes
how a field is read would turn token ids into other numbers without an error, so every service
makes this check when it starts, before it reads or writes a record.

Invariant: after `check_round_trip` a turn and a sample have gone from JSON over the wire to JSON
and are the same text.
"""

import platform
from functools import cache
from importlib import metadata

from schemas import codec

PACKAGES = ("numpy", "msgspec", "msgpack", "orjson")
_LINES = (
    b'{"type":"turn","session_id":"s","turn_id":"t","prompt_messages":'
    b'[{"role":"user","content":"\\u00e9 12345678901234567890"}],"prompt_ids":[151645,3],'
    b'"output_ids":[2147483647,0],"logprobs":[-0.1,-2.5],"response_message":{"role":"assistant"},'
    b'"weight_versions":[[7,2]],"channels":{"c":{"dtype":"int8","shape":[2],"data":"0102"}},'
    b'"reward":{"score":0.5},"prompt_digest":"000102030405060708090a0b0c0d0e0f"}',
    b'{"type":"sample","session_id":"s","sample_id":"a","index":0,"count":1,'
    b'"tokens":[151645,3,7],"prompt_len":1,"loss_mask":[[1,3]],"logprobs":[0.0,-0.1,-2.5],'
    b'"reward":1.0,"session_reward":1.0,"policy":"seed","revision":0,'
    b'"turns":[{"turn_id":"t","start":1,"end":3,"attach":"root"}]}',
)


class RecordsChanged(Exception):
    """Records are not read back as they were written; the text names packages and versions."""


@cache
def check_round_trip() -> None:
    """Take a turn and a sample through both spellings.

    Raises:
        RecordsChanged: what came back is not what went in.
    """
    for line in _LINES:
        try:
            record = codec.from_json(line)
            back = codec.from_msgpack(codec.to_msgpack(record))
            if back == record and codec.to_json(back) == line:
                continue
            trouble = f"it came back as {codec.to_json(back)[:400].decode(errors='replace')}"
        except Exception as error:  # whatever a changed package raises
            trouble = f"{type(error).__name__}: {error}"
        raise RecordsChanged(_explained(trouble))


def versions() -> str:
    """Of Python and of the packages that records pass through."""
    named = [f"{package} {metadata.version(package)}" for package in PACKAGES]
    return ", ".join([*named, f"Python {platform.python_version()}"])


def _explained(trouble: str) -> str:
    older = " ".join(f"'{package}<{metadata.version(package)}'" for package in PACKAGES[:2])
    return (
        f"a record is not read back as it was written with {versions()}: {trouble}; "
        f"install other versions, e.g. pip install {older}"
    )
