"""`turnstream topics`: create the topics, or say what is wrong with them."""

import click

from streams.cli.on_the_log import run_on_the_log
from streams.log.kafka_topics import TopicReport, check_topics, create_topics
from streams.settings import FOR_EVER, KAFKA, Settings

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@click.command()
@click.option("--check", "only_check", is_flag=True, help="Create nothing.")
def topics(only_check: bool) -> None:
    """Create the topics on Kafka and check them.

    What exists is never changed; what is wrong with it is said, with what to do about it, and
    the exit code is 1. Settings come from TURNSTREAM_* variables.
    """

    async def work(settings: Settings) -> int:
        report = await (check_topics(settings) if only_check else create_topics(settings))
        click.echo(table(report, settings))
        for text in report.problems:
            click.echo(f"wrong: {text}", err=True)
        return 1 if report.problems else 0

    run_on_the_log(work, KAFKA)


def table(report: TopicReport, settings: Settings) -> str:
    """Each topic, how it has to be and what it costs."""
    rows = [("topic", "partitions", "copies", "in sync", "kept", "disk", "")]
    for spec in report.specs:
        rows.append(
            (
                spec.name,
                str(spec.partitions),
                str(spec.replication),
                spec.configs["min.insync.replicas"],
                _kept(spec.configs),
                _size(spec.disk_bytes),
                "created" if spec.name in report.created else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    known = [spec.disk_bytes for spec in report.specs if spec.disk_bytes is not None]
    total = "" if len(known) < len(report.specs) else f", {_size(sum(known))} in all"
    brokers = f"{report.brokers} broker" + ("s" if report.brokers != 1 else "")
    rate = f"{settings.expected_turns_per_s:g} turns/s of {settings.expected_turn_bytes} bytes"
    lines.append(f"{brokers}; disk is an estimate at {rate}, before compression{total}")
    return "\n".join(lines)


def _kept(configs: dict[str, str]) -> str:
    if configs["cleanup.policy"] == "compact":
        return "last of a key"
    ms = int(configs["retention.ms"])
    hours = ms / 3_600_000
    if ms == FOR_EVER:
        return "for ever"
    return f"{hours / 24:g} days" if hours % 24 == 0 else f"{hours:g} hours"


def _size(size_bytes: float | None) -> str:
    if size_bytes is None:
        return "no end"
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes:.0f} B"
