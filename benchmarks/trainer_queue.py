"""TransferQueue's side: its store, in memory, in processes of its own; keys in, tensors out.

    store    its controller and two units of storage, as many as it starts by itself
    write    kv_batch_put, a group at a time
    read     kv_list until a batch is there, kv_batch_get, kv_clear, for every batch

Everything goes through its own ZeroMQ sockets. It has Ray start the processes behind them, and
tell where they are; here they are started without, since a Ray cluster takes minutes on a busy
machine and does nothing for the figures. It is given ids as int32, half of what verl puts, and no
column but the three that are compared.

Invariant: this module needs the standard library and numpy alone, until it is the child.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.trainer_child import Worker, serve
from benchmarks.trainer_load import BATCH, Seen, content, groups

PARTITION = "train"
UNITS = 2
_POLL_S = 0.005


def store(folder: str) -> None:
    """Until stdin ends."""
    with contextlib.ExitStack() as stack:
        parts = [
            stack.enter_context(Worker("benchmarks.trainer_queue", role, folder))
            for role in ("controller", *["unit"] * UNITS)
        ]
        _tell({"address": json.dumps([part.ready() for part in parts])})
        sys.stdin.read()


def part(role: str) -> None:
    """The controller, or a unit of storage, until stdin ends."""
    if role == "controller":
        made = _loaded("transfer_queue.controller").TransferQueueController()
    else:
        made = _loaded("transfer_queue.storage.simple_storage").SimpleStorageUnit(
            {"num_data_storage_units": UNITS}
        )
    where = made.get_zmq_server_info()
    _tell({"id": where.id, "ip": where.ip, "ports": where.ports})
    sys.stdin.read()
    sys.stdout.flush()
    os._exit(0)  # the controller's threads know no end


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _loaded(module: str) -> Any:
    """A module of the package, whose classes are plain ones, on loopback."""
    ray: Any = importlib.import_module("ray")
    ray.remote = _plain
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    return importlib.import_module(module)


def _plain(**_options: Any) -> Callable[[type], type]:
    return lambda kind: kind


def _connected(address: str) -> Any:
    interface = _loaded("transfer_queue.interface")
    sockets = importlib.import_module("transfer_queue.utils.zmq_utils")
    roles = importlib.import_module("transfer_queue.utils.enum_utils").Role
    conf = importlib.import_module("omegaconf").OmegaConf.create({}, flags={"allow_objects": True})
    controller, *units = json.loads(address)
    conf.controller = {"zmq_info": sockets.ZMQServerInfo(roles.CONTROLLER, **controller)}
    found = {one["id"]: sockets.ZMQServerInfo(roles.STORAGE, **one) for one in units}
    conf.backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"zmq_info": found}}
    interface._maybe_create_tq_client(conf)
    return interface


def write(queue: Any, count: int, tokens: int) -> dict[str, Any]:
    """All of them."""
    torch: Any = importlib.import_module("torch")
    tensordict: Any = importlib.import_module("tensordict")
    for numbers in groups(count):
        contents = [content(number, tokens) for number in numbers]
        columns = {
            "input_ids": torch.from_numpy(np.stack([one.ids_T for one in contents])),
            "loss_mask": torch.from_numpy(np.stack([one.mask_T for one in contents])),
            "logprobs": torch.from_numpy(np.stack([one.logprobs_T for one in contents])),
        }
        queue.kv_batch_put(
            keys=[f"{numbers[0]}_{number}" for number in numbers],
            partition_id=PARTITION,
            fields=tensordict.TensorDict(columns, batch_size=len(contents)),
            tags=[{"score": float(number % 2)} for number in numbers],
        )
    return {}


def read(queue: Any, count: int) -> dict[str, Any]:
    """Batches as tensors until there were so many samples."""
    torch: Any = importlib.import_module("torch")
    seen = Seen()
    while len(seen.numbers) < count:
        listed = queue.kv_list(partition_id=PARTITION).get(PARTITION, {})
        keys = [key for key, tags in listed.items() if tags]  # which come behind the tokens
        if len(keys) < min(BATCH, count - len(seen.numbers)):
            time.sleep(_POLL_S)
            continue
        for at in range(0, len(keys) - BATCH + 1, BATCH):
            batch = keys[at : at + BATCH]
            found = queue.kv_batch_get(keys=batch, partition_id=PARTITION)
            ids, mask, logprobs = (
                torch.stack(list(found[name].unbind())) if found[name].is_nested else found[name]
                for name in ("input_ids", "loss_mask", "logprobs")
            )
            seen.add(ids.to(torch.int64), mask, logprobs)
            queue.kv_clear(keys=batch, partition_id=PARTITION)
    return {"numbers": seen.numbers, "digests": seen.digests}


def main() -> None:
    """The child."""
    role, where, *numbers = sys.argv[1:]
    if role == "store":
        store(where)
        return
    if role in ("controller", "unit"):
        part(role)
        return
    count, tokens = map(int, numbers)
    content(0, tokens)
    queue = _connected(where)
    serve(lambda: write(queue, count, tokens) if role == "write" else read(queue, count))


if __name__ == "__main__":
    main()
