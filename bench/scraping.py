"""Scraping like Prometheus, with a client that costs next to nothing itself."""

from __future__ import annotations

import select
import socket
import statistics
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)


class Connection:
    """A connection that is kept, as Prometheus keeps one."""

    def __init__(self, url: str, *, compressed: bool = True) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        encoding = "gzip" if compressed else "identity"
        self._request = (
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: {ACCEPT}\r\n"
            f"Accept-Encoding: {encoding}\r\nUser-Agent: Prometheus/3.0.0\r\n\r\n"
        ).encode()
        self._received = bytearray()
        self._length: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For :func:`select.select`."""
        return self._socket.fileno()

    def send(self) -> None:
        """Ask."""
        self._received.clear()
        self._length = None
        self._socket.sendall(self._request)

    def receive(self) -> bytes | None:
        """Take what has come; the body once it is whole.

        Raises:
            ConnectionError: the answer is another one than 200, or there is none.
        """
        piece = self._socket.recv(1 << 20)
        if not piece:
            raise ConnectionError("the connection was closed")
        self._received += piece
        if self._length is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return None
            head = self._received[:end].decode().lower()
            if " 200 " not in head.partition("\r\n")[0]:
                raise ConnectionError(head)
            length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
            self._length = end + 4 + int(length.partition(":")[2])
        if len(self._received) < self._length:
            return None
        return bytes(self._received[self._received.find(b"\r\n\r\n") + 4 :])

    def scrape(self) -> tuple[float, bytes]:
        """Seconds from the question to the end of the answer, and the body."""
        start = time.perf_counter()
        self.send()
        while (body := self.receive()) is None:
            pass
        return time.perf_counter() - start, body


def at_once(connections: Sequence[Connection]) -> list[float]:
    """All ask at the same moment; the seconds that each waited."""
    asked, waited = {}, []
    for connection in connections:
        asked[connection] = time.perf_counter()
        connection.send()
    while asked:
        answered = [c for c in select.select(list(asked), (), ())[0] if c.receive() is not None]
        now = time.perf_counter()
        waited += [now - asked.pop(connection) for connection in answered]
    return waited


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds; of few values the latter is the greatest."""
    ordered = sorted(seconds)
    return 1e3 * statistics.median(ordered), 1e3 * ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
