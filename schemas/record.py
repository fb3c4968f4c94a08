"""What every record shares: field types, the identity of a rollout, equality.

Per-token data is a read-only numpy array (int32 ids, float32 logprobs). JSON payloads
(messages, tools, metadata) stay JSON *text*, so big integers and number spellings survive
every hop. `None`, or `NOT_GIVEN` for a payload, always means "not given".
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

MAJOR_VERSION = 1
UNKNOWN_VERSION = -1
"""A weight version that nobody could tell, in a run that has versions: older than every other."""
TOKEN_ID_MAX = 2**31 - 1

if TYPE_CHECKING:
    Ids = npt.NDArray[np.int32]
    Floats = npt.NDArray[np.float32]
else:

    class _ArrayKind(type):
        """A class whose instances are the arrays of its dtype."""

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, np.ndarray) and value.dtype == cls.dtype

    # Classes of our own: msgspec hands them to the codec's hooks as they are, whereas numpy's
    # generic alias comes back rebuilt, and whether that is equal depends on numpy's version.
    class Ids(metaclass=_ArrayKind):
        """Token ids."""

        dtype = np.dtype("<i4")

    class Floats(metaclass=_ArrayKind):
        """A number for each token."""

        dtype = np.dtype("<f4")


NOT_GIVEN = msgspec.Raw()
"""The empty text: this payload is absent. (A payload cannot be `None`: JSON null is absent.)"""


class Octets(bytes):
    """Raw bytes: bytes in MessagePack, lower-case hex in a JSON line."""


SessionId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,200}\Z")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
COUNT_MAX = 2**63 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Split = Literal["train", "eval"]


class Compared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, eq=False):
    """Equal if type and fields are; arrays compare by content."""

    def __eq__(self, other: object) -> bool:
        """Equal type and fields."""
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _same(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__
        )

    def __ne__(self, other: object) -> bool:
        """Not equal; msgspec would compare identity otherwise."""
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # they hold arrays; nothing may key on one


class Record(Compared, frozen=True, kw_only=True, tag_field="type"):
    """A frozen record; unset fields are left out of both spellings."""

    v: int = MAJOR_VERSION
    """Major version of the contract; a reader refuses one it does not know."""


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return left is right or (
            left is not None and right is not None and np.array_equal(left, right)
        )
    return bool(left == right)


class Identified(Record, frozen=True, kw_only=True):
    """A record that may say which rollout its session is; the first value given wins."""

    session_id: SessionId
    run_id: Name | None = None
    run_epoch: Count | None = None
    """From 0; restoring a trainer's checkpoint raises it."""
    task_id: Name | None = None
    group_id: Name | None = None
    group_size: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    rollout_index: Count | None = None
    """The slot in the group. Without one each session is its own slot."""
    attempt: Count | None = None
    """From 0; the highest attempt at a slot wins."""
    split: Split | None = None
    step: Count | None = None


IDENTITY_FIELDS = (
    "run_id",
    "run_epoch",
    "task_id",
    "group_id",
    "group_size",
    "rollout_index",
    "attempt",
    "split",
    "step",
)


def json_text(value: Any) -> msgspec.Raw:
    """A JSON value as the text that payload fields hold."""
    return msgspec.Raw(msgspec.json.encode(value))
