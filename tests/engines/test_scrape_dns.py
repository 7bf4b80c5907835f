"""A server that moves to another address keeps its name: the name is looked up again after a failed connection."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.engines.servers import Server, answer
from wattline.engines.scrape import EngineScraper, open_session
from wattline.engines.target import Engine


async def test_a_name_is_looked_up_again_after_its_address_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    addresses = ["127.0.0.2", "127.0.0.1"]

    def look_up(host: str, port: int, *_: object, **__: object) -> list[Any]:
        looked_up.append(addresses[min(len(looked_up), 1)])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (looked_up[-1], port))]

    async with Server(answer()) as server, open_session() as session:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        engine = Engine(url=server.url.replace("127.0.0.1", "engine.example"), name="e")
        scraper = EngineScraper(engine, session=session, interval=5.0, deliver=lambda _: None)
        assert (await scraper.poll()).error == "connection_refused"
        assert (await scraper.poll()).up, "after 5 s, and not after the 30 s for which a name is kept"
        await scraper.poll()
    assert looked_up == ["127.0.0.2", "127.0.0.1"], "and is kept while it answers"
