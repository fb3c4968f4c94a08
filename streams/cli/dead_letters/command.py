"""`turnstream dead-letters`: what was refused, why, and back into the log with it."""

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Sequence

import click

from schemas import codec
from schemas.dead_letters import Code
from streams.cli.dead_letters.letters import (
    ADVICE,
    Letter,
    Wanted,
    came_back_late,
    in_order,
    payload_line,
    read_letters,
    read_position,
)
from streams.cli.dead_letters.replaying import Fate, Verdict, judge
from streams.cli.inspect.session_text import ago, moment
from streams.cli.on_the_log import log_option, run_on_the_log
from streams.core.drawing import visible
from streams.errors import TooLarge
from streams.log.interface import Log, Outgoing, Position
from streams.log.keys import event_key
from streams.log.opening import log_name, open_log
from streams.log.sizes import check_size
from streams.processor.lookup import look_up
from streams.processor.rules import rules_from
from streams.settings import Settings

_DETAIL_MOST = 72
_NAME_MOST = 48
_IN_FLIGHT_MAX = 500

code_option = click.option(
    "--code", type=click.Choice(sorted(ADVICE)), metavar="CODE", help="Only these, by their code."
)
session_option = click.option(
    "--session", "session_id", metavar="ID", help="Only those of one session."
)


@click.group("dead-letters")
def dead_letters() -> None:
    """List, show and replay the events that were refused.

    An event that cannot be used is kept untouched, with the reason, until the retention of its
    topic is over. Replaying publishes it again; its letter stays.
    """


@dead_letters.command("list")
@log_option
@code_option
@session_option
@click.option("--json", "as_json", is_flag=True, help="One JSON line each, without the payload.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="The newest N.")
def list_letters(
    log: str | None, code: Code | None, session_id: str | None, as_json: bool, most: int | None
) -> None:
    """List dead letters, newest last.

    Columns: the position of the refused event, as `show` and `replay` take it; the code; the
    session and the turn, as far as the bytes could be read; what was wrong.
    """
    wanted = Wanted(code=code, session_id=session_id)

    async def work(settings: Settings) -> int:
        async with open_log(settings) as opened:
            letters, strange = await read_letters(opened, settings, wanted, payloads=False)
        _tell_strange(strange, settings)
        shown = letters if most is None else letters[-most:]
        if as_json:
            for letter in shown:
                _echo(codec.to_json(letter.record).decode())
        elif not letters:
            _echo(visible(f"no dead letters on {log_name(settings)}{_of(wanted)}", most=None))
        else:
            _echo(_table(shown))
        return 0

    run_on_the_log(work, log)


@dead_letters.command()
@click.argument("position")
@log_option
@click.option(
    "--payload",
    "only_payload",
    is_flag=True,
    help="Only the event, as a JSON line to correct and publish with `turnstream replay FILE`.",
)
def show(position: str, log: str | None, only_payload: bool) -> None:
    """Show everything about the dead letter at POSITION, and what to do about it.

    POSITION is topic/partition/offset of the refused event, as `list` prints it. The payload is
    shown as JSON where it can be read, else as hex.
    """
    (place,) = _positions([position])

    async def work(settings: Settings) -> int:
        async with open_log(settings) as opened:
            wanted = Wanted(positions=[place])
            letters, _ = await read_letters(opened, settings, wanted, payloads=True)
        if not letters:
            return _nothing(settings, f" at {place}")
        if only_payload:
            return _payload_alone(letters[0])
        _echo("\n\n".join([*map(_head, letters), _payload(letters[0])]))
        return 0

    run_on_the_log(work, log)


@dead_letters.command()
@click.argument("positions", metavar="[POSITION]...", nargs=-1)
@log_option
@session_option
@code_option
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--late",
    is_flag=True,
    help="Also what comes after its session's end: it is refused again, as late_turn or "
    "late_reward, or begins a forgotten session anew.",
)
def replay(
    positions: tuple[str, ...],
    log: str | None,
    session_id: str | None,
    code: Code | None,
    dry_run: bool,
    late: bool,
) -> None:
    """Publish refused events again, their bytes untouched, under their session's key.

    Name them by POSITION, or take all of a session or a code. They go in the order they once
    stood in the log, a turn after the base it needs. Each is tried first on its session as the
    processor's table has it: what would only be refused again is held back, and the exit code
    is 1.

    Replaying twice is harmless: a turn is known by its turn_id and a reward by its reward_id,
    and what a session has already, or what came back late before, is left out. A reward counts
    from its replay on, so it replaces one that was given in the meantime. No letter is ever
    removed.
    """
    if bool(positions) == bool(session_id or code):
        raise click.UsageError("name positions, or --session or --code")
    wanted = Wanted(positions=_positions(positions), session_id=session_id, code=code)

    async def work(settings: Settings) -> int:
        async with open_log(settings) as opened:
            letters, strange = await read_letters(opened, settings, wanted, payloads=True)
            _tell_strange(strange, settings)
            found = {letter.position for letter in letters}
            missing = [place for place in wanted.positions if place not in found]
            if missing or not letters:
                return _nothing(settings, _of(wanted) if not missing else f" at {missing[0]}")
            return await _replay(opened, settings, in_order(letters), late=late, dry_run=dry_run)

    run_on_the_log(work, log)


async def _replay(
    log: Log, settings: Settings, letters: Sequence[Letter], *, late: bool, dry_run: bool
) -> int:
    rules = rules_from(settings)
    sessions = {letter.record.session_id for letter in letters if letter.record.session_id}
    known = await look_up(log, settings, rules, sessions)
    came_back = await came_back_late(log, settings, sessions) if late else set()
    now_ms = int(time.time() * 1000)
    verdicts = judge(letters, known, rules, now_ms, late=late, came_back=came_back)
    going = [verdict for verdict in verdicts if verdict.fate in (Fate.GOES_IN, Fate.LATE)]
    counts = Counter({"replayed": 0, Fate.KNOWN.value: 0, Fate.HELD_BACK.value: 0})
    for verdict in verdicts:
        if verdict.fate in (Fate.KNOWN, Fate.HELD_BACK):
            _say(verdict, verdict.fate.value)
            counts[verdict.fate.value] += 1
    try:
        for start in range(0, len(going), _IN_FLIGHT_MAX):
            await _publish(log, settings, going[start : start + _IN_FLIGHT_MAX], counts, dry_run)
    finally:
        # Whatever is missing in the sum was on its way when the log failed.
        text = ", ".join(f"{what} {count}" for what, count in counts.items())
        _echo(f"dry run: {text}" if dry_run else text)
    held_back = counts[Fate.HELD_BACK.value]
    behind = {at.partition: at.behind for at in known.values() if at.behind}
    if held_back and behind:
        text = f"the processor has {sum(behind.values())} events of these partitions still to read"
        click.echo(f"turnstream: {text}; try again when it has caught up", err=True)
    return 1 if held_back else 0


async def _publish(
    log: Log, settings: Settings, verdicts: Sequence[Verdict], counts: Counter[str], dry_run: bool
) -> None:
    """Send them in order, then wait until each is durable."""
    under_way = []
    for verdict in verdicts:
        record = verdict.letter.record
        assert record.session_id is not None, "it was tried on its session"
        outgoing = Outgoing(
            topic=settings.turns_topic,
            key=event_key(record.session_id),
            value=record.payload,
            session_id=record.session_id,
            turn_id=record.turn_id,
        )
        try:
            check_size(outgoing, settings)
        except TooLarge as error:
            counts[Fate.HELD_BACK.value] += 1
            _say(dataclasses.replace(verdict, why=str(error)), Fate.HELD_BACK.value)
            continue
        under_way.append((verdict, None if dry_run else await log.send(outgoing)))
    for verdict, sending in under_way:
        _say(verdict, "would be replayed" if sending is None else f"replayed to {await sending}")
        counts["replayed"] += 1


def _table(letters: Sequence[Letter]) -> str:
    rows = [("position", "code", "session", "turn", "detail")]
    for letter in letters:
        record = letter.record
        session, turn = (_cut(n or "-", _NAME_MOST) for n in (record.session_id, record.turn_id))
        place = visible(str(letter.position), most=None)
        rows.append((place, record.code, session, turn, _cut(record.detail, _DETAIL_MOST)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _cut(text: str, most: int) -> str:
    shown = visible(text, most=None)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _head(letter: Letter) -> str:
    record = letter.record
    size = "too large to be kept" if letter.payload_bytes is None else f"{letter.payload_bytes}"
    facts = {
        "position": str(letter.position),
        "code": record.code,
        "session": record.session_id or "not readable",
        "turn": record.turn_id or "none, or not readable",
        "detail": record.detail,
        "refused": f"{moment(letter.logged_ms)}, {ago(letter.logged_ms)}",
        "bytes": size,
        "to do": ADVICE[record.code],
    }
    return "\n".join(f"{name:<10}{visible(text, most=None)}" for name, text in facts.items())


def _payload(letter: Letter) -> str:
    payload = letter.record.payload
    if payload is None:
        return "payload: not kept"
    line = payload_line(payload)
    return f"payload, in hex\n{payload.hex()}" if line is None else f"payload\n{line}"


def _payload_alone(letter: Letter) -> int:
    payload = letter.record.payload
    line = None if payload is None else payload_line(payload)
    if line is None:
        text = f"turnstream: {letter.position}: the payload cannot be shown as JSON"
        click.echo(text, err=True)
        return 1
    _echo(line)
    return 0


def _positions(texts: Sequence[str]) -> list[Position]:
    places = []
    for text in texts:
        if (place := read_position(text)) is None:
            detail = f"{text}: give topic/partition/offset, as `turnstream dead-letters list` does"
            raise click.UsageError(visible(detail, most=None))
        places.append(place)
    return places


def _nothing(settings: Settings, which: str) -> int:
    text = visible(f"no dead letter on {log_name(settings)}{which}", most=None)
    click.echo(f"turnstream: {text}", err=True)
    return 1


def _of(wanted: Wanted) -> str:
    parts = [f" of session {wanted.session_id}"] if wanted.session_id else []
    parts += [f" with code {wanted.code}"] if wanted.code else []
    return "".join(parts)


def _say(verdict: Verdict, what: str) -> None:
    letter = verdict.letter
    record = letter.record
    whose = [f"session {record.session_id}"] if record.session_id else []
    whose += [f"turn {record.turn_id}"] if record.turn_id else []
    named = "  ".join([str(letter.position), record.code, *([", ".join(whose)] if whose else [])])
    _echo(visible(f"{named}: {what}: {verdict.why}", most=None))


def _tell_strange(strange: int, settings: Settings) -> None:
    if strange:
        text = f"{settings.dead_letters_topic}: {strange} entries are no dead letters, left out"
        click.echo(f"turnstream: {text}", err=True)


def _echo(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
