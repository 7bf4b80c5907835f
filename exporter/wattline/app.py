"""The running exporter: verdicts on a steady beat, published from memory until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from aiohttp import web

from wattline import __version__
from wattline.publish.limits import SERVER_LIMITS, close_the_oldest, install, raise_file_limit
from wattline.publish.security import WebSecurity
from wattline.publish.server import Publication, make_app
from wattline.yamlfile import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from wattline.analysis.snapshot import Snapshot
    from wattline.config import Config
    from wattline.publish.status import PhaseNow

log = logging.getLogger("wattline")

STOP_ANSWERS_SECONDS = 0.3
"""At the end, for answers that are under way."""


class Served(Protocol):
    """What reads and judges: a session of this host, or a recording."""

    async def start(self) -> None:
        """Begin to read."""

    async def stop(self) -> None:
        """Stop reading."""

    def judge(self) -> Snapshot:
        """Everything that is known and believed now."""

    def beat(self) -> float:
        """Real seconds from one verdict to the next."""


def for_people(config: Config) -> dict[str, Any]:
    """The configuration as plain data without secrets: tokens are never in it, and queries of addresses are cut."""
    shown: dict[str, Any] = msgspec.to_builtins(config)
    for deployment in shown["deployments"]:
        for engine in deployment["engines"] if isinstance(deployment["engines"], (list, tuple)) else ():
            engine["url"] = engine["url"].partition("?")[0]
    return shown


class Exporter:
    """What is judged, served over HTTP until a signal ends it.

    Args:
        session: what reads and judges; started and stopped here.
        publication: what is served.
        listen: host (``None`` for all addresses) and port.
        web_config: file with TLS and users, if any.
        configuration: what is in force, for people: without secrets.
        reload_config: takes the configuration file into force again, or raises :class:`ConfigError`; ``None`` when
            there is none to read.
        enable_lifecycle: whether ``POST /-/reload`` exists.
        phase: what a demo goes through now.
    """

    def __init__(
        self,
        session: Served,
        publication: Publication,
        *,
        listen: tuple[str | None, int],
        web_config: str | None = None,
        configuration: Callable[[], Mapping[str, Any]] | None = None,
        reload_config: Callable[[], Awaitable[None]] | None = None,
        enable_lifecycle: bool = False,
        phase: Callable[[], PhaseNow | None] | None = None,
    ) -> None:
        self.session = session
        self.publication = publication
        self._listen = listen
        self._security = WebSecurity(web_config)
        self._configuration = configuration
        self._reload_config = reload_config
        self._enable_lifecycle = enable_lifecycle
        self._phase = phase
        self._stopping = asyncio.Event()
        self._judging = True
        self._started = asyncio.Event()
        self._reloading: set[asyncio.Task[str]] = set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        raise_file_limit()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if self._reload_config is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload_soon)
        runner = self._runner()
        reaper = asyncio.create_task(close_the_oldest(runner))
        stops = [runner.cleanup]
        try:
            await self._serve(runner)
            # Not before there is an address: who fails to get one must not save what it has not learned.
            stops.append(self.session.stop)
            await self.session.start()
            self._started.set()
            self.publication.registry.reload_ok.set(1)
            self.publication.registry.reload_time.set_to_current_time()
            await self._judge_until_stopped()
        finally:
            # At the same time, as each may have to wait for something that hangs.
            reaper.cancel()
            await asyncio.gather(*(stop() for stop in stops))
        log.info("Wattline has stopped")

    def _runner(self) -> web.AppRunner:
        app = make_app(
            self.publication,
            reload_config=self.reload if self._enable_lifecycle and self._reload_config else None,
            configuration=self._configuration,
            phase=self._phase,
        )
        install(app)
        self._security.install(app)
        return web.AppRunner(app, access_log=None, shutdown_timeout=STOP_ANSWERS_SECONDS, **SERVER_LIMITS)

    async def _serve(self, runner: web.AppRunner) -> None:
        await runner.setup()
        host, port = self._listen
        try:
            site = web.TCPSite(runner, host, port, ssl_context=self._security.ssl_context())
            await site.start()
        except OSError as error:
            raise ConfigError("--web.listen-address", f"{host or ''}:{port}: {error.strerror}") from None
        port = runner.addresses[0][1]  # The system's choice where 0 was asked for.
        scheme = "https" if self._security.ssl_context() else "http"
        shown = f"[{host}]" if host and ":" in host else host or "localhost"
        log.info("Wattline %s serves %s://%s:%d/metrics", __version__, scheme, shown, port)

    async def _judge_until_stopped(self) -> None:
        """Judge and publish on a steady beat of the readings' clock."""
        while not self._stopping.is_set():
            try:
                self.publication.publish(self.session.judge())
                self._judging = True
            except Exception:
                # The last verdicts must not go on as if they were new.
                self.publication.withdraw("judging failed")
                if self._judging:
                    log.exception("Judging failed; nothing is published until it works again")
                self._judging = False
            with suppress(TimeoutError):
                async with asyncio.timeout(self.session.beat()):
                    await self._stopping.wait()

    def _reload_soon(self) -> None:
        reloading = asyncio.get_running_loop().create_task(self.reload())
        self._reloading.add(reloading)
        reloading.add_done_callback(self._reloading.discard)

    async def reload(self) -> str:
        """Read the configuration again; the reason when it is refused and the old one stays in force, else nothing."""
        assert self._reload_config is not None  # noqa: S101 - only called when there is something to read
        problem = ""
        await self._started.wait()
        try:
            await self._reload_config()
        except ConfigError as error:
            problem = str(error)
            log.error("Configuration refused, the old one stays in force: %s", error)  # noqa: TRY400 - not a fault here
        except Exception as error:
            problem = f"failed: {type(error).__name__}"
            log.exception("Reloading has failed")
        else:
            self.publication.registry.reload_time.set_to_current_time()
            log.info("Configuration reloaded")
        self.publication.registry.reload_ok.set(not problem)
        self.publication.refresh()
        return problem
