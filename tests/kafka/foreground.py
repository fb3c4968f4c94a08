"""`make broker`: one broker in the foreground, on a fixed port, its data kept in a folder."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from tests.kafka.broker import Broker
from tests.kafka.jars import ROOT, NoBroker


def main() -> None:
    """Run one broker in the foreground until Ctrl-C; its data stays."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".broker")
    parser.add_argument("--port", type=int, default=9092)
    options = parser.parse_args()
    broker = Broker(options.folder.absolute(), port=options.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        seconds = broker.start()
        sys.stdout.write(f"Kafka on {broker.bootstrap_servers} after {seconds:.1f} s; ")
        sys.stdout.write(f"data in {os.path.relpath(broker.folder)}; Ctrl-C stops it.\n")
        sys.stdout.flush()
        while broker.running:
            time.sleep(0.5)
        sys.exit(f"the broker ended:\n{broker.log_tail()}")
    except KeyboardInterrupt:
        sys.stdout.write("\nstopping\n")
    except NoBroker as error:
        sys.exit(str(error))
    finally:
        if broker.running:
            broker.stop()
        broker.close()


if __name__ == "__main__":
    main()
