"""A proxy between a client and a gateway that answers some requests itself, or drops them.

Faults: a status            answered here, with `retry-after`
        "drop"              the connection is closed before the gateway hears of it
        "lose"              the gateway does it, its answer is lost
"""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SECONDS_MAX = 60.0


class FaultyProxy(ThreadingHTTPServer):
    """Hands on what no fault is left for."""

    daemon_threads = True

    def __init__(self, gateway: str, faults: Sequence[int | str]) -> None:
        """Listens on a free port."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gateway = urlsplit(gateway)
        self.faults = list(faults)
        self.asked: list[str] = []
        """The path of every request, in order."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyProxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append(self.path)
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            self._answer(fault, b'{"error": "by the proxy"}')
            return
        if fault != "drop":
            status, told = self._handed_on(body)
            if fault is None:
                self._answer(status, told)
                return
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after", "0.1")
        self.end_headers()
        self.wfile.write(body)

    def _handed_on(self, body: bytes) -> tuple[int, bytes]:
        place = self.server.gateway
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=SECONDS_MAX)
        try:
            headers = {"authorization": self.headers["authorization"]}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def proxy(gateway: str, *faults: int | str) -> Iterator[FaultyProxy]:
    """Listening; the faults are for the first requests, in order."""
    with FaultyProxy(gateway, faults) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join(SECONDS_MAX)
