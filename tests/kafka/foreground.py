"""`make broker`: one broker in the foreground, on a fixed port, its data kept in a folder."""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kafka.broker import Broker
from tests.kafka.jars import ROOT, NoBroker

PROGRESS_S = 5.0


def main() -> None:
    """Run one broker in the foreground until Ctrl-C; its data stays."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".broker")
    parser.add_argument("--port", type=int, default=9092)
    options = parser.parse_args()
    broker = Broker(options.folder.absolute(), port=options.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _say("Starting Kafka; the first time Maven fetches its jars, which takes minutes.")
    try:
        with _progress(broker):
            seconds = broker.start()
        where = os.path.relpath(broker.folder)
        _say(
            f"Kafka on {broker.bootstrap_servers} after {seconds:.1f} s; data in {where}; "
            "Ctrl-C stops it."
        )
        while broker.running:
            time.sleep(0.5)
        sys.exit(f"the broker ended:\n{broker.log_tail()}")
    except KeyboardInterrupt:
        _say("\nstopping")
    except NoBroker as error:
        sys.exit(str(error))
    finally:
        if broker.running:
            broker.stop()
        broker.close()


@contextlib.contextmanager
def _progress(broker: Broker) -> Iterator[None]:
    """Say every few seconds how far the start is."""
    begun_s, started = time.monotonic(), threading.Event()

    def tell() -> None:
        while not started.wait(PROGRESS_S):
            now = broker.log_tail(1) if broker.running else "preparing"
            _say(f"still starting after {time.monotonic() - begun_s:.0f} s: {now}")

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        started.set()
        thread.join()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
