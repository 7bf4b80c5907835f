"""Several hosts on one: each node is an exporter with a rig of its own, on a port that the system chose."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import replace

from wattline.config import Deployment, Engine, parse
from wattline.publish.server import Publication, make_app
from wattline.session import Session
from wattline.simulation.demo import Demo

# The shortest that a configuration may say: what takes a minute in the world takes three seconds here.
HASTE = "{window: 3s, engine_interval: 1s, sample_interval: 200ms}"


@dataclass(frozen=True)
class Node:
    """One host of eight GPUs."""

    deployment: str
    scenario: str
    seed: int
    reads_head: bool = False
    """It has no server of its own: the first node's is read for its load."""


class _Running:
    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._head = ""
        self._demos: list[Demo] = []
        self._sessions: list[Session] = []
        self._runners: list[web.AppRunner] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, node: Node) -> None:
        demo = Demo(scenario=node.scenario, host=node.seed)
        self._demos.append(demo)
        if node.reads_head:
            engine = Engine(url=self._head, name="head", count_tokens=False)
        else:
            url = await demo.start()
            self._head = self._head or url
            engine = Engine(url=url, name="head")
        deployment = Deployment(name=node.deployment, engines=(engine,))
        session = Session(replace(parse(HASTE, "haste"), deployments=(deployment,)), demo.source, clock=demo.clock.now)
        await session.start()
        self._sessions.append(session)
        publication = Publication()
        runner = web.AppRunner(make_app(publication), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.addresses.append(site.name.removeprefix("http://"))
        self._tasks.append(asyncio.create_task(self._judge(session, publication)))

    @staticmethod
    async def _judge(session: Session, publication: Publication) -> None:
        while True:
            publication.publish(session.judge())
            await asyncio.sleep(session.beat())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()
        for session in self._sessions:
            await session.stop()
        for demo in self._demos:
            await demo.close()


@contextmanager
def running(*nodes: Node) -> Iterator[list[str]]:
    """Run the nodes on a thread; gives their addresses in order."""
    started, ends = threading.Event(), asyncio.Event()
    found = _Running()
    loops: list[asyncio.AbstractEventLoop] = []
    failures: list[BaseException] = []

    async def live() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            for node in nodes:
                await found.start(node)
            started.set()
            await ends.wait()
        finally:
            await found.stop()

    def work() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:  # noqa: BLE001 - handed over
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    try:
        if failures:
            raise failures[0]
        yield found.addresses
    finally:
        if loops and thread.is_alive():
            loops[0].call_soon_threadsafe(ends.set)
        thread.join()
