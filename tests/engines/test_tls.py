"""Certificates: whom to believe is a matter of each engine."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.engines.servers import Server, answer
from wattline.engines.scrape import EngineScraper
from wattline.engines.target import Engine

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from wattline.readings import EngineReading


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def serving(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


async def poll(session: aiohttp.ClientSession, url: str, **settings: object) -> EngineReading:
    target = Engine(name="e", url=url, **settings)  # type: ignore[arg-type]
    return await EngineScraper(target, session=session, interval=30.0, deliver=lambda _: None).poll()


async def test_an_unknown_authority_is_not_believed_unless_it_is_named(
    session: aiohttp.ClientSession, authority: trustme.CA, ca_file: str
) -> None:
    async with Server(answer(), tls=serving(authority, "127.0.0.1")) as server:
        assert (await poll(session, server.url)).error == "tls"
        assert server.requests == []
        assert (await poll(session, server.url, ca_file=ca_file)).running == 3
        assert (await poll(session, server.url)).error == "tls"  # others verify as before


async def test_verification_can_be_switched_off_for_one_engine(
    session: aiohttp.ClientSession, authority: trustme.CA
) -> None:
    async with Server(answer(), tls=serving(authority, "engine")) as server:
        assert (await poll(session, server.url, insecure_skip_verify=True)).running == 3
        assert (await poll(session, server.url)).error == "tls"


async def test_a_certificate_for_another_name_needs_that_name(
    session: aiohttp.ClientSession, authority: trustme.CA, ca_file: str
) -> None:
    async with Server(answer(), tls=serving(authority, "engine.example")) as server:
        assert (await poll(session, server.url, ca_file=ca_file)).error == "tls"
        assert (await poll(session, server.url, ca_file=ca_file, server_name="engine.example")).running == 3
        assert (await poll(session, server.url, ca_file=ca_file, server_name="other.example")).error == "tls"


async def test_a_ca_file_that_is_none_is_a_tls_error(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    assert (await poll(session, "https://127.0.0.1:1/metrics", ca_file=str(nonsense))).error == "tls"
    assert (await poll(session, "https://127.0.0.1:1/metrics", ca_file=str(tmp_path / "none"))).error == "tls"


async def test_an_authority_replaced_while_running_is_believed_from_the_next_poll(
    session: aiohttp.ClientSession, authority: trustme.CA, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(path)
    async with Server(answer(), tls=serving(authority, "127.0.0.1")) as server:
        target = Engine(name="e", url=server.url, ca_file=str(path))
        poller = EngineScraper(target, session=session, interval=30.0, deliver=lambda _: None)
        assert (await poller.poll()).error == "tls"
        authority.cert_pem.write_to_path(path)
        assert (await poller.poll()).running == 3


async def test_https_spoken_to_a_plain_server_is_a_tls_error(session: aiohttp.ClientSession) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(b"", "400 Bad Request"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert (await poll(session, f"https://127.0.0.1:{port}/metrics")).error == "tls"


async def test_switching_verification_off_is_said_in_the_log(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    target = Engine(name="e", url="https://127.0.0.1:1/metrics", insecure_skip_verify=True)
    poller = EngineScraper(target, session=session, interval=30.0, deliver=lambda _: None)
    await poller.start()
    await poller.stop()
    assert "not verified" in caplog.text
