"""A real server on loopback, protected as a web configuration file says."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from wattline.publish import limits
from wattline.publish.security import WebSecurity


def basic(user: str, password: str | bytes) -> dict[str, str]:
    secret = password if isinstance(password, bytes) else password.encode()
    return {"Authorization": "Basic " + base64.b64encode(user.encode() + b":" + secret).decode()}


@dataclass(frozen=True)
class Reply:
    status: int
    text: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Server:
    port: int
    tls: bool

    async def get(
        self, path: str = "/metrics", headers: dict[str, str] | None = None, client: ssl.SSLContext | None = None
    ) -> Reply:
        """One request over a connection of its own."""
        scheme = "https" if self.tls else "http"
        connector = aiohttp.TCPConnector(force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"{scheme}://127.0.0.1:{self.port}{path}", headers=headers, ssl=client or True) as response,
        ):
            return Reply(response.status, await response.text(), dict(response.headers))

    async def certificate(self, client: ssl.SSLContext) -> bytes | None:
        """What the server shows to a new connection."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=client, server_hostname="127.0.0.1")
        shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return shown


Serve = Callable[[Path | None], Awaitable[Server]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(path: Path | None) -> Server:
            async def metrics(_: web.Request) -> web.Response:
                return web.Response(text="wattline_up 1\n")

            app = web.Application()
            app.router.add_get("/metrics", metrics)
            app.router.add_get("/-/healthy", metrics)
            limits.install(app)
            security = WebSecurity(path)
            security.install(app)
            runner = web.AppRunner(app, **limits.SERVER_LIMITS)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            context = security.ssl_context()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            return Server(port=runner.addresses[0][1], tls=context is not None)

        yield start
    # Transports say goodbye in the next turns of the loop.
    await asyncio.sleep(0)


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def other_authority() -> trustme.CA:
    return trustme.CA()


@dataclass(frozen=True)
class Files:
    """A folder with a web configuration and the files that it names."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "web.yml"

    def write(self, name: str, content: str | bytes) -> Path:
        """Replace a file as a whole, as a careful operator or a mounted secret does."""
        new = self.folder / f".{name}.new"
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        new.replace(self.folder / name)
        return self.folder / name

    def certificate(self, authority: trustme.CA, name: str = "server") -> trustme.LeafCert:
        leaf = authority.issue_cert("127.0.0.1")
        self.write(f"{name}.pem", b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        self.write(f"{name}.key", leaf.private_key_pem.bytes())
        return leaf

    def tls(self, *lines: str) -> Path:
        settings = ["cert_file: server.pem", "key_file: server.key", *lines]
        return self.write("web.yml", "tls_server_config:\n" + "".join(f"  {line}\n" for line in settings))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def client_context(authority: trustme.CA, identity: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if identity is not None:
        identity.configure_cert(context)
    return context
