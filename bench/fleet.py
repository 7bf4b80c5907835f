"""What many nodes cost Prometheus: series, bytes, memory, rule evaluation. One command: ``python -m bench.fleet``.

Each node is a host of eight GPUs with one server, from the simulated rig; one process here answers for all of them, on
one port of the loopback interface. Prometheus is real and reads the shipped rules. So that windows are full within
minutes, a small fleet lives faster: scraped every second instead of every 15 s, with the rules' durations that much
shorter. Each window then holds as many samples as it does in the world, and an evaluation does the same work. A large
fleet is scraped every 15 s, and only windows up to the length of the run are full.

Needs ``tools/servers.sh``; 1,000 nodes took 2 GiB of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import SourceView
from wattline.engines.normalise import normalise
from wattline.publish.collector import Registry
from wattline.readings import EngineReading
from wattline.simulation.rig import Rig
from wattline.simulation.scenario import timeline
from wattline.simulation.simulate import EngineText, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
RULES = ("recording.rules.yml", "wattline.rules.yml")
SCRAPE_SECONDS = 15
STEPS = 40
"""Different texts of a node; then they come again, as after a restart."""
FAST = 15.0
MEDIAN_SECONDS = 120.0
"""Evaluations of so long before the end are looked at: a single one says little on a machine that does more."""
MOST_FAST_NODES = 100
GPUS = 8
_UUID = "GPU-51a0ded0-0000"
_DEPLOYMENT = 'deployment="glm5"'


def texts(steps: int) -> Iterator[str]:
    """What a node answers, every 15 s of the simulated story."""
    observer = Observer(
        Plan(deployments=(DeploymentPlan("glm5", (EnginePlan("head", "http://127.0.0.1:30000/metrics"),)),))
    )
    gpus = Rig(timeline("story"), 1).gpus
    for gpu in gpus:
        observer.observe(gpu.identity())
    names = ("nvml", *(gpu.uuid for gpu in gpus), "engine:head")
    sources = tuple(SourceView(name, up=True, age_seconds=0.5) for name in names)
    registry = Registry()
    t = 0.0
    for item in simulate(steps * SCRAPE_SECONDS, 1):
        if item.t > t:
            registry.collector.snapshot = observer.judge(t, sources)
            for name in names:
                registry.observe_read(name, 0.002)
            if t % SCRAPE_SECONDS == 0:
                yield generate_latest(registry.registry).decode()
            t = item.t
        if not isinstance(item, EngineText):
            observer.observe(item)
        elif item.text is None:
            observer.observe(EngineReading(t=item.t, engine="head", up=False, error="connection_refused"))
        else:
            observer.observe(normalise(item.text, engine="head", t=item.t))


@dataclass(frozen=True, slots=True)
class Scrape:
    """One node's answer, counted."""

    series: int
    per_gpu: int
    per_deployment: int
    per_engine: int
    per_source: int
    of_the_exporter: int
    bytes: int
    bytes_gzip: int

    @classmethod
    def of(cls, text: str) -> Scrape:
        """Count the series by what they are about; each is counted once."""
        about: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                owner = next((o for o in ("uuid", "engine", "source", "deployment") if o in sample.labels), "exporter")
                about[owner] += 1
        sources = GPUS + 2
        return cls(
            series=about.total(),
            per_gpu=round(about["uuid"] / GPUS),
            per_deployment=about["deployment"],
            per_engine=about["engine"],
            per_source=round(about["source"] / sources),
            of_the_exporter=about["exporter"],
            bytes=len(text.encode()),
            bytes_gzip=len(gzip.compress(text.encode())),
        )


class Fleet:
    """Answers for every node."""

    def __init__(self, answers: Sequence[str], nodes: int) -> None:
        self._answers = answers
        self._asked = [0] * nodes

    async def metrics(self, request: web.Request) -> web.Response:
        """The next text of a node, with names of its own."""
        node = int(request.match_info["node"])
        text = self._answers[self._asked[node] % len(self._answers)]
        self._asked[node] += 1
        text = text.replace(_UUID, f"GPU-{node:08x}-0000").replace(_DEPLOYMENT, f'deployment="glm5-{node}"')
        return web.Response(text=text, content_type="text/plain", charset="utf-8")


@dataclass(frozen=True, slots=True)
class Cost:
    """What Prometheus needed."""

    nodes: int
    scrape_seconds: float
    speed: float
    run_seconds: float
    series: int
    samples_per_second: float
    """In the world, at a scrape every 15 s."""
    memory_mib: float
    bytes_per_series: float
    cpu_cores: float
    recording_seconds: float
    """One evaluation of the recording rules, the median."""
    alerting_seconds: float
    """One evaluation of all groups of alert rules, the sum of their medians."""
    missed_evaluations: int
    failed_scrapes: int


def shorter(text: str, speed: float) -> str:
    """Rules for a world that runs ``speed`` times as fast."""
    units = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return re.sub(r"(?<![\w.])(\d+)(ms|s|m|h|d)(?!\w)", lambda m: f"{round(int(m[1]) * units[m[2]] / speed)}ms", text)


async def ask(session: aiohttp.ClientSession, url: str, expr: str) -> dict[str, float]:
    """The values of an instant query, by rule group where there is one."""
    async with session.get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}") as answer:
        result = (await answer.json())["data"]["result"]
    return {r["metric"].get("rule_group", ""): float(r["value"][1]) for r in result}


async def measure(answers: Sequence[str], nodes: int, seconds: float, folder: Path, suite: str) -> Cost:
    """Run Prometheus over so many nodes for so many seconds."""
    speed = FAST if nodes <= MOST_FAST_NODES else 1.0
    fleet = Fleet(answers, nodes)
    app = web.Application()
    app.router.add_get("/metrics/{node}", fleet.metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = site.name.removeprefix("http://")
    targets = [
        {"targets": [address], "labels": {"__metrics_path__": f"/metrics/{n}", "instance": f"node{n}"}}
        for n in range(nodes)
    ]
    interval = f"{round(1000 * SCRAPE_SECONDS / speed)}ms"
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": list(RULES),
        "scrape_configs": [
            {"job_name": "wattline", "static_configs": targets},
            {"job_name": "prometheus", "static_configs": [{"targets": ["ITSELF"]}]},
        ],
    }
    own = f"127.0.0.1:{_free_port()}"
    (folder / "prometheus.yml").write_text(json.dumps(config).replace("ITSELF", own))
    for name in RULES:
        (folder / name).write_text(shorter((ROOT / "alerts" / name).read_text(), speed))
    program = ROOT / ".servers" / suite / "usr" / "bin" / "prometheus"
    with (folder / "log").open("w") as log:
        server = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={own}",
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            started, cpu = time.monotonic(), _cpu_seconds(server.pid)
            await asyncio.sleep(seconds)
            if server.returncode is not None:
                raise SystemExit(f"Prometheus has ended:\n{(folder / 'log').read_text()[-2000:]}")
            elapsed = time.monotonic() - started
            used = _cpu_seconds(server.pid) - cpu
            async with aiohttp.ClientSession() as session:
                url = f"http://{own}"
                series = (await ask(session, url, "prometheus_tsdb_head_series")).get("", 0.0)
                last = f"prometheus_rule_group_last_duration_seconds[{round(MEDIAN_SECONDS)}s]"
                lasted = await ask(session, url, f"max by (rule_group) (quantile_over_time(0.5, {last}))")
                missed = await ask(session, url, "sum(prometheus_rule_group_iterations_missed_total)")
                scraped = await ask(session, url, 'sum(scrape_samples_scraped{job="wattline"})')
                failed = await ask(session, url, 'count(up{job="wattline"} == 0)')
            memory = _resident_bytes(server.pid)
        finally:
            server.terminate()
            await server.wait()
            await runner.cleanup()
    recording = sum(v for group, v in lasted.items() if "recording.rules" in group)
    return Cost(
        nodes=nodes,
        scrape_seconds=SCRAPE_SECONDS / speed,
        speed=speed,
        run_seconds=round(elapsed),
        series=round(series),
        samples_per_second=round(scraped.get("", 0.0) / SCRAPE_SECONDS),
        memory_mib=round(memory / 2**20),
        bytes_per_series=round(memory / max(series, 1.0)),
        cpu_cores=round(used / elapsed / speed, 3),
        recording_seconds=round(recording, 4),
        alerting_seconds=round(sum(lasted.values()) - recording, 4),
        missed_evaluations=round(missed.get("", 0.0)),
        failed_scrapes=round(failed.get("", 0.0)),
    )


def _free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What many nodes cost Prometheus.")
    parser.add_argument("--nodes", default="10,100", help="sizes of the fleet, default 10,100")
    parser.add_argument("--minutes", type=float, default=2.0, help="length of each run, default 2")
    parser.add_argument("--suite", default="sid", choices=("sid", "trixie"), help="Prometheus 3 or 2.53")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    answers = list(texts(STEPS))
    scrape = Scrape.of(answers[-1])
    costs = []
    for nodes in map(int, options.nodes.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="wattline-fleet-"))
        try:
            costs.append(await measure(answers, nodes, 60 * options.minutes, folder, options.suite))
        finally:
            shutil.rmtree(folder)
        print(f"{nodes} nodes are done", file=sys.stderr)
    if options.json:
        print(json.dumps({"scrape": asdict(scrape), "prometheus": [asdict(c) for c in costs]}, indent=2))
        return 0
    console = Console(width=120)
    for title, rows in (("One node", [asdict(scrape)]), ("Prometheus", [asdict(c) for c in costs])):
        table = Table("", *(f"{row.get('nodes', '')}" for row in rows), title=title)
        for key in rows[0]:
            table.add_row(key.replace("_", " "), *(f"{row[key]:,}" for row in rows))
        console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
