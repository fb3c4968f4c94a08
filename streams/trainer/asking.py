"""What a trainer may ask of `subscribe`, checked before anything is opened.

Invariant: what contradicts itself is refused in the words of the call.
"""

import dataclasses
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from streams.core.advantages import Advantages, Judgement, UnknownVersion
from streams.core.groups import GroupRules
from streams.log.default_log import find_log
from streams.settings import KAFKA, Settings, load_settings
from streams.trainer.book import BatchSize
from streams.trainer.sources import Start

Version = int | Callable[[], int] | None
PartialGroups = Literal["drop", "deliver"] | int
"""Groups that were given up: never delivered, always, or with at least so many rollouts."""

BUFFER_BYTES = 2 << 30
MEMBER_TIMEOUT_S = 45.0
_KAFKA_URL = "kafka://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One subscription."""

    settings: Settings
    topic: str
    group: str
    run_id: str | None
    size: BatchSize
    rules: GroupRules
    judgement: Judgement
    start: Start = "committed"
    until_end: bool = False
    buffer_bytes: int = BUFFER_BYTES
    member_timeout_s: float = MEMBER_TIMEOUT_S
    run_epoch: int = 0
    packed: bool = False
    one_of_several: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        rules, judgement = self.rules, self.judgement
        timeout_s = None if rules.timeout_ms is None else rules.timeout_ms / 1000
        for name, value, least in (
            ("buffer_bytes", self.buffer_bytes, 0),
            ("run_epoch", self.run_epoch, 0),
            ("member_timeout", self.member_timeout_s, 1),
            ("group_timeout", timeout_s, 0),
            ("group_size", rules.default_size, 1),
            ("keep_first", rules.keep_first, 1),
            ("max_staleness", judgement.max_staleness, 0),
            ("tokens_max", judgement.tokens_max, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name}={value:g}: give a number from {least}")
        if judgement.unknown_version not in get_args(UnknownVersion):
            choices = ", ".join(get_args(UnknownVersion))
            raise ValueError(f"unknown_version={judgement.unknown_version!r}: {choices}")
        advantages = judgement.advantages
        if advantages not in (None, *get_args(Advantages)):
            raise ValueError(f"advantages={advantages!r}: {', '.join(get_args(Advantages))}")
        if isinstance(self.start, datetime.datetime) and self.start.tzinfo is None:
            raise ValueError(f"start={self.start}: give a time with its zone")
        if isinstance(self.start, str) and self.start not in ("committed", "beginning", "end"):
            raise ValueError(f"start={self.start!r}: committed, beginning, end or a datetime")


def settings_of(log: str | Path | Settings | None) -> Settings:
    """`kafka`, `kafka://host:port,...`, the path of a file, or settings that say all of it.

    Raises:
        BadSetting: None, and no log is configured.
    """
    if log is None:
        return find_log()
    if isinstance(log, Settings):
        return log
    settings = load_settings()
    text = str(log)
    if text.startswith(_KAFKA_URL):
        servers = text.removeprefix(_KAFKA_URL).strip("/")
        return dataclasses.replace(settings, log=KAFKA, bootstrap_servers=servers)
    return dataclasses.replace(settings, log=text.removeprefix("sqlite:///"))


def batch_size(rollouts: int | None, tokens: int | None, groups: int | None) -> BatchSize:
    """Exactly one way to count."""
    given = [n for n in (rollouts, tokens, groups) if n is not None]
    if len(given) != 1 or given[0] < 1:
        raise ValueError("give one of batch_rollouts, batch_tokens and batch_groups, from 1")
    return BatchSize(rollouts=rollouts, tokens=tokens, groups=groups)


def least_of(partial: PartialGroups) -> int | None:
    """How many rollouts a group needs to be delivered although it was given up."""
    if isinstance(partial, bool) or partial not in ("drop", "deliver"):
        if not isinstance(partial, int) or isinstance(partial, bool) or partial < 1:
            detail = f"partial_groups={partial!r}: drop, deliver or a number from 1"
            raise ValueError(detail)
        return partial
    return None if partial == "drop" else 1
