"""How often a run was restored before: the control topic says so.

A life that died before it saved anything leaves no trace in a checkpoint, but its weights were
announced to the gateways (`resumed` with its epoch), and sessions may carry that epoch. The next
life has to be a later one.

Invariant: at most what stands in the control topic now is read.
"""

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.control import Resumed
from streams.errors import LogAway
from streams.log.interface import Log
from streams.settings import Settings

_WAIT_S = 0.5


async def epochs_of(log: Log, settings: Settings, run_id: str | None) -> int:
    """The highest epoch that any gateway was told of for this run; 0 if there is none."""
    topic = settings.control_topic
    ends = await log.end_positions(topic)
    reader = await log.read(topic, await log.start_positions(topic))
    highest = 0
    try:
        while any(at < ends[partition] for partition, at in reader.positions.items()):
            if reader.silent_s > settings.request_timeout_s:
                raise LogAway(f"read {topic}: no answer in {settings.request_timeout_s:g} s")
            for entry in await reader.next_batch(_WAIT_S):
                try:
                    record = codec.from_msgpack(entry.value or b"")
                except BadRecord:
                    continue  # nobody's, as for the gateways
                if isinstance(record, Resumed) and run_id in (None, record.run_id):
                    highest = max(highest, record.run_epoch)
    finally:
        await reader.close()
    return highest
