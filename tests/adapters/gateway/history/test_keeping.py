"""What a client kept of an answer: the first of everything that was sampled."""

import numpy as np

from schemas import codec
from schemas.events import Channel, Turn
from schemas.record import Octets, json_text
from streams.adapters.gateway.history.keeping import Part, part_of

WHOLE = Turn(
    session_id="s",
    turn_id="t",
    prompt_messages=(json_text({"role": "user"}),),
    prompt_ids=np.asarray([1], np.int32),
    output_ids=np.asarray([5, 6, 7, 8], np.int32),
    logprobs=np.asarray([-1, -2, -3, -4], np.float32),
    weight_versions=[(1, 2), (2, 2)],
    continued_at=[(1, None), (2, True), (3, False)],
    channels={
        "inside": Channel(dtype="int16", shape=[4, 2], data=Octets(range(16))),
        "beside": Channel(dtype="int16", shape=[4, 2], blob="ab" * 16, length=16),
    },
)


def test_versions_joins_and_channels_are_cut_with_the_ids() -> None:
    part = part_of(WHOLE, Part(2, (), {"role": "assistant"}), turn_id="p")
    assert part.output_ids.tolist() == [5, 6]
    assert (part.weight_versions, part.continued_at) == ([(1, 2)], [(1, None)])
    inside = Channel(dtype="int16", shape=[2, 2], data=Octets(range(8)))
    assert part.channels == {"inside": inside}  # nobody has cut the blob
    codec.from_msgpack(codec.to_msgpack(part))


def test_what_was_encoded_anew_has_rows_of_zeros() -> None:
    part = part_of(WHOLE, Part(3, (9,), {"role": "assistant"}), turn_id="p")
    assert part.output_ids.tolist() == [5, 6, 7, 9]
    assert part.continued_at == [(1, None), (2, True)]
    data = Octets(bytes(range(12)) + bytes(4))
    assert part.channels == {"inside": Channel(dtype="int16", shape=[4, 2], data=data)}
    codec.from_msgpack(codec.to_msgpack(part))
