"""What clients of every kind get from a running exporter, and what they cannot do to it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.hardening.process import PATIENCE, Answer, Exporter, serving
from tests.nvml.standin import StandIn, h200
from wattline.publish.limits import MAX_CONCURRENT, MAX_CONNECTIONS

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"

MOST_CALLS_A_READ = 12

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def host(library: Path, tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    folder = tmp_path_factory.mktemp("host")
    return StandIn(library, folder, h200(8))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def exporter(host: StandIn, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Exporter]:
    """One process for all tests here, over eight GPUs and an engine that is not there."""
    file = tmp_path_factory.mktemp("config") / "wattline.yml"
    file.write_text("deployments: [{name: d, engines: [{url: 'http://127.0.0.1:1/metrics'}]}]\n")
    async with serving("--config.file", file, standin=host) as running:
        await running.until(lambda answer: len(answer.values("wattline_gpu_power_watts")) == 8)
        yield running


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, PLAIN),
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain", PLAIN),
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", PLAIN),
        ("text/html,application/xhtml+xml", PLAIN),
        ("application/json", PLAIN),
        ("application/openmetrics-text;version=0.0.1", PLAIN),
        (PROMETHEUS_2, OPENMETRICS + "; escaping=underscores"),
        (PROMETHEUS_3, OPENMETRICS + "; escaping=allow-utf-8"),
        ("text/plain;version=1.0.0;escaping=dots", "text/plain; version=1.0.0; charset=utf-8; escaping=dots"),
        # What the client library trips over, or would repeat as if it spoke it.
        ("application/openmetrics-text;version=abc", PLAIN),
        ("application/openmetrics-text;version=9.9.9", PLAIN),
        ("application/openmetrics-text;version=1.0.0.0.0.1", PLAIN),
        ("text/plain;version=x", PLAIN),
        ("text/plain;version=1.0.0;escaping=any", "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"),
        (";;;,,,=", PLAIN),
    ],
)
async def test_every_accept_header_gets_a_content_type_that_prometheus_takes(
    exporter: Exporter, accept: str | None, content_type: str
) -> None:
    headers = {} if accept is None else {"Accept": accept}
    answer = await exporter.ask(**headers)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == content_type
    families = parse_openmetrics(answer.text) if "openmetrics" in content_type else parse_text(answer.text)  # type: ignore[no-untyped-call]
    # To escape by dots is to double each underscore.
    name = "wattline_gpu_power_watts".replace("_", "__" if "dots" in content_type else "_")
    assert [s.value for f in families for s in f.samples if s.name == name] == [122.631] * 8
    assert answer.text.endswith("# EOF\n") == ("openmetrics" in content_type)


@pytest.mark.parametrize(
    ("accept_encoding", "compressed"),
    [
        ("gzip", True),
        ("gzip, deflate, br", True),
        ("GZIP;q=0.5", True),
        ("deflate", False),
        ("identity", False),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, identity", False),
        ("notgzip", False),
    ],
)
async def test_the_text_is_compressed_for_those_who_allow_it(
    exporter: Exporter, accept_encoding: str, compressed: bool
) -> None:
    answer = await exporter.ask(Accept_Encoding=accept_encoding)
    assert (answer.headers.get("Content-Encoding") == "gzip") == compressed
    body = gzip.decompress(answer.body) if compressed else answer.body
    assert b"wattline_gpu_power_watts{" in body
    assert "Accept-Encoding" in answer.headers["Vary"]
    assert answer.headers["Content-Type"] == PLAIN


async def test_head_tells_the_headers_of_the_answer_without_its_body(exporter: Exporter) -> None:
    for path in ("/metrics", "/", "/api/v1/status", "/-/healthy"):
        answer = await exporter.ask(path, method="HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 0
    assert (await exporter.ask(method="HEAD")).headers["Content-Type"] == PLAIN


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/metrics", "/", "/api/v1/status", "/-/healthy", "/-/ready", "/-/reload"])
async def test_nothing_can_be_changed_by_asking(exporter: Exporter, method: str, path: str) -> None:
    before = (await exporter.ask()).value("wattline_config_last_reload_success_timestamp_seconds")
    answer = await exporter.ask(path, method=method)
    assert answer.status in {400, 404, 405, 413}
    after = await exporter.ask()
    assert after.value("wattline_config_last_reload_success_timestamp_seconds") == before


async def test_a_thousand_scrapes_at_once_make_no_call_into_the_driver(exporter: Exporter, host: StandIn) -> None:
    def reads(answer: Answer) -> float:
        return sum(answer.values("wattline_source_read_seconds_count"))

    async def hammer(session: aiohttp.ClientSession) -> list[int]:
        statuses = []
        for _ in range(25):
            async with session.get("/metrics") as answer:
                await answer.read()
                statuses.append(answer.status)
        return statuses

    before, calls = await exporter.ask(), sum(host.counts().values())
    async with aiohttp.ClientSession(exporter.url) as session:
        statuses = await asyncio.gather(*(hammer(session) for _ in range(MAX_CONCURRENT)))
    made = sum(host.counts().values()) - calls
    assert [status for each in statuses for status in each] == [200] * 25 * MAX_CONCURRENT
    # What the schedule read meanwhile, and what was under way at both ends: two threads a GPU, and the one that lists.
    read = reads(await exporter.ask()) - reads(before) + 2 * 17
    assert made <= MOST_CALLS_A_READ * read < 25 * MAX_CONCURRENT


async def test_clients_that_dribble_do_not_keep_others_waiting(exporter: Exporter) -> None:
    writers = []
    for _ in range(100):
        _, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\nX-Slow: ")
        writers.append(writer)
    try:
        for _ in range(3):
            for writer in writers:
                writer.write(b"a")
            answer = await asyncio.wait_for(exporter.ask(), PATIENCE)
            assert answer.status == 200
    finally:
        for writer in writers:
            writer.close()


async def test_clients_that_do_not_read_their_answer_do_not_keep_others_waiting(exporter: Exporter) -> None:
    writers = []
    for _ in range(60):
        _, writer = await asyncio.open_connection("127.0.0.1", exporter.port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" * 8)
        writers.append(writer)
    try:
        assert (await asyncio.wait_for(exporter.ask(), PATIENCE)).status == 200
    finally:
        for writer in writers:
            writer.transport.abort()


async def test_of_more_connections_than_anybody_needs_the_oldest_are_closed(exporter: Exporter) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", exporter.port) for _ in range(MAX_CONNECTIONS + 20)]
    try:
        async with asyncio.timeout(PATIENCE):
            # Says nothing, and is closed by the other side.
            assert await connections[0][0].read() == b""
        newest, writer = connections[-1]
        writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (await newest.readline()).startswith(b"HTTP/1.1 200")
    finally:
        for _, writer in connections:
            writer.close()


NOISE = [
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
    b"GET / HTTP/1.1\r\nAuthorization: Basic c2VjcmV0LXBhc3N3b3Jk\x00\r\n\r\n",
    b"GET / HTTP/1.1\r\nAuthorization Bearer hunter2-secret\r\n\r\n",
    b"GET /metrics?token=hunter2-secret\x01 HTTP/1.1\r\n\r\n",
    b"GET http://[::1/x HTTP/1.1\r\nHost: here\r\n\r\n",
    b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
    b"GET /%ff%zz/../../etc/passwd HTTP/1.1\r\nHost: here\r\n\r\n",
    b"GET /static/../app.py HTTP/1.1\r\nHost: here\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 99999999999\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: here\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nGARBAGE\r\n\r\n",
    b"",
]


async def test_noise_is_answered_and_nothing_of_it_gets_into_the_log(exporter: Exporter) -> None:
    before = len(exporter.lines)
    for noise in NOISE:
        reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
        with contextlib.suppress(ConnectionError):
            writer.write(noise)
            if noise:
                answered = await asyncio.wait_for(reader.read(13), PATIENCE)
                assert re.match(rb"HTTP/1.[01] (4\d\d|200) ", answered), noise
        writer.close()
    assert (await exporter.ask()).status == 200
    assert exporter.lines[before:] == []


async def test_what_is_not_there_is_not_found(exporter: Exporter) -> None:
    for path in ("/metrics/", "/metrics2", "/debug/pprof", "/api/v1/status/", "/static/", "/static/page.html"):
        assert (await exporter.ask(path)).status == 404, path


async def test_a_query_changes_nothing(exporter: Exporter) -> None:
    assert (await exporter.ask("/metrics?name[]=x&debug=1&%00=%ff")).status == 200
    status = json.loads((await exporter.ask("/api/v1/status?configuration=../../etc/passwd")).body)
    assert len(status["gpus"]) == 8
