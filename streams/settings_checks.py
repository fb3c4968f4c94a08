"""What settings must not be: too small, of no known word, at odds with each other.

Invariant: what is refused is named by its variable, with what to give instead; never a secret.
"""

import math
import re
import typing
from pathlib import Path
from typing import TYPE_CHECKING

from streams.core.policy import PROFILES
from streams.errors import BadSetting

if TYPE_CHECKING:
    from streams.settings import Settings

PREFIX = "TURNSTREAM_"
KAFKA = "kafka"
SINKS = ("jsonl", "trackio")
TRUTH = {"true": True, "1": True, "false": False, "0": False}

_TOPIC_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SECURITY = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ACCEPT = "accept"
_FOREIGN = ("refuse", ACCEPT)
_COMPRESSION = ("none", "gzip", "snappy", "lz4", "zstd")
_SECRET = {"sasl_password", "gateway_secret", "gateway_control_key", "engine_api_key"}
_MOST = {
    "replication": 32_767,
    "partitions": 10_000,
    "metrics_port": 65_535,
    "gateway_port": 65_535,
}
_ANY = {"sink_trackio_traces"}
_FROM_ZERO = {
    "metrics_port",
    "gateway_port",
    "gateway_retry_after_s",
    "gateway_weight_version",
    "trace_share",
    "producer_linger_ms",
    "blob_threshold_bytes",
    "stall_after_s",
    "gateway_raw_prompt_bytes_max",
}


def least(name: str) -> float:
    """The smallest value of that setting."""
    if name in _ANY:
        return -math.inf
    if name in _FROM_ZERO:
        return 0
    return 0.001 if name.endswith(("_s", "_hours")) else 1


def check_words(settings: "Settings") -> None:
    """Words and names that are known, files that are there."""
    choices = {
        "security_protocol": _SECURITY,
        "sasl_mechanism": _SASL,
        "compression": _COMPRESSION,
        "profile": tuple(PROFILES),
        "foreign_partitions": _FOREIGN,
    }
    for name, allowed in choices.items():
        if getattr(settings, name) not in allowed:
            refuse(name, getattr(settings, name), f"give one of {', '.join(allowed)}")
    if not settings.log.strip():
        refuse("log", settings.log, f"give `{KAFKA}` or the path of a file")
    if not _TOPIC_PREFIX.fullmatch(settings.topic_prefix):
        refuse("topic_prefix", settings.topic_prefix, "letters, digits, dot, dash, underscore")
    for sink in sinks_of(settings.sinks):
        if sink not in SINKS:
            refuse("sinks", settings.sinks, f"give some of {', '.join(SINKS)}")
    if not settings.trainer_group.strip():
        refuse("trainer_group", settings.trainer_group, "give the name of a consumer group")
    for server in settings.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit():
            refuse("bootstrap_servers", server, "give host:port, with commas between several")
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_file():
            refuse(name, path, "there is no such file")


def check_pairs(settings: "Settings") -> None:
    """Settings that have to fit others."""
    if settings.security_protocol.startswith("SASL"):
        for name in ("sasl_username", "sasl_password"):
            if getattr(settings, name) is None:
                refuse(name, "", f"{settings.security_protocol} needs it")
    for name in (n for n in _MOST if getattr(settings, n)):
        if getattr(settings, name) > _MOST[name]:
            refuse(name, getattr(settings, name), f"the most is {_MOST[name]}")
    if (settings.trace_share or 0) > 1:
        refuse("trace_share", settings.trace_share, "give a part from 0 to 1")
    if (settings.min_insync or 1) > (settings.replication or 3):
        refuse("min_insync", settings.min_insync, "more than the copies there are")
    if settings.producer_batch_bytes > settings.message_bytes_max:
        refuse(
            "producer_batch_bytes",
            settings.producer_batch_bytes,
            f"at most {PREFIX}MESSAGE_BYTES_MAX={settings.message_bytes_max}, or brokers refuse it",
        )
    timeout, beat = settings.processor_session_timeout_s, settings.processor_heartbeat_interval_s
    if beat * 3 > timeout:
        refuse(
            "processor_heartbeat_interval_s",
            beat,
            f"at most a third of {PREFIX}PROCESSOR_SESSION_TIMEOUT_S={timeout}",
        )


def sinks_of(text: str) -> list[str]:
    """The names in a list of sinks."""
    return [name for part in text.split(",") if (name := part.strip())]


def refuse(name: str, value: object, wanted: str) -> typing.NoReturn:
    """Raise, naming the variable."""
    shown = "..." if name in _SECRET and value else value
    raise BadSetting(f"{PREFIX}{name.upper()}={shown}: {wanted}")
