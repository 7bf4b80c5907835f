"""The HTTP face: everything is served from memory, and nothing that is asked here reaches a GPU or an engine."""

from __future__ import annotations

import gzip
import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from wattline.analysis.snapshot import Snapshot
from wattline.publish.collector import Registry
from wattline.publish.history import History
from wattline.publish.metrics_text import openmetrics_text, plain_text
from wattline.publish.page import add_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from prometheus_client import CollectorRegistry

    from wattline.config import Price
    from wattline.publish.status import PhaseNow

log = logging.getLogger("wattline.web")

GZIP_LEVEL = 1
"""The text shrinks twentyfold even so; higher levels cost more time than they save."""


@dataclass(slots=True)
class Publication:
    """What is served: the last snapshot and its renderings, made once however many ask.

    ``ready`` becomes true with the first complete reading and false while every GPU source is stale; on a host that
    is to have no GPU it is an engine that counts.
    """

    registry: Registry = field(default_factory=Registry)
    history: History = field(default_factory=History)
    published_at: float | None = None
    """When the snapshot came, by :func:`time.monotonic`; ``None`` before the first one."""
    ready: bool = False
    why_not_ready: str = "no reading yet"
    _rendered: dict[tuple[str, bool], tuple[bytes, str]] = field(default_factory=dict)

    @property
    def snapshot(self) -> Snapshot:
        """What was published last."""
        return self.registry.collector.snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Serve this from now on."""
        self.registry.collector.snapshot = snapshot
        self.registry.forget_others(source.name for source in snapshot.sources)
        self.history.add(snapshot)
        self.published_at = time.monotonic()
        self._rendered.clear()
        lost = [s for s in snapshot.gpus if not s.up]
        self.ready = any(g.up for g in snapshot.gpus) or (
            not snapshot.watches_gpus and any(s.up for s in snapshot.sources)
        )
        if not self.ready:
            down = [f"{s.name}: {s.detail or 'not read'}" for s in snapshot.sources if not s.up]
            self.why_not_ready = "; ".join(down) or (f"{len(lost)} GPUs lost" if lost else "no GPU was read yet")

    def withdraw(self, why: str) -> None:
        """Serve nothing but the exporter's own metrics until the next snapshot."""
        self.registry.collector.snapshot = Snapshot(t=self.snapshot.t)
        self._rendered.clear()
        self.ready, self.why_not_ready = False, why

    def set_price(self, price: Price | None) -> None:
        """Tell what energy costs from now on."""
        self.registry.collector.price = price
        self._rendered.clear()

    def refresh(self) -> None:
        """Render anew at the next scrape: the exporter has something to tell of itself."""
        self._rendered.clear()

    def render(self, accept: str, *, compressed: bool) -> tuple[bytes, str]:
        """The metrics text and its content type, for an Accept header."""
        encoder, content_type = negotiate(accept)
        key = (content_type, compressed)
        if key not in self._rendered:
            body = self._encode(encoder)
            self._rendered[key] = (gzip.compress(body, GZIP_LEVEL) if compressed else body, content_type)
        return self._rendered[key]

    def _encode(self, encoder: Callable[[CollectorRegistry], bytes]) -> bytes:
        try:
            return encoder(self.registry.registry)
        except Exception:
            # A scrape that fails would hide even that something is wrong.
            log.exception("The metrics cannot be written; until the next verdict only the exporter's own are served")
            self.withdraw("its metrics cannot be written")
            return encoder(self.registry.registry)


_SPOKEN = re.compile(
    r"(text/plain; version=(0\.0\.4|1\.0\.0)|application/openmetrics-text; version=1\.0\.0)"
    r"; charset=utf-8(; escaping=(allow-utf-8|underscores|dots|values))?"
)


def negotiate(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """What writes the metrics, and their content type, for an Accept header; plain text for one that asks otherwise.

    The client library takes any version that it is asked for, and fails on one that is no number.
    """
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        encoder, content_type = choose_encoder("")
    if not _SPOKEN.fullmatch(content_type):
        encoder, content_type = choose_encoder("")
    if "escaping=dots" not in content_type and "escaping=values" not in content_type:
        # No name of ours needs to be escaped, so all other ways write the same.
        encoder = openmetrics_text if "openmetrics" in content_type else plain_text
    return encoder, content_type


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip; ``gzip;q=0`` forbids it."""
    for coding in accept_encoding.lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name == "gzip":
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


PUBLICATION = web.AppKey("publication", Publication)


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics."""
    compressed = accepts_gzip(request.headers.get("Accept-Encoding", ""))
    body, content_type = request.app[PUBLICATION].render(request.headers.get("Accept", ""), compressed=compressed)
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if compressed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, headers=headers)


async def healthy(_: web.Request) -> web.Response:
    """GET /-/healthy: the process lives."""
    return web.Response(text="Wattline is healthy.\n")


async def ready(request: web.Request) -> web.Response:
    """GET /-/ready: 503 until the first complete reading, and again when no GPU can be read."""
    publication = request.app[PUBLICATION]
    if publication.ready:
        return web.Response(text="Wattline is ready.\n")
    return web.Response(status=503, text=f"Not ready: {publication.why_not_ready}\n")


def make_app(
    publication: Publication,
    *,
    reload_config: Callable[[], Awaitable[str]] | None = None,
    configuration: Callable[[], Mapping[str, Any]] | None = None,
    phase: Callable[[], PhaseNow | None] | None = None,
) -> web.Application:
    """The application.

    Args:
        publication: what is served.
        reload_config: answers an error message or nothing; without it there is no such endpoint.
        configuration: what is in force, for people: without secrets.
        phase: what a demo goes through now.
    """
    app = web.Application()
    app[PUBLICATION] = publication
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    add_page(app, publication, configuration=configuration, phase=phase)
    if reload_config is not None:

        async def reload(_: web.Request) -> web.Response:
            """POST /-/reload: read the configuration again; 500 and the reason when the old one stays in force."""
            error = await reload_config()
            return web.Response(status=500, text=f"{error}\n") if error else web.Response(text="Reloaded.\n")

        app.router.add_post("/-/reload", reload)
    return app
