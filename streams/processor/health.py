"""Is this worker making progress, and what has it done: `/healthz`, `/readyz`, `/metrics`.

A process that runs is not yet healthy: one that was assigned nothing, or that has events before
it and moves none, must be replaced. One that the log does not answer knows nothing of it, and
says so.

Invariant: nothing of a session's content is shown here, and the address is loopback unless the
settings say otherwise.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streams.operations.pages import Facts, Pages, serve_pages
from streams.processor.counting import RUN
from streams.settings import Settings


class Progress(NamedTuple):
    """What a look at the worker shows."""

    partitions: int
    lag: int | None
    """Events that it has not worked on; None: the log does not answer."""
    sessions_open: int
    in_flight: int
    ready: bool
    """Partitions are assigned and recovered."""
    trouble: str | None
    """Why the worker is not healthy, if so."""


Look = Callable[[], Progress]


def pulse(counts: Counter[str], look: Look) -> int | None:
    """A number that moves with the events that are worked on; None: there is none to work on."""
    progress = look()
    lag = progress.lag or 0
    return counts["events"] - lag if lag or progress.in_flight else None


_LABELLED = {"dead_letter": "code", "untrained": "reason"}


class WorkerMetrics(Collector):
    """The counts of a worker as Prometheus reads them."""

    def __init__(self, counts: Counter[str], look: Look) -> None:
        """Read when asked, so that counting costs nothing more."""
        self._counts = counts
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Every count, and what the look shows."""
        labelled: dict[str, CounterMetricFamily] = {}
        for name, value in sorted(self._counts.items()):
            kind, colon, label = name.partition(":")
            if not colon:
                yield CounterMetricFamily(f"turnstream_{kind}", kind.replace("_", " "), value)
                continue
            family = labelled.setdefault(
                kind,
                CounterMetricFamily(
                    f"turnstream_{kind}",
                    kind,
                    labels=["run" if kind.startswith(RUN) else _LABELLED[kind]],
                ),
            )
            family.add_metric([label], value)
        yield from labelled.values()
        progress = self._look()
        for name in ("partitions", "lag", "sessions_open", "in_flight"):
            gauge = GaugeMetricFamily(f"turnstream_{name}", name.replace("_", " "))
            value = getattr(progress, name)
            gauge.add_metric([], float("nan") if value is None else value)
            yield gauge


def worker_pages(counts: Counter[str], look: Look) -> Pages:
    """What a worker says of itself."""
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(counts, look))

    async def progress() -> Facts:
        return look()._asdict()

    return Pages(healthz=progress, readyz=progress, metrics=lambda: generate_latest(registry))


async def serve(
    settings: Settings, counts: Counter[str], look: Look, who: str = "turnstream processor"
) -> web.AppRunner:
    """Answer on the settings' address until the runner is cleaned up."""
    return await serve_pages(settings, worker_pages(counts, look), who)
