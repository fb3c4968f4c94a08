"""`subscribe` and its asynchronous twin: what a trainer asks for, in one call.

Invariant: what is misspelt or contradicts itself is refused before anything is opened.
"""

from pathlib import Path
from typing import TypedDict, Unpack

from schemas.round_trip import check_round_trip
from streams.core.advantages import Advantages, Judgement, UnknownVersion
from streams.core.groups import GroupRules
from streams.settings import Settings
from streams.trainer.asking import (
    BUFFER_BYTES,
    MEMBER_TIMEOUT_S,
    Asked,
    PartialGroups,
    Version,
    batch_size,
    least_of,
    settings_of,
)
from streams.trainer.asynchronous import AsyncSubscription
from streams.trainer.sources import Start
from streams.trainer.subscription import Subscription


class Options(TypedDict, total=False):
    """Everything but the log; one of the three sizes has to be given."""

    batch_rollouts: int | None
    """A batch ends with the group that reaches so many rollouts with something to train."""
    batch_tokens: int | None
    """A batch ends before the group that would exceed so many tokens."""
    batch_groups: int | None
    """A batch has so many groups."""

    run_id: str | None
    """Only sessions of this run; left out: of every run."""
    split: str
    """Only sessions of this split, usually `train`; those that name none are `train`."""
    current_version: Version
    """Of the optimizer: a number, which `commit` then moves, or a function that says it."""
    max_staleness: int | None
    """Versions that a rollout's oldest weights may be behind; beyond it all of it is dropped."""
    unknown_version: UnknownVersion
    """Of rollouts with tokens whose weights are unknown, in a run that has versions: `stale`
    (usual) takes them for older than all, and after a restore for weights that are gone; `train`
    judges them by the versions that are known."""

    group_timeout: float | None
    """Seconds from a group's first record until it is given up; left out: as long as a session
    may live and wait for its reward, since nothing can come after that."""
    partial_groups: PartialGroups
    """A group that was given up: `drop` (usual), `deliver`, or from so many rollouts on."""
    keep_first: int | None
    """Start N, keep the first K: a group ends with so many rollouts that count."""
    group_size: int | None
    """For sessions that name none."""

    advantages: Advantages | None
    """`grpo`, `mean` (without the deviation) or `leave_one_out`; left out: none."""
    drop_zero_signal: bool
    """Leave out groups whose rewards are all equal."""
    drop_truncated: bool
    """Leave out rollouts that a limit cut; they stay in the baseline."""
    tokens_max: int | None
    """Leave out rollouts with a longer sample; they stay in the baseline."""

    packed: bool
    """Have `batch.packed` made before a batch is handed out, in the subscription's own thread."""

    group: str | None
    """Whose positions, usually as TURNSTREAM_TRAINER_GROUP has it; trainers of one group share
    the partitions on Kafka."""
    start: Start
    """`committed` (usual); or, for a trainer that reads alone, `beginning`, `end` or a time."""
    until_end: bool
    """Stop at the end that the log has now, with a last smaller batch."""
    buffer_bytes: int
    """Of samples that wait in memory; usually 2 GiB."""
    member_timeout: float
    """Seconds of silence after which others get our partitions; usually 45."""
    run_epoch: int
    """Of a run that never had a checkpoint, usually 0; a restore raises it."""
    one_of_several: bool
    """A state that is loaded may lack partitions: other trainers go on with those."""
    topic: str | None
    """Instead of the samples topic, as `replay --name` writes."""
    progress: bool | None
    """A line on stderr while the loop waits; left out: if that is a terminal. False: also no
    warning that says what a loop without a batch sees and skips."""


def subscribe(log: str | Path | Settings | None = None, **options: Unpack[Options]) -> Subscription:
    """Batches of finished samples, for an ordinary loop.

    Args:
        log: `kafka`, `kafka://host:port`, the file of an embedded log, or settings; left out:
            what TURNSTREAM_LOG says, else the log of a `turnstream up` in this folder.
        **options: See `Options`.
    """
    asked = _asked(log, options)
    version, progress = options.get("current_version"), options.get("progress")
    return Subscription(asked, version, progress=progress)


def subscribe_async(
    log: str | Path | Settings | None = None, **options: Unpack[Options]
) -> AsyncSubscription:
    """As `subscribe`, for `async with` and `async for`."""
    asked = _asked(log, options)
    version, progress = options.get("current_version"), options.get("progress")
    return AsyncSubscription(asked, version, progress=progress)


def _asked(log: str | Path | Settings | None, options: Options) -> Asked:
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"subscribe() has no option {name}")
    check_round_trip()
    settings = settings_of(log)
    run_id, timeout_s = options.get("run_id"), options.get("group_timeout")
    keep_first = options.get("keep_first")
    longest_s = settings.hard_limit_s + settings.reward_grace_s
    return Asked(
        settings=settings,
        topic=options.get("topic") or settings.samples_topic,
        group=options.get("group") or settings.trainer_group_of(run_id),
        run_id=run_id,
        size=batch_size(
            options.get("batch_rollouts"),
            options.get("batch_tokens"),
            options.get("batch_groups"),
        ),
        rules=GroupRules(
            split=options.get("split", "train"),
            run_id=run_id,
            timeout_ms=int((longest_s if timeout_s is None else timeout_s) * 1000),
            partial=least_of(options.get("partial_groups", "drop")),
            keep_first=keep_first,
            default_size=options.get("group_size"),
            size_needed=timeout_s is None and keep_first is None,
            unknown_version=options.get("unknown_version", "stale"),
        ),
        judgement=Judgement(
            max_staleness=options.get("max_staleness"),
            unknown_version=options.get("unknown_version", "stale"),
            tokens_max=options.get("tokens_max"),
            drop_truncated=options.get("drop_truncated", False),
            drop_zero_signal=options.get("drop_zero_signal", False),
            advantages=options.get("advantages"),
        ),
        start=options.get("start", "committed"),
        until_end=options.get("until_end", False),
        buffer_bytes=options.get("buffer_bytes", BUFFER_BYTES),
        member_timeout_s=options.get("member_timeout", MEMBER_TIMEOUT_S),
        run_epoch=options.get("run_epoch", 0),
        packed=options.get("packed", False),
        one_of_several=options.get("one_of_several", False),
    )
