"""Does the exporter grow? A week of it in virtual time, over GPUs and engines that fail in every way.

Usage: ``python -m bench.soak [--days 7] [--gpus 8] [--engines 4] [--json FILE]``. Needs a C compiler and no GPU: the
whole exporter (reader, scrapers, verdicts, HTTP, state file) runs in one process over the stand-in for NVIDIA's library
and engines on loopback, while time jumps from one event to the next. Prints memory, threads, file descriptors, series
and lines of the log at the end of each simulated day, and what they grow by in a day. Exits 1 when that is too much.

What happens meanwhile: one reading in twenty fails; every ten minutes a GPU falls off the bus for two; every hour one
is unplugged for three; every two hours the whole library fails for five minutes; every six hours a call hangs for ten
minutes. Each engine begins anew every minute with a model of another name, and answers in one of a dozen ways, most of
them wrong. Every hour the configuration is read again with engines of other names. Every day the clock leaps by an
hour.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import os
import re
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.virtual_time import VirtualLoop, run
from tests.engines.servers import Request, Server, answer
from tests.nvml.standin import StandIn, build, h200
from wattline.app import Exporter
from wattline.config import parse
from wattline.gpus.nvml import NvmlSource
from wattline.publish.server import Publication
from wattline.session import Session

if TYPE_CHECKING:
    from wattline.config import Config

MINUTE, HOUR, DAY = 60, 3600, 86_400
FALLIBLE = (
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetClockInfo.*",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetSamples.*",
    "nvmlDeviceGetMemoryInfo*",
    "nvmlDeviceGetTemperature*",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetComputeRunningProcesses*",
    "nvmlDeviceGetCurrPcieLink*",
    "nvmlGpmMetricsGet",
    "field.*",
)
MOST_A_DAY = {"memory_bytes": 1_000_000, "threads": 0.5, "descriptors": 1.0, "series": 5.0}
"""What leaks with one of the events above grows by dozens a day; what is there at one moment differs by a few."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the exporter is at one moment."""

    day: float
    memory_bytes: int
    threads: int
    descriptors: int
    series: int
    """The most in the hour before."""
    log_lines: int
    """Since the beginning."""
    library_opened: int
    scrapes: int


class Lines(logging.Handler):
    """Counts the lines of the log and keeps the last that says where it serves."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        """Take one line."""
        self.count += 1
        if match := re.search(r" serves http://[^ ]*:(\d+)/", record.getMessage()):
            self.port.set_result(int(match[1]))


class Engine:
    """An inference server that begins anew every minute and mostly answers wrong."""

    def __init__(self, loop: VirtualLoop, number: int) -> None:
        self._loop = loop
        self._number = number
        self._polls = number
        self.server = Server(self.handle)

    async def handle(self, _request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        """Answer one poll."""
        self.server.requests.clear()  # It would remember them all.
        self._polls += 1
        metrics = self._metrics()
        fates = (
            answer(metrics),
            answer(metrics),
            answer(metrics, "500 Internal Server Error"),
            answer(metrics),
            answer(b"<html>", Content_Type="text/html"),
            answer(metrics)[:-40],
            answer(b"", "307 Temporary Redirect", Location="http://127.0.0.2:1/"),
            answer(metrics + b"sglang:num_running_reqs{x-y=} N/A\n"),
            b"no http\r\n\r\n",
            answer(b""),
            None,
            answer(metrics),
        )
        fate = fates[self._polls // 4 % len(fates)]
        if fate is None:
            # A drip without end, longer than any time limit.
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(10):
                writer.write(b"# drip\n")
                await writer.drain()
                await asyncio.sleep(1)
        return fate

    def _metrics(self) -> bytes:
        now = self._loop.time()
        start, age = divmod(now, MINUTE)
        labels = f'model_name="model-{self._number}-{start:.0f}",tp_rank="0",pid="{start:.0f}"'
        lines = [
            f"process_start_time_seconds {start * MINUTE}",
            f"sglang:num_running_reqs{{{labels}}} 12",
            f"sglang:num_queue_reqs{{{labels}}} 3",
            f'sglang:realtime_tokens_total{{mode="decode",{labels}}} {age * 900:.0f}',
            *(f'sglang:lora{{adapter="{start:.0f}-{n}",{labels}}} 1' for n in range(50)),
        ]
        return "\n".join([*lines, ""]).encode()


class Driver:
    """What becomes of the GPUs, second by second."""

    def __init__(self, standin: StandIn, gpus: int) -> None:
        self._standin = standin
        self._gpus = gpus
        self._said: list[str] | None = None
        self._always = [f"* {call} error=999 chance=5" for call in FALLIBLE]

    def at(self, second: int) -> None:
        """Steer the library as is due."""
        lines = list(self._always)
        if second % (10 * MINUTE) < 2 * MINUTE:
            gpu = second // (10 * MINUTE) % self._gpus
            lines += [f"{gpu} nvmlDevice* error=15", f"{gpu} field.* error=15"]
        if 30 * MINUTE <= second % HOUR < 33 * MINUTE:
            lines += [f"- nvmlDeviceGetCount value={self._gpus - 1}"]
        if 75 * MINUTE <= second % (2 * HOUR) < 80 * MINUTE:
            lines += ["* nvmlDevice* error=999", "- nvmlDevice* error=999", "- nvmlInit error=999"]
        if 5 * HOUR <= second % (6 * HOUR) < 5 * HOUR + 10 * MINUTE:
            lines += [f"{second // (6 * HOUR) % self._gpus} nvmlDeviceGetPowerUsage hang=1"]
        if lines != self._said:
            self._said = lines
            self._standin.forget()
            self._standin.say(*lines)


def configuration(servers: list[Server], hour: int, folder: Path) -> Config:
    """One deployment of all engines, which have other names every hour."""
    engines = ", ".join(f"{{url: '{server.url}', name: 'e{n}-{hour}'}}" for n, server in enumerate(servers))
    text = f"deployments: [{{name: d, engines: [{engines}]}}]\nstate_file: {folder / 'state.json'}\n"
    return parse(text, "soak")


def memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def soak(loop: VirtualLoop, folder: Path, standin: StandIn, options: argparse.Namespace) -> list[Size]:
    """Let it live."""
    lines = Lines()
    logging.getLogger().handlers[:] = [lines]  # Counted, not shown.
    logging.getLogger().setLevel(logging.INFO)
    servers = [await Engine(loop, n).server.__aenter__() for n in range(options.engines)]
    publication = Publication()
    session = Session(
        configuration(servers, 0, folder),
        NvmlSource(clock=loop.time),
        clock=loop.time,
        on_read=publication.registry.observe_read,
        persist=True,
    )
    running = asyncio.create_task(Exporter(session, publication, listen=("127.0.0.1", 0)).run())
    port = await lines.port
    driver = Driver(standin, options.gpus)
    sizes: list[Size] = []
    began, scrapes, series = loop.time(), 0, 0
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        for second in range(0, int(options.days * DAY) + 1, options.scrape_every):
            await asyncio.sleep(began + second - loop.time())
            driver.at(second)
            async with client.get("/metrics") as response:
                text = await response.text()
            scrapes += 1
            series = max(series, sum(1 for line in text.splitlines() if not line.startswith("#")))
            if second % MINUTE == 0:
                async with client.get("/api/v1/status") as response:
                    await response.read()
            if second % HOUR == 0 and second:
                await session.apply(configuration(servers, second // HOUR, folder))
            if second % DAY == 0 and second:
                loop.pass_time(HOUR)
                began += HOUR
            if second % options.sample_every == 0 or second == HOUR:
                gc.collect()
                sizes.append(
                    Size(
                        day=second / DAY,
                        memory_bytes=memory(),
                        threads=threading.active_count(),
                        descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a count, no paths
                        series=series,
                        log_lines=lines.count,
                        library_opened=standin.count("init succeeded") - standin.count("nvmlShutdown"),
                        scrapes=scrapes,
                    )
                )
                print(sizes[-1], file=sys.stderr, flush=True)
            if second % HOUR == 0:
                series = 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for server in servers:
        await server.__aexit__()
    return sizes


def growth(sizes: list[Size]) -> dict[str, float]:
    """What each size grows by in a day, by the line that fits best from the end of the first day on."""
    settled = [size for size in sizes if size.day >= 1] or sizes
    found = {}
    for name in ("memory_bytes", "threads", "descriptors", "series", "log_lines"):
        days = [size.day for size in settled]
        values = [float(getattr(size, name)) for size in settled]
        mean_day, mean_value = sum(days) / len(days), sum(values) / len(values)
        spread = sum((day - mean_day) ** 2 for day in days)
        joint = sum((day - mean_day) * (value - mean_value) for day, value in zip(days, values, strict=True))
        found[name] = joint / spread if spread else 0.0
    return found


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--scrape-every", type=int, default=15, metavar="SECONDS", help="a divisor of 60")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(namespace=argparse.Namespace(sample_every=DAY))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder)
        ctypes.CDLL(str(library))
        standin = StandIn(library, folder, h200(options.gpus))
        clock = folder / "clock"
        os.environ.update(standin.environment | {"NVML_STANDIN_CLOCK": str(clock)})
        sizes = run(lambda loop: soak(loop, folder, standin, options), settle=0.0, shown_in=clock)
    found = growth(sizes)
    table = Table("day", "memory", "threads", "descriptors", "series", "log lines", "scrapes")
    for size in sizes:
        table.add_row(
            f"{size.day:.2f}",
            f"{size.memory_bytes / 1e6:.1f} MB",
            *map(str, (size.threads, size.descriptors, size.series, size.log_lines, size.scrapes)),
        )
    table.add_section()
    table.add_row(
        "a day",
        f"{found['memory_bytes'] / 1e6:+.3f} MB",
        *(f"{found[name]:+.2f}" for name in ("threads", "descriptors", "series", "log_lines")),
        "",
    )
    Console(width=120).print(table)
    if options.json:
        Path(options.json).write_text(
            json.dumps({"sizes": [asdict(size) for size in sizes], "growth": found}, indent=1)
        )
    return 0 if all(found[name] <= most for name, most in MOST_A_DAY.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
