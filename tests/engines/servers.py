"""HTTP servers that behave as they are told to, on a port of the loopback interface that the system chooses."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

METRICS = b"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 3.0\nsglang:num_queue_reqs 2.0\n"


@dataclass(frozen=True)
class Request:
    line: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


def answer(body: bytes = METRICS, status: str = "200 OK", **headers: str) -> bytes:
    """Give a whole answer; header names are written with underscores."""
    all_headers = {"Content-Type": "text/plain; version=0.0.4", "Content-Length": str(len(body))}
    all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class Server:
    """Answers every request with what ``handler`` gives, and remembers the requests.

    A handler that returns ``None`` has written, or not written, what it wanted itself; the connection is then closed.
    """

    def __init__(
        self,
        handler: Callable[[Request, asyncio.StreamWriter], Awaitable[bytes | None]] | bytes,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handler = handler
        self._host = host
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []
        self.connections = 0
        self.most_at_once = 0
        self._at_once = 0

    @property
    def origin(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/metrics"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                while await self._serve(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.strip().split("\r\n")
        request = Request(line, dict(header.split(": ", 1) for header in rest))
        self.requests.append(request)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            data = self._handler if isinstance(self._handler, bytes) else await self._handler(request, writer)
        finally:
            self._at_once -= 1
        if data is None:
            await writer.drain()
            writer.close()
            return False
        writer.write(data)
        await writer.drain()
        return True
