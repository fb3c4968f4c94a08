"""What a gateway counts, how long its stages take, and what it says when something goes wrong.

Invariant: no text of a conversation reaches a metric or a log line.
"""

import contextlib
import functools
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LABELS = {
    "ignored_sampling": "field",
    "prompts": "built",
    "answers": "status",
    "ignored": "field",
    "channels_lost": "why",
    "unknown_answers": "kind",
    "read_back_refused": "code",
    "admission_lag": "group",
    "admission_unknown": "group",
    "connections_closed": "why",
}
_RUN = "run_"
"""Counts whose name begins so are by run."""
_RUNS_MAX = 100
"""Counted each by itself; the others together."""
OTHER_RUNS = "(others)"
NO_RUN = ""
UNKNOWN_RUN = "(unknown)"
"""Of a session that this gateway does not hold."""
_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)

SELDOM_LINES, SELDOM_S = 10, 10.0
"""Of what a client can cause at will: so many lines in so long, for each session and kind."""

Gauges = Callable[[], dict[str, float]]


@dataclass(slots=True)
class _Window:
    """Lines of one kind about one session, of late."""

    began_s: float
    lines: int = 0
    omitted: int = 0


class Metrics(Collector):
    """Counts, stages and gauges of one gateway."""

    def __init__(self, gauges: Gauges) -> None:
        """`gauges` is asked whenever somebody looks."""
        self.counts: Counter[str] = Counter()
        self._runs: set[str] = set()
        self._windows: dict[tuple[str, str | None], _Window] = {}
        self._gauges = gauges
        self._registry = CollectorRegistry()
        self._stages = Histogram(
            "turnstream_stage_seconds",
            "time in a stage of a turn",
            ["stage"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._stage = functools.cache(self._stages.labels)
        self._registry.register(self)

    def count(self, name: str, by: int = 1) -> None:
        """One more; `name:label` counts by label."""
        self.counts[name] += by

    def count_run(self, run_id: str | None, name: str, by: int = 1) -> None:
        """The same for one run, so that several in one deployment can be told apart."""
        run = run_id or NO_RUN
        if run not in self._runs and len(self._runs) >= _RUNS_MAX:
            run = OTHER_RUNS
        self._runs.add(run)
        self.count(f"{_RUN}{name}:{run}", by)

    def prompt(self, built: str, tokens: int) -> None:
        """A prompt, and how it was built."""
        self.count(f"prompts:{built}")
        self.count("prompt_tokens_built", tokens)

    def tokens(self, run_id: str | None, prompt: int, output: int) -> None:
        """Of a turn that was recorded."""
        self.count("tokens_prompt", prompt)
        self.count("tokens_sampled", output)
        self.count_run(run_id, "turns")
        self.count_run(run_id, "tokens_sampled", output)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """How long a part of a turn takes."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._stage(name).observe(time.monotonic() - began_s)

    def say(
        self,
        what: str,
        session_id: str | None,
        turn_id: str | None,
        detail: str,
        path: str | None = None,
    ) -> None:
        """A line of JSON on stderr."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "what": what,
            "session": session_id,
            "turn": turn_id,
            "path": path,
            "detail": detail[:500],
        }
        told = {name: value for name, value in line.items() if value is not None}
        sys.stderr.write(json.dumps(told) + "\n")
        sys.stderr.flush()

    def say_seldom(
        self,
        what: str,
        session_id: str | None = None,
        turn_id: str | None = None,
        *,
        detail: str,
        path: str | None = None,
    ) -> None:
        """A line about what clients can cause at will: the first few, then how many more."""
        now_s = time.monotonic()
        window = self._windows.setdefault((what, session_id), _Window(now_s))
        if window.lines < SELDOM_LINES:
            window.lines += 1
            self.say(what, session_id, turn_id, detail, path)
        else:
            window.omitted += 1

    def say_omitted(self) -> None:
        """How many lines were left out, once their time is over; to be called every so often."""
        now_s = time.monotonic()
        for (what, session_id), window in list(self._windows.items()):
            if now_s - window.began_s >= SELDOM_S:
                del self._windows[what, session_id]
                if window.omitted:
                    detail = f"{window.omitted} more in {now_s - window.began_s:.0f} s"
                    self.say(what, session_id, None, detail)

    def failure(self, session_id: str | None, turn_id: str | None, error: BaseException) -> None:
        """Something that must not happen: what kind and where, since its text may be anybody's."""
        self.count("failures")
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{_short(frame.filename)}:{frame.lineno}" for frame in frames[::-1])
        self.say("failure", session_id, turn_id, f"{type(error).__name__} at {places}")

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every count and gauge."""
        yield from _families(CounterMetricFamily, sorted(self.counts.items()))
        yield from _families(GaugeMetricFamily, self._gauges().items())


def _families(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    values: Iterable[tuple[str, float]],
) -> Iterator[Metric]:
    labelled: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for whole, value in values:
        name, colon, label = whole.partition(":")
        metric, text = f"turnstream_gateway_{name}", name.replace("_", " ")
        if not colon:
            yield kind(metric, text, value)
            continue
        by = "run" if name.startswith(_RUN) else _LABELS[name]
        if name not in labelled:
            labelled[name] = kind(metric, text, labels=[by])
        labelled[name].add_metric([label], value)
    yield from labelled.values()


def _short(path: str) -> str:
    return "/".join(path.split("/")[-2:])
