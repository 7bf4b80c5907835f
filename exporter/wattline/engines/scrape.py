"""Polling of one engine over HTTP: one ``GET`` of its metrics a poll, and nothing else ever.

An engine's ``/health`` makes it generate a token, its ``/server_info`` may hold its keys and hangs when it hangs: only
the metrics path is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import socket
import time
import traceback
from collections import Counter, deque
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from wattline import __version__
from wattline.engines.errors import classify, hint, http_word
from wattline.engines.normalise import normalise
from wattline.engines.target import CredentialsError
from wattline.readings import EngineReading
from wattline.worker import aside

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from wattline.engines.target import Engine


MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_REDIRECTS = 3
MAX_TIMEOUT_SECONDS = 4.0
TIMEOUT_SHARE = 0.8
"""Share of the interval in which an answer must have come, so that polls of one engine never overlap."""
STOP_SECONDS = 2.0
INLINE_BYTES = 64 * 1024
"""A smaller body is parsed where it arrives: handing it over would cost as much."""
_CHUNK_BYTES = 64 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LOG_BURST = 5
_LOG_BURST_SECONDS = 600.0
"""An engine that comes and goes writes this many lines in this time, and no more."""

_HEADERS = {
    # Asked for first, a newer client library of the engine leaves its names as they are.
    "Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1",
    # Compressing costs the engine more than sending does, and some servers do not bear it.
    "Accept-Encoding": "identity",
    "User-Agent": f"wattline/{__version__}",
}

_PERHAPS_MOVED = frozenset({"connection_refused", "connection_reset", "timeout"})
"""After these the name is looked up again: its address may have moved to another host."""

logger = logging.getLogger("wattline.engines")


class _Lookups(AbstractResolver):
    """Looks names up like the system does, each on a thread of its own: one that hangs costs that name alone."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        look_up = functools.partial(
            socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        return [
            ResolveResult(
                hostname=host,
                # Addresses within one link need the link, too.
                host=f"{address[0]}%{address[3]}" if len(address) > 3 and address[3] else str(address[0]),  # noqa: PLR2004
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in await aside(f"wattline-dns {host}", look_up)
        ]

    async def close(self) -> None:
        pass


def open_session() -> aiohttp.ClientSession:
    """Open the HTTP session that all engines share: no cookies, no proxy, one connection an engine kept open."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, limit_per_host=0, resolver=_Lookups(), ttl_dns_cache=30, keepalive_timeout=75
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def next_beat(origin: float, now: float, interval: float) -> float:
    """Give the first beat after ``now``: no drift, and no burst of polls after a pause of the whole machine."""
    beat = origin + (math.floor((now - origin) / interval) + 1) * interval
    return beat if beat > now else beat + interval


class _ScrapeError(Exception):
    """The poll failed for the reason given by a bounded word."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class EngineScraper:
    """Polls one engine on a steady beat until it is stopped. One request is under way at a time.

    Args:
        target: the engine.
        session: shared by all scrapers; see :func:`open_session`. Not closed here.
        interval: seconds between the beginnings of two polls.
        deliver: is given every reading, good or bad, on the event loop.
        on_read: is given the source (``engine:NAME``) and the seconds that each poll took.
        clock: the monotonic clock that readings are stamped by.
    """

    def __init__(
        self,
        target: Engine,
        *,
        session: aiohttp.ClientSession,
        interval: float,
        deliver: Callable[[EngineReading], None],
        on_read: Callable[[str, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.errors: Counter[str] = Counter()
        """Failed polls by their error word, and what was wrong with answers that were usable."""
        self.rejected: Counter[str] = Counter()
        """Values that cannot be, by the name of their metric."""
        self._session = session
        self._interval = interval
        self._timeout = min(MAX_TIMEOUT_SECONDS, TIMEOUT_SHARE * interval)
        self._deliver = deliver
        self._on_read = on_read
        self._clock = clock
        self._url = URL(target.url)
        # A query may hold a key.
        self._shown = str(self._url.with_query(None))
        self._tls: ssl.SSLContext | None = None
        self._task: asyncio.Task[None] | None = None
        self._logged_state: str | None = None
        self._refused = False
        self._log_times: deque[float] = deque(maxlen=_LOG_BURST)

    async def start(self) -> None:
        """Begin to poll, at once."""
        if self.target.insecure_skip_verify:
            logger.warning("%s: the certificate is not verified (insecure_skip_verify)", self.target.name)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"scrape {self.target.name}")

    async def stop(self) -> None:
        """Stop polling; a request under way is given up. Returns within :data:`STOP_SECONDS`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_SECONDS)

    async def poll(self) -> EngineReading:
        """Ask once, and make the reading. Never raises but for cancellation."""
        started = self._clock()
        try:
            reading = await self._read()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with one engine is a reading of it
            word = error.word if isinstance(error, _ScrapeError) else classify(error)
            if word == "internal":
                # Without its message, which may hold the address and what authorises.
                trace = "".join(traceback.format_tb(error.__traceback__))
                logger.debug("%s: unexpected %s\n%s", self.target.name, type(error).__name__, trace)
            reading = EngineReading(self._clock(), self.target.name, up=False, error=word)
        if not reading.up:
            self.errors[str(reading.error)] += 1
            # A server may have moved its metrics back, an authority may have been replaced.
            self._url, self._tls = URL(self.target.url), None
            if reading.error in _PERHAPS_MOVED and isinstance(self._session.connector, aiohttp.TCPConnector):
                self._session.connector.clear_dns_cache(self._url.host, self._url.port)
        self._account(reading)
        self._log(reading)
        if self._on_read is not None:
            self._on_read(self.target.source, self._clock() - started)
        return reading

    def _account(self, reading: EngineReading) -> None:
        """Count what a usable answer lacked; every word and name is one of a table's."""
        for error in reading.errors:
            if error.kind == "implausible":
                self.rejected[error.reading] += 1
            else:
                self.errors[error.kind] += 1
        if reading.ranks_disagree:
            self.errors["ranks_disagree"] += 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        origin = loop.time()
        while True:
            reading = await self.poll()
            try:
                self._deliver(reading)
            except Exception:
                if not self._refused:
                    logger.exception("%s: the reading could not be taken in", self.target.name)
                self._refused = True
            else:
                self._refused = False
            await asyncio.sleep(next_beat(origin, loop.time(), self._interval) - loop.time())

    async def _read(self) -> EngineReading:
        async with asyncio.timeout(self._timeout):
            body, content_type = await self._fetch()
        t = self._clock()
        make = functools.partial(
            normalise, body, engine=self.target.name, t=t, content_type=content_type, kind=self.target.kind
        )
        if len(body) <= INLINE_BYTES:
            return make()
        return await aside("wattline-parse", make)

    async def _fetch(self) -> tuple[bytes, str | None]:
        try:
            headers = _HEADERS | self.target.headers()
        except CredentialsError as error:
            raise _ScrapeError(error.word) from None
        url = self._url
        for _ in range(MAX_REDIRECTS + 1):
            # No redirect is followed by the library: it would carry the token to wherever it is sent.
            async with self._session.get(
                url,
                headers=headers,
                allow_redirects=False,
                ssl=self._context(),
                server_hostname=self.target.server_name if url.scheme == "https" else None,
                timeout=aiohttp.ClientTimeout(total=self._timeout),
            ) as response:
                if response.status in _REDIRECTS:
                    url = self._redirected(url, response.headers)
                    continue
                if response.status != 200:  # noqa: PLR2004
                    raise _ScrapeError(http_word(response.status))
                body = await _body(response)
                self._url = url
                return body, response.headers.get("Content-Type")
        raise _ScrapeError("redirect")

    def _context(self) -> ssl.SSLContext | bool:
        if self._url.scheme != "https":
            return True
        if self._tls is None:
            try:
                self._tls = self.target.tls()
            except OSError:
                raise _ScrapeError("tls") from None
        return self._tls

    def _redirected(self, url: URL, headers: Mapping[str, str]) -> URL:
        with contextlib.suppress(ValueError):
            new = url.join(URL(headers.get("Location", "")))
            if new.origin() == URL(self.target.url).origin():
                return new.with_user(None).with_fragment(None)
        raise _ScrapeError("redirect")

    def _log(self, reading: EngineReading) -> None:
        state = reading.error or "up"
        if state == self._logged_state:
            return
        now = self._clock()
        if len(self._log_times) == _LOG_BURST and now - self._log_times[0] < _LOG_BURST_SECONDS:
            return
        if reading.up:
            logger.info("%s: reading %s metrics at %s", self.target.name, reading.kind, self._shown)
        else:
            what = hint(state, self.target.kind)
            logger.warning("%s: %s at %s%s", self.target.name, state, self._shown, f" ({what})" if what else "")
        self._logged_state = state
        self._log_times.append(now)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Read at most :data:`MAX_BODY_BYTES`, counted after decompression."""
    if (response.content_length or 0) > MAX_BODY_BYTES:
        raise _ScrapeError("too_large")
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            with contextlib.suppress(Exception):
                response.close()
            raise _ScrapeError("too_large")
        chunks.append(chunk)
    body = b"".join(chunks)
    if response.content_length is None and "Transfer-Encoding" not in response.headers:
        # The end of such a body is wherever the connection ended: a last line without an end may be half a number.
        body = body[: body.rfind(b"\n") + 1]
    return body
