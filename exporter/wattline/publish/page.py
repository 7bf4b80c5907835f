"""The page at ``/``, its files, and the status as JSON: all from memory, nothing from another origin.

The page itself never changes; what it shows comes from ``/api/v1/status``, which its script asks for every 2 s. Without
JavaScript the verdicts are there all the same, as plain text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from wattline.publish.colours import POWER, STATE_COLOURS, TOKENS, text_on
from wattline.publish.runbooks import add_runbooks
from wattline.publish.status import Status, build, encode, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wattline.publish.server import Publication
    from wattline.publish.status import PhaseNow

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # An upgraded exporter must not meet the script of the old one.
    "Cache-Control": "no-cache",
}
API_HEADERS = {**HEADERS, "Cache-Control": "no-store"}

TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Page:
    """What the page is made from. ``configuration`` and ``phase`` are asked at each request."""

    publication: Publication
    configuration: Callable[[], Mapping[str, Any]] | None = None
    """Must hold no secret: it is shown to everybody who can open the page."""
    phase: Callable[[], PhaseNow | None] | None = None
    _schema: bytes = field(default_factory=lambda: msgspec.json.format(msgspec.json.encode(schema())))
    _shell: Template = field(default_factory=lambda: Template(_file("page.html")))

    def status(self) -> Status:
        """Everything that is known now."""
        publication = self.publication
        judged = publication.published_at
        return build(
            publication.snapshot,
            publication.history,
            why_not_ready=None if publication.ready else publication.why_not_ready,
            judged_seconds_ago=None if judged is None else time.monotonic() - judged,
            phase=self.phase() if self.phase else None,
            configuration=self.configuration() if self.configuration else None,
        )

    async def get_page(self, _: web.Request) -> web.Response:
        """GET /: the page."""
        text = self._shell.substitute(
            verdicts=plain(self.status()),
        )
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    async def get_status(self, _: web.Request) -> web.Response:
        """GET /api/v1/status."""
        response = web.Response(body=encode(self.status()), content_type="application/json", headers=API_HEADERS)
        response.enable_compression()
        return response

    async def get_schema(self, _: web.Request) -> web.Response:
        """GET /api/v1/status/schema."""
        return web.Response(body=self._schema, content_type="application/schema+json", headers=HEADERS)


def add_page(
    app: web.Application,
    publication: Publication,
    *,
    configuration: Callable[[], Mapping[str, Any]] | None = None,
    phase: Callable[[], PhaseNow | None] | None = None,
) -> None:
    """Serve the page and the API."""
    page = Page(publication, configuration, phase)
    app.router.add_get("/api/v1/status", page.get_status)
    app.router.add_get("/api/v1/status/schema", page.get_schema)
    add_runbooks(app, HEADERS)
    app.router.add_get("/", page.get_page)
    for name, body in {"colours.css": colours(), **_static()}.items():
        app.router.add_get(f"/static/{name}", _serve(body, TYPES[name.rpartition(".")[2]]))


def colours() -> str:
    """The colours of states and readings as a style sheet."""
    rules = [f":root {{ --power: {POWER}; --tokens: {TOKENS}; }}"]
    rules += [
        f'[data-state="{state.value}"] {{ --state: {colour}; --on-state: {text_on(colour)}; }}'
        for state, colour in STATE_COLOURS.items()
    ]
    return "\n".join(rules) + "\n"


def plain(status: Status) -> str:
    """The verdicts as an HTML list, for browsers that run no script."""
    if not status.deployments:
        return f"<p>{escape(status.why_not_ready or 'There is no deployment.')}</p>"
    items = (
        f"<li><strong>{escape(d.name)}: {escape(d.title)}</strong>. {escape(d.summary)}. {escape(d.reason)}.</li>"
        for d in status.deployments
    )
    return f"<ul>{''.join(items)}</ul>"


def _file(name: str) -> str:
    return files("wattline.publish").joinpath("static", name).read_text(encoding="utf-8")


def _static() -> dict[str, str]:
    return {name: _file(name) for name in ("page.css", "page.js", "icon.svg")}


def _serve(body: str, content_type: str) -> Callable[[web.Request], Any]:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type=content_type, headers=HEADERS)

    return serve
