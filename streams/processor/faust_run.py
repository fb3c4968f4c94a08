"""Starting a worker: wait for the broker, check the topics, run until told to stop.

Invariant: a broker that is away is said once and waited for; a topic that is wrong is an error
at once, since waiting would not mend it.
"""

import asyncio
import dataclasses
import gc
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import faust

from streams.errors import LogAway
from streams.log.client_logs import calm_client_logs
from streams.log.interface import Log
from streams.operations.watching import Watch
from streams.processor.faust_worker import Processor
from streams.processor.health import pulse
from streams.processor.signals import end_on_signals
from streams.settings import Settings

_ACKNOWLEDGED_WITHIN_S = 1200.0
"""A broker may be away for long; what was sent to it is kept and sent again until then."""
_RETRY_S_MAX = 10.0
_GC_YOUNG = 20_000
"""A turn makes hundreds of objects that stay; the usual 700 would look at them again and again."""

Factory = Callable[[Settings, Log], Processor]


def run(
    settings: Settings,
    log_of: Callable[[Settings], Log],
    require_topics: Callable[[Settings], Awaitable[None]],
    make: Factory = Processor,
) -> None:
    """Run a worker until it is told to stop; exits the process."""
    calm_client_logs()
    gc.set_threshold(_GC_YOUNG, 20, 20)
    end_on_signals()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with Watch("turnstream processor", settings) as watch:
        loop.run_until_complete(_wait_for_topics(settings, require_topics))
        patient = dataclasses.replace(settings, publish_timeout_s=_ACKNOWLEDGED_WITHIN_S)

        async def build() -> Processor:
            return make(patient, log_of(patient))

        processor = loop.run_until_complete(build())
        worker = _Watched(
            processor.app, loglevel="WARNING", redirect_stdouts=False, loop=loop, quiet=True
        )
        worker.watch = watch
        watch.ready(lambda: pulse(processor.counts, processor.look))
        worker.spinner = None  # it writes control codes into logs
        worker.execute_from_commandline()


class _Watched(faust.Worker):
    """Faust's worker, but for SIGUSR1: its own handler prints the stacks of threads, not tasks."""

    watch: Watch

    def install_signal_handlers(self) -> None:
        super().install_signal_handlers()
        self.loop.remove_signal_handler(signal.SIGUSR1)
        self.watch.take_signal()


async def _wait_for_topics(
    settings: Settings, require_topics: Callable[[Settings], Awaitable[None]]
) -> None:
    began, wait_s, told = time.monotonic(), 0.5, False
    while True:
        try:
            await require_topics(settings)
        except LogAway as error:
            if not told:
                sys.stderr.write(f"turnstream processor: {error}; waiting for it\n")
                told = True
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)
            continue
        if told:
            seconds = time.monotonic() - began
            sys.stderr.write(f"turnstream processor: the broker answers after {seconds:.0f} s\n")
        return
