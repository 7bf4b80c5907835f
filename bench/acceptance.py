"""Real acceptance on a GPU host: known loads, a simulated busy engine beside them, the exporter over real NVML.

Usage: ``python -m bench.acceptance [--json FILE] [--only KIND,...]``. Needs an NVIDIA GPU and PyTorch with CUDA. Starts
``wattline serve`` on loopback for each load, waits until a verdict's window lies within the load, and prints expected
against judged. Exits 1 when a row does not hold. Changes no setting of the card.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
WINDOW = 15.0
SETTLE = 8.0
"""Seconds in which a load builds up (PyTorch's start is waited for separately)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A load, what the engine beside it holds, and what must be said."""

    load: str
    busy: bool
    state: str
    cause: str | None = None


ROWS = (
    Row("nothing", busy=False, state="idle"),
    Row("idle_context", busy=False, state="idle"),
    Row("spin", busy=False, state="idle", cause="spinning"),
    Row("idle_context", busy=True, state="idle_while_busy", cause="not_fed"),
    Row("launch_bound", busy=True, state="idle_while_busy"),
    Row("spin", busy=True, state="idle_while_busy", cause="spinning"),
    Row("pcie_copy", busy=True, state="idle_while_busy", cause="pcie_bandwidth"),
    Row("burst_5", busy=True, state="idle_while_busy"),
    Row("burst_50", busy=True, state="working"),
    Row("dram_copy", busy=True, state="working", cause="memory_bound"),
    Row("decode", busy=True, state="working", cause="memory_bound"),
    Row("gemm", busy=True, state="saturated"),
)

LABELS = 'engine_type="unified",model_name="acceptance",pp_rank="0",tp_rank="0"'


class Engine:
    """A simulated SGLang on loopback that holds 64 requests and makes 1,000 tokens a second, or holds nothing."""

    def __init__(self) -> None:
        self.busy = False
        self._tokens = 0.0
        self._at = time.monotonic()

    async def metrics(self, _: web.Request) -> web.Response:
        """GET /metrics."""
        now = time.monotonic()
        self._tokens += (now - self._at) * 1000 * self.busy
        self._at = now
        running = 64 if self.busy else 0
        text = "".join(
            f"# TYPE sglang:{name} {kind}\nsglang:{name}{{{labels}}} {value}\n"
            for name, kind, labels, value in (
                ("num_running_reqs", "gauge", LABELS, running),
                ("num_queue_reqs", "gauge", LABELS, 0),
                ("token_usage", "gauge", LABELS, running / 200),
                ("weight_memory_usage_gb", "gauge", LABELS, 16.0),
                ("realtime_tokens_total", "counter", f'{LABELS},mode="decode"', int(self._tokens)),
                ("http_requests_active", "gauge", 'endpoint="/generate",method="POST"', running),
            )
        )
        return web.Response(text=text)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def process(*command: str) -> Any:  # noqa: ANN401 - a context manager
    """Run a program for as long as the block lasts."""
    running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


async def judge(row: Row, engine: Engine, url: str) -> dict[str, Any]:
    """The status of the deployment at the end of one load."""
    engine.busy = row.busy
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = await asyncio.to_thread(Path, folder, "wattline.yml")
        await asyncio.to_thread(
            config.write_text,
            f"deployments:\n  - {{name: acceptance, engines: [{{url: '{url}'}}], gpus: [0]}}\n"
            f"window: {WINDOW:.0f}s\nengine_interval: 1s\n",
        )
        with contextlib.ExitStack() as stack:
            load = None
            if row.load != "nothing":
                seconds = str(WINDOW + SETTLE + 60)
                load = stack.enter_context(process(sys.executable, str(HERE / "gpu_loads.py"), row.load, seconds))
                await asyncio.sleep(SETTLE + 6)
            address = f"127.0.0.1:{port}"
            serve = ("-m", "wattline.cli", "serve", "--config.file", str(config), "--log.level", "warning")
            stack.enter_context(process(sys.executable, *serve, "--web.listen-address", address))
            await asyncio.sleep(WINDOW + 5)
            if load is not None and load.poll() is not None:
                raise RuntimeError(f"the load {row.load} ended with {load.returncode} before it was judged")
            async with aiohttp.ClientSession() as session, session.get(f"http://{address}/api/v1/status") as answer:
                status: dict[str, Any] = await answer.json()
    return status


async def run(rows: list[Row]) -> list[dict[str, Any]]:
    """Judge every row."""
    engine = Engine()
    app = web.Application()
    app.router.add_get("/metrics", engine.metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    found = []
    for row in rows:
        status = await judge(row, engine, f"http://127.0.0.1:{port}/metrics")
        deployment = status["deployments"][0]
        causes = [s["cause"] for s in deployment["suspicions"]]
        holds = deployment["state"] == row.state and (row.cause is None or row.cause in causes)
        found.append(
            {
                "load": row.load,
                "engine": "busy" if row.busy else "idle",
                "expected": row.state + (f" ({row.cause})" if row.cause else ""),
                "state": deployment["state"],
                "causes": causes,
                "reason": deployment["reason"],
                "gpus": status["gpus"],
                "holds": holds,
            }
        )
        print(f"{row.load}: {deployment['state']} {causes} {'ok' if holds else 'DOES NOT HOLD'}", file=sys.stderr)
    await runner.cleanup()
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", metavar="KIND,...", default="")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    found = asyncio.run(run([r for r in ROWS if not only or r.load in only]))
    table = Table("load", "engine", "expected", "judged", "causes", "holds")
    for row in found:
        table.add_row(
            row["load"], row["engine"], row["expected"], row["state"], ", ".join(row["causes"]), str(row["holds"])
        )
    Console(width=140).print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 0 if all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
