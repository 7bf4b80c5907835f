"""The exporter's application on loopback, with snapshots made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest_asyncio
from aiohttp import web

from wattline.publish.server import Publication, make_app
from wattline.publish.status import PhaseNow


@dataclass
class Exporter:
    """Can be stopped and started again on the same port."""

    publication: Publication = field(default_factory=Publication)
    configuration: Callable[[], Mapping[str, Any]] | None = None
    phase: Callable[[], PhaseNow | None] | None = None
    port: int = 0
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = make_app(
            self.publication,
            configuration=self.configuration,
            phase=self.phase,
        )
        # Connections that a browser keeps open do not hold up the end.
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest_asyncio.fixture(loop_scope="function")
async def exporter() -> AsyncIterator[Exporter]:
    """An exporter that listens and has read nothing yet."""
    exporter = Exporter()
    await exporter.start()
    yield exporter
    await exporter.stop()
