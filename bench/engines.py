"""Inference servers that only repeat a recorded text, with token counters that go on: cheap, whatever its size.

Usage: ``python -m bench.engines TEXT.prom.gz NUMBER`` prints the port, then serves ``/0/metrics``, ``/1/metrics``, ...
"""

from __future__ import annotations

import asyncio
import gzip
import re
import sys
import time
from pathlib import Path

from aiohttp import web

TOKENS_PER_SECOND = 1000
"""What each series of the token counter grows by."""
MOVING = re.compile(rb"^(sglang:realtime_tokens_total\{[^}]*\}) (\S+)$", re.MULTILINE)


class Server:
    """One text for all engines. It is cut where a counter moves, once."""

    def __init__(self, text: bytes) -> None:
        self._parts: list[bytes | float] = []
        at = 0
        for found in MOVING.finditer(text):
            self._parts += [text[at : found.end(1)], float(found[2])]
            at = found.end()
        self._parts.append(text[at:])
        self._start = time.monotonic()

    def body(self, seconds: float) -> bytes:
        """The text after so many seconds."""
        grown = TOKENS_PER_SECOND * seconds
        return b"".join(part if isinstance(part, bytes) else b" %.1f" % (part + grown) for part in self._parts)

    async def metrics(self, _: web.Request) -> web.Response:
        """GET /NUMBER/metrics."""
        body = self.body(time.monotonic() - self._start)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def serve(text: bytes, number: int) -> None:
    """Serve on a port of loopback that the system chooses, until the process is ended."""
    server = Server(text)
    app = web.Application()
    for engine in range(number):
        app.router.add_get(f"/{engine}/metrics", server.metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(gzip.decompress(Path(sys.argv[1]).read_bytes()), int(sys.argv[2])))
