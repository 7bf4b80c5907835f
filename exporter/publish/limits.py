"""Bounds on what one client, or many, may ask of the exporter: it runs beside a server that earns money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

MAX_CONCURRENT: Final = 40
"""Requests answered at a time. Prometheus asks once a scrape; a person with a browser a few times."""

SERVER_LIMITS: Final[dict[str, Any]] = {
    "max_line_size": 4096,
    "max_field_size": 8190,
    "max_headers": 64,
    # Idle connections are let go; a scrape interval is usually shorter.
    "keepalive_timeout": 120.0,
    "lingering_time": 1.0,
}
"""For :class:`aiohttp.web.AppRunner`: what is beyond them is answered with 400."""


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
