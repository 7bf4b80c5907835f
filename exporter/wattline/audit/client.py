"""Asking a Prometheus, Thanos, Mimir or VictoriaMetrics, politely: few questions at once, each of a bounded size.

Raw samples are asked for (``metric[6h]`` at one moment): their times are those of the scrapes, a gap is a gap, and no
old value is repeated over it.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from wattline import __version__
from wattline.engines.errors import classify
from wattline.engines.target import CredentialsError, Engine
from wattline.yamlfile import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

MAX_BODY_BYTES = 256 * 1024 * 1024
TIMEOUT_SECONDS = 120.0
TRIES = 5
BUSY = frozenset({429, 502, 503, 504})
_CHUNK = 64 * 1024


class ServerError(UsageError):
    """The server does not answer as a Prometheus does. Its message says what was found."""


class SampledSeries(Struct, frozen=True):
    """One series and its samples as (Unix seconds, value)."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Matrix(Struct, frozen=True):
    result: list[SampledSeries]


class _Sampled(Struct, frozen=True):
    data: _Matrix


class _Listed(Struct, frozen=True):
    data: list[dict[str, str]]


class Server:
    """One server. Used as an asynchronous context.

    Args:
        access: its address, token and authorities.
        user: for basic authentication, with the file of its password.
        tenant: sent as ``X-Scope-OrgID``.
        at_once: questions under way at most.
        pause: seconds before a question is asked again, doubled each time.
    """

    def __init__(
        self,
        access: Engine,
        *,
        user: tuple[str, str] | None = None,
        tenant: str | None = None,
        at_once: int = 4,
        pause: float = 1.0,
    ) -> None:
        self._access = access
        self._base = URL(access.url)
        self._user = user
        self._tenant = tenant
        self._turn = asyncio.Semaphore(at_once)
        self._pause = pause
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def series(self, selectors: Sequence[str], start: float, end: float) -> list[dict[str, str]]:
        """The label sets of all series that match one of the selectors within the time.

        Raises:
            ServerError: no usable answer came.
        """
        asked = [*(("match[]", s) for s in selectors), ("start", f"{start:.3f}"), ("end", f"{end:.3f}")]
        return self._understood(await self._ask("api/v1/series", asked), _Listed).data

    async def samples(self, selector: str, start: float, end: float) -> list[SampledSeries]:
        """The raw samples from ``start`` to ``end`` of all series that a selector matches. Raises as :meth:`series`."""
        query = f"{selector}[{max(1, round(end - start))}s]"
        answer = await self._ask("api/v1/query", [("query", query), ("time", f"{end:.3f}")])
        return self._understood(answer, _Sampled).data.result

    def _understood(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            shown = body[:60].decode("utf-8", "replace")
            raise ServerError(f"{self._base}: expected the JSON of a Prometheus, found {shown!r} ({error})") from None

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": f"wattline/{__version__}"}
        try:
            headers |= self._access.headers()
        except CredentialsError as error:
            raise ServerError(f"{self._base}: {error}") from None
        if self._user is not None:
            name, file = self._user
            try:
                password = Path(file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ServerError(f"the password cannot be read: {error.strerror}: {file}") from None
            headers["Authorization"] = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
        if self._tenant is not None:
            headers["X-Scope-OrgID"] = self._tenant
        return headers

    async def _ask(self, path: str, asked: Sequence[tuple[str, str]]) -> bytes:
        """Ask until an answer comes; a server that is busy is asked again later, and less and less often."""
        headers, problem = self._headers(), ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(self._pause * 2 ** (attempt - 1))
            async with self._turn:
                status, answered, body = await self._once(path, asked, headers)
            if status == 200:  # noqa: PLR2004
                return body
            problem = _problem(status, answered, body)
            if status not in BUSY and status != 0:
                break
        raise ServerError(f"{self._base}: {problem}")

    async def _once(
        self, path: str, asked: Sequence[tuple[str, str]], headers: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        """One request: its status (0: no answer), where it redirects or why there is no answer, and the body."""
        assert self._session is not None  # noqa: S101 - used as a context
        try:
            context = self._access.tls() if self._base.scheme == "https" else True
            async with self._session.post(
                self._base / path,
                data=asked,
                headers=headers,
                ssl=context,
                server_hostname=self._access.server_name if self._base.scheme == "https" else None,
                # A redirect would carry the token to wherever it leads.
                allow_redirects=False,
            ) as response:
                chunks, size = [], 0
                async for chunk in response.content.iter_chunked(_CHUNK):
                    size += len(chunk)
                    if size > MAX_BODY_BYTES:
                        return -1, f"an answer of more than {MAX_BODY_BYTES >> 20} MiB", b""
                    chunks.append(chunk)
                return response.status, response.headers.get("Location", ""), b"".join(chunks)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return 0, classify(error), b""


def _problem(status: int, answered: str, body: bytes) -> str:
    if status == 0:
        return f"no answer ({answered})"
    if status < 0:
        return answered
    if answered:
        return f"it redirects to {URL(answered).with_query(None)}; give that address if it is the right one"
    said = body[:200].decode("utf-8", "replace").strip()
    return f"HTTP {status}: {said}"
