"""However the exporter is ended and whatever hangs: soon, well, and with the driver let go."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.engines.servers import Request, Server, answer
from tests.hardening.process import SERVE, serving
from tests.nvml.standin import StandIn
from wattline.app import STOP_ANSWERS_SECONDS
from wattline.engines.scrape import _Lookups
from wattline.gpus.reader import STOP_CALLS_SECONDS, STOP_CLOSE_SECONDS
from wattline.session import DISK_SECONDS

READ = "wattline_gpu_power_watts"


def config(tmp_path: Path, *urls: str) -> Path:
    file = tmp_path / "wattline.yml"
    engines = ", ".join(f"{{url: '{url}', name: e{number}}}" for number, url in enumerate(urls))
    file.write_text(f"deployments: [{{name: d, engines: [{engines}]}}]\nstate_file: state.json\n")
    return file


@asynccontextmanager
async def silent_engine() -> AsyncIterator[tuple[Server, asyncio.Event]]:
    """Takes a request and never answers; the event tells that one is under way."""
    asked = asyncio.Event()

    async def never(_request: Request, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with Server(never) as server:
        yield server, asked


def test_all_that_is_ever_waited_for_at_the_end_takes_less_than_two_seconds() -> None:
    assert STOP_CALLS_SECONDS + STOP_CLOSE_SECONDS + DISK_SECONDS < 2.0
    # Meanwhile, twice for a connection: for its request, then for its end.
    assert 2 * STOP_ANSWERS_SECONDS < 2.0


async def test_a_gpu_whose_call_hangs_is_down_and_the_other_is_read_on(standin: StandIn) -> None:
    """In real time: the watchdog over driver calls runs by the real clock."""
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda answer: len(answer.values("wattline_gpu_power_watts")) == 2)
        standin.say("1 nvmlDeviceGetPowerUsage hang=1")
        text = await exporter.until(lambda answer: answer.values("wattline_gpu_up", gpu="1") == [0.0])
        assert text.values("wattline_gpu_power_watts", gpu="1") == []
        assert text.values("wattline_gpu_power_watts", gpu="0") != []
        assert await exporter.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_well_and_the_driver_is_let_go(standin: StandIn, how: signal.Signals) -> None:
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda answer: answer.values(READ))
        assert await exporter.stop(how) == 0
        assert "Wattline has stopped" in exporter.log
        assert "Traceback" not in exporter.log
    assert standin.count("init succeeded") == standin.count("nvmlShutdown") == 1
    assert standin.count("shutdown while inside") == 0


HANGS = ["nvmlDeviceGetPowerUsage", "nvmlGpmMetricsGet"]


@pytest.mark.parametrize("call", HANGS)
async def test_it_ends_though_a_call_never_comes_back_from_the_driver(standin: StandIn, call: str) -> None:
    standin.say(f"0 {call} hang=1", "* nvmlDeviceGetPcieThroughput.* delay_us=100000")
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda _: standin.count(call))
        assert await exporter.stop() == 0


async def test_it_ends_though_the_library_cannot_even_be_opened(standin: StandIn) -> None:
    standin.say("- nvmlInit hang=1")
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda _: standin.count("nvmlInit"))
        assert await exporter.stop() == 0


async def test_it_ends_though_the_driver_does_not_let_itself_be_let_go(standin: StandIn) -> None:
    standin.say("- nvmlShutdown hang=1")
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda answer: answer.values(READ))
        assert await exporter.stop() == 0


async def test_a_call_that_is_slow_is_waited_for_before_the_driver_is_let_go(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage delay_us=400000")
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda _: standin.count("nvmlDeviceGetPowerUsage"))
        assert await exporter.stop() == 0
    assert standin.count("nvmlShutdown") == 1
    assert standin.count("shutdown while inside") == 0


async def test_it_ends_while_an_engine_does_not_answer(tmp_path: Path) -> None:
    async with silent_engine() as (server, asked), serving("--config.file", config(tmp_path, server.url)) as exporter:
        await asked.wait()
        assert await exporter.stop() == 0


async def test_it_ends_while_clients_do_not_read_or_do_not_ask(standin: StandIn) -> None:
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda answer: answer.values(READ))
        writers = []
        for sent in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" * 3000):
            _, writer = await asyncio.open_connection("127.0.0.1", exporter.port, limit=1)
            writer.write(sent)
            writers.append(writer)
        assert (await exporter.ask()).status == 200
        assert await exporter.stop() == 0
        for writer in writers:
            writer.transport.abort()


async def test_it_ends_though_everything_hangs_at_once(standin: StandIn, tmp_path: Path) -> None:
    standin.say("* nvmlDeviceGetPowerUsage hang=1", "- nvmlShutdown hang=1")
    async with silent_engine() as (server, asked):
        file = config(tmp_path, server.url, server.url + "?2")
        async with serving("--config.file", file, standin=standin) as exporter:
            await asked.wait()
            await exporter.until(lambda _: standin.count("nvmlDeviceGetPowerUsage") >= 2)
            _, writer = await asyncio.open_connection("127.0.0.1", exporter.port, limit=1)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" * 3000)
            await writer.drain()
            assert await exporter.stop() == 0
            writer.transport.abort()


async def test_asked_twice_it_ends_once(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage hang=1")
    async with serving(standin=standin) as exporter:
        await exporter.until(lambda _: standin.count("nvmlDeviceGetPowerUsage"))
        exporter.process.send_signal(signal.SIGTERM)
        exporter.process.send_signal(signal.SIGTERM)
        exporter.process.send_signal(signal.SIGINT)
        assert await exporter.ended() == 0
        assert exporter.log.count("has stopped") == 1


SILENT_NAMES = """
import socket, threading
real = socket.getaddrinfo
def look_up(host, *arguments, **more):
    if host == 'silent.example':
        print('looked up', file=sys.stderr, flush=True)
        threading.Event().wait()
    if host == 'engine.example':
        host = '127.0.0.1'
    return real(host, *arguments, **more)
socket.getaddrinfo = look_up
"""


def bent(code: str) -> str:
    """Python lines that start the exporter after others."""
    first, rest = SERVE.split(";", 1)
    return f"{first}\n{code}\n{rest.strip()}"


async def test_it_ends_though_the_servers_of_names_are_silent(tmp_path: Path) -> None:
    file = config(tmp_path, "http://silent.example:1/metrics")
    async with serving("--config.file", file, code=bent(SILENT_NAMES)) as exporter:
        await exporter.logged("looked up")
        assert await exporter.stop() == 0


async def test_names_that_nobody_answers_for_cost_no_other_engine(tmp_path: Path) -> None:
    # More of them than a pool of threads would have, on this machine or a greater one.
    silent = [f"http://silent.example:{port}/metrics" for port in range(1, 41)]
    async with Server(b"") as server:
        file = config(tmp_path, *silent, f"http://engine.example:{server.port}/metrics")
        file.write_text(file.read_text() + "engine_interval: 1s\n")
        async with serving("--config.file", file, code=bent(SILENT_NAMES)) as exporter:
            await exporter.logged("e39: timeout")
            asked = len(server.requests)
            await exporter.until(lambda _: len(server.requests) > asked)
            assert await exporter.stop() == 0


async def test_a_name_is_looked_up_as_the_system_does_with_the_link_of_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 80, 0, 0)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 80, 0, 2)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    told = await _Lookups().resolve("engine.example", 80)
    assert [(each["host"], each["family"], each["port"]) for each in told] == [
        ("2001:db8::1", socket.AF_INET6, 80),
        ("fe80::1%2", socket.AF_INET6, 80),
        ("192.0.2.1", socket.AF_INET, 80),
    ]

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(socket.gaierror):
        await _Lookups().resolve("engine.example", 80)


SLOW_PARSER = """
import threading
from wattline.engines import scrape
def normalise(*_, **__):
    print('parses', file=sys.stderr, flush=True)
    threading.Event().wait()
scrape.normalise = normalise
"""


async def test_it_ends_while_a_text_is_parsed(tmp_path: Path) -> None:
    large = answer(b"sglang:num_running_reqs 1\n" * 10_000)
    async with (
        Server(large) as server,
        serving("--config.file", config(tmp_path, server.url), code=bent(SLOW_PARSER)) as exporter,
    ):
        await exporter.logged("parses")
        assert await exporter.stop() == 0


async def test_before_it_ends_it_saves_what_it_has_learned(standin: StandIn, tmp_path: Path) -> None:
    async with serving("--config.file", config(tmp_path, "http://127.0.0.1:1"), standin=standin) as exporter:
        await exporter.until(lambda answer: answer.values(READ))
        assert await exporter.stop() == 0
    assert '"wattline-state"' in (tmp_path / "state.json").read_text()
