"""What only exists inside containers, and what stands for it on this machine: one table.

Addresses, the volume, the folder that the image's packages lie in, and the two programs of the
router's image.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.compose.compose_file import COMPOSE
from tests.compose.dockerfile import Stage
from tests.drift.qwen3 import tokenizer_folder
from tests.kafka.broker import free_port

TABLE = {
    # in the file: here
    "://:9092": "://127.0.0.1:{inside}",
    "kafka:9092": "127.0.0.1:{inside}",
    "://:19092": "://127.0.0.1:{host}",
    "127.0.0.1:9092": "127.0.0.1:{host}",
    "localhost:9093": "127.0.0.1:{controller}",
    "9464": "{metrics}",
    "0.0.0.0": "127.0.0.1",
    "gateway-1:8080": "127.0.0.1:{gateway_1}",
    "gateway-2:8080": "127.0.0.1:{gateway_2}",
    "127.0.0.1:8080": "127.0.0.1:{router}",
    "router:8080": "127.0.0.1:{router}",
    "8080": "{own}",
    "/tokenizer": "{tokenizer}",
    "/var/lib/kafka/data": "{volume}",
    "/data": "{sinks}",
    "/opt/turnstream": "{packages}",
    "/opt/trainer": "{examples}/trainer",
    "/opt/train": "{packages}/train",
    "=/checkpoints": "={checkpoints}",
    "/usr/bin/caddy": "{packages}/bin/caddy",
    "/usr/bin/wget": "{wget}",
}
PORTS = ("inside", "host", "controller", "router", "gateway_1", "gateway_2")
ROUTER = {"router": Stage("caddy", [("ENTRYPOINT", "[]"), ("STOPSIGNAL", "SIGTERM")])}
"""The image's own command is not used; what runs stands in the compose file."""
_WGET = f"""#!{sys.executable}
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(sys.argv[-1], timeout=5)
"""
"""A machine need not have the real one."""


def filled(folder: Path, ports: Mapping[str, int], service: str = "") -> Mapping[str, str]:
    """The table for one container; ports that every container has for itself are new."""
    wget = folder / "wget"
    wget.write_text(_WGET, encoding="utf-8")
    wget.chmod(0o755)
    values = {
        **ports,
        "own": ports.get(service.replace("-", "_"), 0),
        "tokenizer": tokenizer_folder(),
        "metrics": free_port(),
        "volume": folder / "broker/data",
        "sinks": folder / "sinks",
        "packages": sys.prefix,
        "examples": COMPOSE.parent / "examples",
        "checkpoints": folder / "checkpoints",
        "wget": wget,
    }
    return {left: right.format(**values) for left, right in TABLE.items()}
