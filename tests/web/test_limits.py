from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from wattline.publish import limits


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


class Busy:
    """A server whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Semaphore(0)
        self.release = asyncio.Event()
        self.url = ""

    async def answer(self, _: web.Request) -> web.Response:
        self.entered.release()
        await self.release.wait()
        return web.Response(text="done")

    async def fail(self, _: web.Request) -> web.Response:
        raise web.HTTPNotFound


@pytest.fixture
async def busy() -> AsyncIterator[Busy]:
    busy = Busy()
    app = web.Application()
    app.router.add_route("*", "/", busy.answer)
    app.router.add_get("/fail", busy.fail)
    limits.install(app, max_concurrent=2)
    runner = web.AppRunner(app, **limits.SERVER_LIMITS)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    busy.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield busy
    busy.release.set()
    await runner.cleanup()


async def test_requests_beyond_the_bound_are_refused_at_once_and_later_ones_are_answered(
    busy: Busy, session: aiohttp.ClientSession
) -> None:
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(session.get(busy.url)) for _ in range(2)]
        for _ in held:
            await busy.entered.acquire()
        async with session.get(busy.url) as refused:
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "1"
        busy.release.set()
    for task in held:
        async with task.result() as answered:
            assert answered.status == 200
    async with session.get(busy.url) as again:
        assert again.status == 200


async def test_failed_requests_do_not_stay_counted(busy: Busy, session: aiohttp.ClientSession) -> None:
    for _ in range(5):
        async with session.get(f"{busy.url}fail") as failed:
            assert failed.status == 404


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_body_is_refused_unread(busy: Busy, session: aiohttp.ClientSession, chunked: bool) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 100

    async with session.post(busy.url, data=endless() if chunked else b"x" * 100) as refused:
        assert refused.status == 413


async def test_huge_headers_are_refused(busy: Busy, session: aiohttp.ClientSession) -> None:
    async with session.get(busy.url, headers={"X-Long": "x" * 10_000}) as refused:
        assert refused.status == 400


async def test_many_headers_are_refused(busy: Busy, session: aiohttp.ClientSession) -> None:
    async with session.get(busy.url, headers={f"X-{n}": "x" for n in range(100)}) as refused:
        assert refused.status == 400


async def test_a_long_address_is_refused(busy: Busy, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{busy.url}?{'x' * 5000}") as refused:
        assert refused.status == 400
