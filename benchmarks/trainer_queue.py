"""TransferQueue's side: its store, in memory, behind Ray; keys in, tensors out.

    store    ray.init, tq.init: a controller and two units of storage, its defaults
    write    kv_batch_put, a group at a time
    read     kv_list until a batch is there, kv_batch_get, kv_clear, for every batch

It is given ids as int32, half of what verl puts, and no column but the three that are compared.

Invariant: this module needs the standard library and numpy alone, until it is the child.
"""

import contextlib
import functools
import importlib
import json
import os
import socket
import sys
import time
from typing import Any

import numpy as np

from benchmarks.trainer_child import serve
from benchmarks.trainer_load import BATCH, Seen, content, groups

PARTITION = "train"
_POLL_S = 0.005
_ENVIRONMENT = {
    "RAY_agent_register_timeout_ms": "240000",
    "RAY_AUTH_MODE": "token",  # writer and reader find the token of the store in its home
    "RAY_USAGE_STATS_ENABLED": "0",
}
_PATIENCE_S = 240.0


def store(folder: str) -> None:
    """Until stdin ends."""
    ray: Any = importlib.import_module("ray")
    services: Any = importlib.import_module("ray._private.services")
    services.resolve_ip_for_localhost = lambda host: host  # stay on loopback
    _be_patient(services, importlib.import_module("ray._private.parameter"))
    context = ray.init(
        include_dashboard=False,
        num_cpus=8,
        object_store_memory=128 << 20,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
        _metrics_export_port=_free_ports(1)[0],
        logging_level="error",
        log_to_driver=False,
    )
    importlib.import_module("transfer_queue").init()
    address = context.address_info["gcs_address"]
    sys.stdout.write(json.dumps({"address": f"{folder}@{address}"}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    ray.shutdown()


def _be_patient(services: Any, parameter: Any) -> None:
    """Let a busy machine start Ray: it gives its agents 15 s to choose ports, and its node 30 s."""
    metrics, runtime, listen = _free_ports(3)
    parameter.RayParams = functools.partial(
        parameter.RayParams,
        metrics_agent_port=metrics,
        runtime_env_agent_port=runtime,
        dashboard_agent_listen_port=listen,
    )
    start = services.start_ray_process

    def start_ray_process(command: list[str], *words: Any, **named: Any) -> Any:
        if command[0].endswith("/raylet"):  # it knows this one, and is not told of it
            command = [*command, f"--dashboard_agent_listen_port={listen}"]
        return start(command, *words, **named)

    services.start_ray_process = start_ray_process
    ask = services.get_node

    def get_node(*words: Any, **named: Any) -> Any:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask(*words, **named)
            except RuntimeError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(1.0)

    services.get_node = get_node


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in opened]


def _connected(address: str) -> Any:
    ray: Any = importlib.import_module("ray")
    services: Any = importlib.import_module("ray._private.services")
    services.resolve_ip_for_localhost = lambda host: host
    ray.init(
        address=address,
        _node_ip_address="127.0.0.1",
        logging_level="error",
        log_to_driver=False,
    )
    queue: Any = importlib.import_module("transfer_queue")
    queue.init()
    return queue


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
        keys = list(queue.kv_list(partition_id=PARTITION).get(PARTITION, {}))
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
    folder, _, address = where.partition("@")
    # What Ray leaves in its user's home goes with the round.
    os.environ.update(_ENVIRONMENT, HOME=folder)
    if role == "store":
        store(folder)
        return
    count, tokens = map(int, numbers)
    content(0, tokens)
    queue = _connected(address)
    serve(lambda: write(queue, count, tokens) if role == "write" else read(queue, count))


if __name__ == "__main__":
    main()
