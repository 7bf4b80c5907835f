"""Bounds on what one client, or many, may ask of the exporter: it runs beside a server that earns money."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

MAX_CONCURRENT: Final = 40
"""Requests answered at a time. Prometheus asks once a scrape; a person with a browser a few times."""

MAX_CONNECTIONS: Final = 256
"""Open at a time; beyond them the oldest are closed, which are those that say nothing. Who scrapes just comes again."""
CONNECTIONS_LOOKED_AT_EVERY: Final = 1.0
WANTED_FILES: Final = 16_384
"""File descriptors: more connections than can be opened between two looks."""


def _no_fault_of_a_client(record: logging.LogRecord) -> bool:
    """What is no HTTP is answered with 400 and not logged: it says nothing about us, and may hold a password."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


log = logging.getLogger("wattline.web")
log.addFilter(_no_fault_of_a_client)

SERVER_LIMITS: Final[dict[str, Any]] = {
    "max_line_size": 4096,
    "max_field_size": 8190,
    "max_headers": 64,
    # Idle connections are let go; a scrape interval is usually shorter.
    "keepalive_timeout": 120.0,
    "lingering_time": 1.0,
    "logger": log,
}
"""For :class:`aiohttp.web.AppRunner`: what is beyond them is answered with 400."""


def raise_file_limit() -> None:
    """Allow this process as many files as it may have by its hard limit, up to :data:`WANTED_FILES`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def close_the_oldest(runner: web.AppRunner, most: int = MAX_CONNECTIONS) -> None:
    """Keep no more than ``most`` connections to a server open. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(CONNECTIONS_LOOKED_AT_EVERY)
        for connection in runner.server.connections[:-most] if runner.server else ():
            connection.force_close()


def install(app: web.Application, max_concurrent: int = MAX_CONCURRENT) -> None:
    """Bound an application; to be called before anything else that adds a middleware."""
    held = 0

    @web.middleware
    async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal held
        if request.body_exists:
            # Nothing here takes a body, so none is read.
            return _refusal(413, "Nothing here takes a request body.\n")
        if held >= max_concurrent:
            return _refusal(503, f"Busy: {held} requests are being answered.\n", {hdrs.RETRY_AFTER: "1"})
        held += 1
        try:
            return await handler(request)
        finally:
            held -= 1

    app.middlewares.insert(0, bounded)


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    response = web.Response(status=status, text=text, headers=headers)
    response.force_close()
    return response
