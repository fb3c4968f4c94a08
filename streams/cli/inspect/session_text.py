"""A session of a log as text: where it stands, how old it is, then what a file would show.

Invariant: what is a guess ("if it ended now") or is missing is named as such, above the part
that it concerns.
"""

import textwrap
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from schemas.samples import Sample, SampleRevised
from streams.cli.inspect.session_on_log import Story
from streams.core.drawing import (
    Spell,
    draw_ledger,
    draw_sample,
    draw_session,
    draw_tree,
    draw_turns,
    escaped,
)
from streams.log.interface import Position
from streams.log.opening import log_name
from streams.settings import Settings

_UNITS = ((86_400, "days"), (3_600, "h"), (60, "min"))


def draw_story(story: Story, settings: Settings, spell: Spell | None, *, chosen: bool) -> str:
    """Everything about the session; `chosen`: the command line has named the rules."""
    if story.still_open is not None:
        return "\n".join([*_open_head(story, settings), "", _open_parts(story, spell)])
    if story.outcome is not None and story.tree is not None:
        drawn = draw_session(story.tree, story.outcome, story.samples, spell)
        title, _, parts = drawn.partition("\n")
    else:
        title, parts = _title_of_sent(story), _sent_parts(story, spell)
    head = [title, *_closed_head(story, settings), *_differences(story, chosen=chosen)]
    late = _section("late rewards", draw_revisions(story.revisions, names_of(story.samples)))
    return "\n".join([*head, parts, *(["", late] if story.revisions else [])])


def as_if(story: Story) -> str:
    """Under which condition the samples of an open session are what is drawn."""
    assert story.outcome is not None, "an open session is drawn as if it ended"
    reward = ", its reward still to come" if story.reward_to_come else ""
    return f"if it ended now as {story.outcome.end_status}{reward}"


def names_of(samples: Sequence[Sample]) -> dict[str, str]:
    """Sample ids as a person counts them."""
    return {s.sample_id: f"sample {s.index + 1} of {s.count}" for s in samples}


def draw_revisions(revisions: Sequence[SampleRevised], names: Mapping[str, str]) -> str:
    """What rewards after the close changed: a line a reward, a line for each of its samples."""
    lines: dict[int, list[str]] = {}
    for revised in revisions:
        changed = lines.setdefault(
            revised.revision, [f"at {revised.revision}  session {_number(revised.session_reward)}"]
        )
        name = names.get(revised.sample_id, f"sample {revised.sample_id}")
        turns = "".join(
            f", {escaped(t)} {_number(r)}" for t, r in (revised.turn_rewards or {}).items()
        )
        changed.append(f"  {name}: reward {_number(revised.reward)}{turns}")
    return "\n".join(line for changed in lines.values() for line in changed)


def ago(then_ms: int) -> str:
    """How long since, in one unit; what a clock ahead of ours has written is still to come."""
    seconds = time.time() - then_ms / 1000
    return f"in {duration(-seconds)}" if seconds < -1 else f"{duration(max(0.0, seconds))} ago"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for size, name in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def moment(then_ms: int) -> str:
    """A time of the log, to the second."""
    return datetime.fromtimestamp(then_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _open_head(story: Story, settings: Settings) -> list[str]:
    session = story.still_open
    assert session is not None
    assert story.outcome is not None
    assert story.last_ms is not None
    assert story.first_ms is not None
    if session.ended is None:
        state = "open"
        wait = f"it has not ended; silent, it expires {duration(settings.idle_limit_s)} after that"
    else:
        state = "open, waits for its reward"
        wait = (
            f"it ended as {session.ended.end_status} and waits for its reward, "
            f"{duration(settings.reward_grace_s)} at most"
        )
    return [
        f"session {story.session_id}  {state}  policy {story.outcome.policy}",
        f"began {moment(story.first_ms)}, {ago(story.first_ms)}; "
        f"newest event {ago(story.last_ms)}; {wait}",
        *_place(story, settings),
        *_refused(story.session_id, session.refused),
    ]


def _open_parts(story: Story, spell: Spell | None) -> str:
    assert story.tree is not None
    assert story.outcome is not None
    condition = as_if(story)
    samples = "\n".join(draw_sample(sample, spell) for sample in story.samples) or "none"
    parts = [
        _section("turns so far", draw_turns(story.tree)),
        _section("tree so far", draw_tree(story.tree, story.outcome.ledger)),
        _section(f"samples, {condition}", samples),
        _section(f"ledger, {condition}", draw_ledger(story.outcome)),
    ]
    return "\n\n".join(parts)


def _closed_head(story: Story, settings: Settings) -> list[str]:
    when = ""
    if story.last_ms is not None:
        when = f"closed {moment(story.last_ms)}, {ago(story.last_ms)}"
    refused = story.outcome.refused if story.outcome is not None else 0
    return [
        *([when] if when else []),
        *_place(story, settings),
        *_refused(story.session_id, refused),
    ]


def _place(story: Story, settings: Settings) -> list[str]:
    topic = f"{settings.turns_topic}/{story.partition}"
    lines = []
    if story.first is not None and story.last is not None:
        lines.append(f"on {log_name(settings)}: {topic}, events {story.first} to {story.last}")
    if story.log_start and (story.first is None or story.log_start >= story.first):
        begin = Position(settings.turns_topic, story.partition, story.log_start)
        lines.append(f"events are missing: retention has removed what stood before {begin}")
    if story.behind:
        lines.append(f"the processor has {story.behind} events of {topic} still to read")
    return lines


def _refused(session_id: str, refused: int) -> list[str]:
    if not refused:
        return []
    return [f"refused {refused}: see `turnstream dead-letters list --session {session_id}`"]


def _differences(story: Story, *, chosen: bool) -> list[str]:
    if story.sent_ids is None:
        return []
    sent = f"{len(story.sent_ids)} sent to the trainer: {', '.join(story.sent_ids) or 'none'}"
    if chosen:
        return [f"samples under the rules chosen here; {sent}"]
    return [
        f"these samples are not those that were sent; {sent}",
        "the processor had other rules: name them with --profile, or set TURNSTREAM_PROFILE",
    ]


def _title_of_sent(story: Story) -> str:
    if story.outcome is None:
        return f"session {story.session_id}  closed"
    outcome = story.outcome
    return f"session {outcome.session_id}  {outcome.end_status}  policy {outcome.policy}"


def _sent_parts(story: Story, spell: Spell | None) -> str:
    """Without the events: what was sent, as far as it is still there."""
    samples = "\n".join(draw_sample(sample, spell) for sample in story.samples)
    if story.outcome is None:
        gone = "its outcome is no longer among the samples either"
        return "\n".join([gone, "", _section("samples", samples or "none left")])
    sent = len(story.outcome.sample_ids)
    left = "none" if not sent else f"{sent}, none left"
    return "\n".join(
        [
            "turns and tree cannot be drawn; this is what was sent",
            "",
            _section("samples", samples or left),
            "",
            _section("ledger", draw_ledger(story.outcome)),
        ]
    )


def _section(name: str, body: str) -> str:
    return f"{name}\n{textwrap.indent(body, '  ', lambda _: True)}"


def _number(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"
