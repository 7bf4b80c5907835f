"""Polling over HTTP: what is asked, how each misbehaviour of a server is told, and that none harms another engine."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver

from tests.engines.servers import METRICS, Request, Server, answer
from tests.engines.texts import recorded
from wattline.engines import scrape
from wattline.engines.normalise import normalise
from wattline.engines.scrape import MAX_BODY_BYTES, EngineScraper, next_beat
from wattline.engines.target import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattline.readings import EngineReading

PATIENT = 30.0
"""An interval whose timeout no test reaches."""
HASTY = 0.1


def scraper(session: aiohttp.ClientSession, url: str, interval: float = PATIENT, **settings: object) -> EngineScraper:
    target = Engine(name="engine", url=url, **settings)  # type: ignore[arg-type]
    return EngineScraper(target, session=session, interval=interval, deliver=lambda _: None)


async def error(session: aiohttp.ClientSession, handler: object, interval: float = PATIENT) -> str | None:
    async with Server(handler) as server:  # type: ignore[arg-type]
        reading = await scraper(session, server.url, interval).poll()
    assert (reading.up, reading.running, reading.kind) == (False, None, None)
    return reading.error


async def test_a_poll_is_one_get_of_the_metrics_that_says_who_asks(session: aiohttp.ClientSession) -> None:
    async with Server(answer()) as server:
        poller = scraper(session, server.url)
        readings = [await poller.poll() for _ in range(3)]
    assert [(r.up, r.running, r.queued, r.engine) for r in readings] == [(True, 3, 2, "engine")] * 3
    assert [request.line for request in server.requests] == ["GET /metrics HTTP/1.1"] * 3
    assert server.connections == 1  # kept open
    headers = server.requests[0].headers
    assert headers["Accept"].startswith("text/plain;version=0.0.4")
    assert "openmetrics" not in headers["Accept"]
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("wattline/")
    assert "Authorization" not in headers


async def test_the_reading_is_stamped_when_the_answer_has_come(session: aiohttp.ClientSession) -> None:
    times = iter([10.0, 11.5, 12.0, 13.0])
    async with Server(answer()) as server:
        target = Engine(name="e", url=server.url)
        taken: list[tuple[str, float]] = []
        poller = EngineScraper(
            target,
            session=session,
            interval=PATIENT,
            deliver=lambda _: None,
            on_read=lambda *read: taken.append(read),
            clock=lambda: next(times),
        )
        reading = await poller.poll()
    assert reading.t == 11.5
    assert taken == [("engine:e", 3.0)]


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        ("404 Not Found", b'{"detail":"Not Found"}', "http_404"),
        ("401 Unauthorized", b"", "http_401"),
        ("403 Forbidden", b"", "http_403"),
        ("500 Internal Server Error", b"boom", "http_500"),
        ("503 Service Unavailable", b"", "http_503"),
        ("599 Whatever", b"", "http_5xx"),
        ("204 No Content", b"", "http_204"),
        ("304 Not Modified", b"", "http_304"),
        ("200 OK", b"", "empty"),
        ("200 OK", b"<html>Sign in</html>", "not_metrics"),
        ("200 OK", b'{"detail":"Not Found"}', "not_metrics"),
        ("200 OK", b"process_start_time_seconds 1.0\n", "no_engine_metrics"),
        ("200 OK", b"smg_http_requests_total 1\n", "router"),
    ],
)
async def test_each_useless_answer_has_its_word(
    session: aiohttp.ClientSession, status: str, body: bytes, word: str
) -> None:
    assert await error(session, answer(body, status)) == word


async def test_errors_are_counted_by_kind_and_the_next_good_answer_is_up(session: aiohttp.ClientSession) -> None:
    answers = [answer(b"", "404 Not Found"), answer(b"", "404 Not Found"), answer(b""), answer()]

    async def handler(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        return answers.pop(0)

    async with Server(handler) as server:
        poller = scraper(session, server.url)
        up = [(await poller.poll()).up for _ in range(4)]
    assert up == [False, False, False, True]
    assert poller.errors == {"http_404": 2, "empty": 1}


async def _never(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def _drip(_request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"sglang:num_running_reqs 3\n")
        await writer.drain()
        await asyncio.sleep(HASTY / 20)


@pytest.mark.parametrize("handler", [_never, _drip], ids=["never", "a line at a time"])
async def test_an_answer_that_does_not_come_in_time_is_a_timeout(
    session: aiohttp.ClientSession, handler: Callable[..., object]
) -> None:
    assert await error(session, handler, HASTY) == "timeout"


async def _fifty_announced(_request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 52428800\r\n\r\n")
    writer.write(METRICS)


async def _fifty_in_chunks(_request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = METRICS * 1000
    for _ in range(50 * 1024 * 1024 // len(piece)):
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()


async def _bomb(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
    return answer(gzip.compress(bytes(MAX_BODY_BYTES + 1)), Content_Encoding="gzip")


@pytest.mark.parametrize("handler", [_fifty_announced, _fifty_in_chunks, _bomb], ids=["announced", "chunks", "bomb"])
async def test_a_body_without_measure_is_too_large(
    session: aiohttp.ClientSession, handler: Callable[..., object]
) -> None:
    assert await error(session, handler) == "too_large"


async def test_an_answer_compressed_without_being_asked_for_is_read(session: aiohttp.ClientSession) -> None:
    async with Server(answer(gzip.compress(METRICS), Content_Encoding="gzip")) as server:
        assert (await scraper(session, server.url).poll()).running == 3


async def test_a_redirect_within_the_origin_is_followed_and_remembered(session: aiohttp.ClientSession) -> None:
    async def handler(request: Request, _writer: asyncio.StreamWriter) -> bytes:
        return answer() if request.path == "/metrics/" else answer(b"", "307 Temporary Redirect", Location="/metrics/")

    async with Server(handler) as server:
        poller = scraper(session, server.url)
        assert [(await poller.poll()).running for _ in range(3)] == [3, 3, 3]
    assert [r.path for r in server.requests] == ["/metrics", "/metrics/", "/metrics/", "/metrics/"]


async def test_a_remembered_redirect_is_forgotten_when_it_fails(session: aiohttp.ClientSession) -> None:
    moved = True

    async def handler(request: Request, _writer: asyncio.StreamWriter) -> bytes:
        if (request.path == "/metrics/") == moved:
            return answer()
        return answer(b"", "308 Permanent Redirect", Location="/metrics/") if moved else answer(b"", "404 Not Found")

    async with Server(handler) as server:
        poller = scraper(session, server.url)
        assert (await poller.poll()).running == 3
        moved = False
        assert (await poller.poll()).error == "http_404"
        assert (await poller.poll()).running == 3


async def test_redirects_in_a_circle_end_after_three(session: aiohttp.ClientSession) -> None:
    async def handler(request: Request, _writer: asyncio.StreamWriter) -> bytes:
        other = "/metrics" if request.path == "/metrics/" else "/metrics/"
        return answer(b"", "307 Temporary Redirect", Location=other)

    async with Server(handler) as server:
        assert (await scraper(session, server.url).poll()).error == "redirect"
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    "location", ["{other}/metrics", "//127.0.0.1:{port}/metrics", "https://{here}/metrics", "", "http://["]
)
async def test_a_redirect_elsewhere_is_refused_and_no_token_goes_there(
    session: aiohttp.ClientSession, location: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    async with Server(answer()) as other:

        async def handler(request: Request, _writer: asyncio.StreamWriter) -> bytes:
            where = location.format(other=other.origin, port=other.port, here=request.headers["Host"])
            return answer(b"", "302 Found", Location=where)

        async with Server(handler) as server:
            poller = scraper(session, server.url, bearer_token_file=str(token))
            reading = await poller.poll()
    # A redirect to nowhere is one to the same place, and so a circle.
    assert reading.error == "redirect"
    assert server.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert other.requests == []


async def _cut(_request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(answer()[:-20])


async def _garbage(_request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


async def _close(_request: Request, _writer: asyncio.StreamWriter) -> None:
    return


async def _reset(_request: Request, writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()


@pytest.mark.parametrize(
    ("handler", "word"),
    [(_cut, "protocol"), (_garbage, "protocol"), (_close, "connection_reset"), (_reset, "connection_reset")],
    ids=["cut", "garbage", "closed", "reset"],
)
async def test_a_broken_conversation_is_told_from_a_wrong_answer(
    session: aiohttp.ClientSession, handler: Callable[..., object], word: str
) -> None:
    assert await error(session, handler) == word


async def test_a_body_that_ends_with_the_connection_may_lack_its_end(session: aiohttp.ClientSession) -> None:
    # 1024 requests run, and the text was cut within the number: 10 would be a lie.
    async def handler(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        writer.write(b"sglang:num_queue_reqs 2\nsglang:num_running_reqs 10")

    async with Server(handler) as server:
        reading = await scraper(session, server.url).poll()
    assert (reading.up, reading.queued, reading.running) == (True, 2, None)


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_port_where_nothing_listens_refuses(session: aiohttp.ClientSession) -> None:
    reading = await scraper(session, f"http://127.0.0.1:{_unused_port()}/metrics").poll()
    assert reading.error == "connection_refused"


class _Resolver(AbstractResolver):
    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    def move(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[object]:  # type: ignore[override]
        if not self._addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


async def test_a_name_without_an_address_is_told_so() -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=_Resolver())) as session:
        assert (await scraper(session, "http://engine.invalid:30000/metrics").poll()).error == "dns"


async def test_a_name_whose_addresses_all_refuse_is_refused() -> None:
    resolver = _Resolver("127.0.0.1", "127.0.0.2")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=resolver)) as session:
        reading = await scraper(session, f"http://engine.invalid:{_unused_port()}/metrics").poll()
    assert reading.error == "connection_refused"


async def test_an_engine_that_moved_is_found_at_the_poll_after_the_one_that_failed() -> None:
    resolver = _Resolver("127.0.0.2")
    connector = aiohttp.TCPConnector(resolver=resolver, ttl_dns_cache=3600)
    async with aiohttp.ClientSession(connector=connector) as session, Server(answer()) as server:
        polled = scraper(session, f"http://engine.invalid:{server.port}/metrics")
        assert (await polled.poll()).error == "connection_refused"
        resolver.move("127.0.0.1")
        assert (await polled.poll()).up


async def test_an_engine_on_ipv6_is_read(session: aiohttp.ClientSession) -> None:
    try:
        server = await Server(answer(), host="::1").__aenter__()
    except OSError:
        pytest.skip("no IPv6 here")
    try:
        poller = EngineScraper(Engine(url=server.url), session=session, interval=PATIENT, deliver=lambda _: None)
        reading = await poller.poll()
    finally:
        await server.__aexit__()
    assert reading.running == 3


async def test_a_token_is_read_anew_when_its_file_changes(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with Server(answer()) as server:
        poller = scraper(session, server.url, bearer_token_file=str(token))
        assert (await poller.poll()).up
        token.write_text("second\n")
        assert (await poller.poll()).up
    assert [r.headers["Authorization"] for r in server.requests] == ["Bearer first", "Bearer second"]


async def test_a_token_may_come_from_the_environment(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_TOKEN", "from-env")
    async with Server(answer()) as server:
        assert (await scraper(session, server.url, bearer_token_env="ENGINE_TOKEN").poll()).up
    assert server.requests[0].headers["Authorization"] == "Bearer from-env"


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"line\r\nX-Injected: 1", "tökén".encode(), b"\x00\x01"])
async def test_without_a_usable_token_nothing_is_asked(
    session: aiohttp.ClientSession, tmp_path: Path, content: bytes
) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    async with Server(answer()) as server:
        reading = await scraper(session, server.url, bearer_token_file=str(token)).poll()
    assert reading.error == "credentials"
    assert server.requests == []


@pytest.mark.parametrize("where", ["bearer_token_file", "bearer_token_env"])
async def test_a_token_that_is_not_there_is_told_from_one_that_cannot_be(
    session: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """The one waits for whoever brings it, the other is to be corrected."""
    missing: dict[str, Any] = {
        "bearer_token_file": str(tmp_path / "token"),
        "bearer_token_env": "ENGINE_TOKEN_NOBODY_SET",
    }
    async with Server(answer()) as server:
        reading = await scraper(session, server.url, **{where: missing[where]}).poll()
    assert reading.error == "no_token"
    assert server.requests == []
    assert "is missing or may not be read, or the variable of bearer_token_env is not set" in caplog.text


async def test_a_token_is_never_shown(
    session: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = tmp_path / "token"
    token.write_text("s3cret")
    async with Server(answer(b"", "401 Unauthorized")) as server:
        poller = scraper(session, server.url + "?key=s3cret", bearer_token_file=str(token))
        reading = await poller.poll()
    assert server.requests[0].headers["Authorization"] == "Bearer s3cret"
    engine_log = "".join(r.getMessage() for r in caplog.records if r.name.startswith("wattline"))
    assert "http_401" in engine_log
    assert "s3cret" not in engine_log + repr(reading) + repr(poller)
    assert "s3cret" not in repr(Engine(name="e", url=server.url, bearer_token_file=str(token)))


def _collector(wanted: int) -> tuple[Callable[[EngineReading], None], list[EngineReading], asyncio.Event]:
    readings: list[EngineReading] = []
    enough = asyncio.Event()

    def deliver(reading: EngineReading) -> None:
        readings.append(reading)
        if len(readings) >= wanted:
            enough.set()

    return deliver, readings, enough


async def test_an_engine_that_hangs_does_not_keep_another_from_being_read(session: aiohttp.ClientSession) -> None:
    deliver, readings, enough = _collector(20)
    hanging: list[EngineReading] = []
    async with Server(_never) as dead, Server(answer()) as alive:
        pollers = [
            EngineScraper(Engine(name="dead", url=dead.url), session=session, interval=PATIENT, deliver=hanging.append),
            EngineScraper(Engine(name="alive", url=alive.url), session=session, interval=0.01, deliver=deliver),
        ]
        for poller in pollers:
            await poller.start()
        await enough.wait()
        assert hanging == []
        for poller in pollers:
            await poller.stop()
    assert all(r.running == 3 for r in readings)
    assert len(dead.requests) == 1


async def test_requests_to_one_engine_never_overlap_though_it_is_slower_than_the_beat(
    session: aiohttp.ClientSession,
) -> None:
    async def slow(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        await asyncio.sleep(0.03)
        return answer()

    deliver, readings, enough = _collector(10)
    async with Server(slow) as server:
        poller = EngineScraper(Engine(name="e", url=server.url), session=session, interval=0.02, deliver=deliver)
        await poller.start()
        await poller.start()  # A second call changes nothing.
        await enough.wait()
        await poller.stop()
        await poller.stop()
    assert {r.error for r in readings} == {"timeout"}
    assert server.most_at_once <= 2  # The server may still write what nobody waits for.
    assert len(server.requests) <= len(readings) + 1


@pytest.mark.parametrize(
    ("now", "expected"), [(100.0, 105.0), (104.9, 105.0), (105.0, 110.0), (105.1, 110.0), (1000.3, 1005.0)]
)
def test_the_beat_is_counted_from_the_start_and_missed_beats_are_not_made_up(now: float, expected: float) -> None:
    assert next_beat(100.0, now, 5.0) == expected


def test_the_next_beat_is_always_ahead() -> None:
    origin, interval = 12345.678901, 0.1
    now = origin
    for count in range(10_000):
        beat = next_beat(origin, now, interval)
        assert beat > now
        assert beat == pytest.approx(origin + (count + 1) * interval)
        now = beat


async def test_a_reader_that_fails_does_not_end_the_polls(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    deliver, readings, enough = _collector(3)

    def failing(reading: EngineReading) -> None:
        deliver(reading)
        raise RuntimeError("no room")

    async with Server(answer()) as server:
        poller = EngineScraper(Engine(name="e", url=server.url), session=session, interval=0.01, deliver=failing)
        await poller.start()
        await enough.wait()
        await poller.stop()
    assert len(readings) >= 3
    assert "could not be taken in" in caplog.text


async def test_stopping_gives_up_the_request_under_way(session: aiohttp.ClientSession) -> None:
    asked = asyncio.Event()

    async def hang(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    before = asyncio.all_tasks()
    async with Server(hang) as server:
        poller = scraper(session, server.url)
        await poller.start()
        await asked.wait()
        await poller.stop()
    assert {t for t in asyncio.all_tasks() - before if t.get_name().startswith("scrape")} == set()


async def test_a_large_text_is_parsed_beside_the_event_loop_and_a_small_one_on_it(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noting(*args: Any, **kwargs: Any) -> EngineReading:
        threads.append(threading.current_thread().name)
        return normalise(*args, **kwargs)

    monkeypatch.setattr(scrape, "normalise", noting)
    for body in (recorded("0.5.23_busy_t0"), METRICS):
        async with Server(answer(body)) as server:
            assert (await scraper(session, server.url).poll()).up
    assert threads[0].startswith("wattline-parse")
    assert threads[1] == threading.main_thread().name


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_hundreds_of_polls_of_all_fates_leave_no_file_open_and_no_thread_behind(
    session: aiohttp.ClientSession,
) -> None:
    big = recorded("0.5.23_busy_t0")
    fates = [
        answer(),
        answer(b"", "500 Oops"),
        answer(big),
        None,
        answer(b"", "302 Found", Location="http://x:1/"),
        b"?\r\n\r\n",
    ]
    count = 0

    async def handler(_request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        nonlocal count
        count += 1
        fate = fates[count % len(fates)]
        if fate is None:
            writer.write(answer(big)[:1000])
        return fate

    async with Server(handler) as server:
        poller, refused = scraper(session, server.url), scraper(session, f"http://127.0.0.1:{_unused_port()}/metrics")
        for _ in range(30):
            await poller.poll()
            await refused.poll()
        await asyncio.sleep(0)
        files, threads = _open_files(), threading.active_count()
        for _ in range(300):
            await poller.poll()
            await refused.poll()
        await asyncio.sleep(0)
        assert abs(_open_files() - files) <= 6
        assert threading.active_count() <= threads + 1
    assert refused.errors == {"connection_refused": 330}


async def test_only_a_change_of_state_is_logged_and_with_what_to_do(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wattline.engines")
    statuses = ["404 Not Found"] * 3 + ["200 OK"] * 3 + ["503 Gone"] * 3

    async def handler(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        return answer(status=statuses.pop(0))

    async with Server(handler) as server:
        poller = scraper(session, server.url)
        while statuses:
            await poller.poll()
    messages = [r.getMessage() for r in caplog.records if r.name == "wattline.engines"]
    assert [m.split(" at ")[0] for m in messages] == [
        "engine: http_404",
        "engine: reading sglang metrics",
        "engine: http_503",
    ]
    assert "--enable-metrics" in messages[0]


async def test_an_engine_that_comes_and_goes_does_not_fill_the_log(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wattline.engines")
    now = 0.0
    count = 0

    async def handler(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        nonlocal count
        count += 1
        return answer(status="200 OK" if count % 2 else "500 Oops")

    async with Server(handler) as server:
        poller = EngineScraper(
            Engine(name="e", url=server.url),
            session=session,
            interval=PATIENT,
            deliver=lambda _: None,
            clock=lambda: now,
        )
        for _ in range(240):  # an hour and a bit, every 20 s
            await poller.poll()
            now += 20.0
    assert 0 < len([r for r in caplog.records if r.name == "wattline.engines"]) <= 5 * 9


async def test_a_refused_connection_says_what_it_means_in_a_container(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    await scraper(session, f"http://127.0.0.1:{_unused_port()}/metrics").poll()
    assert "--host 0.0.0.0" in caplog.text


async def test_a_closed_session_is_an_error_of_the_engine_and_not_of_the_program() -> None:
    session = scrape.open_session()
    await session.close()
    assert (await scraper(session, "http://127.0.0.1:1/metrics").poll()).error == "internal"
