"""What do the pieces cost? An engine's text, a second of verdicts, a replay, the start. In CPU time of one core."""

from __future__ import annotations

import gzip
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from bench.host import EIGHT_RANKS, ONE_RANK, ROOT, Host
from bench.tables import Table, number
from tests.recording.simulated import identities, plan, readings
from wattline.analysis.observer import Observer
from wattline.engines.normalise import normalise
from wattline.publish.server import Publication
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDING = ROOT / "tests" / "recording" / "data" / "story.jsonl.gz"
"""The simulated rig of eight GPUs and one server, its whole story."""
PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
IMPORTS = "wattline.commands, wattline.app, wattline.session, wattline.gpus.nvml, wattline.publish.server"
"""All that ``wattline serve`` imports."""


def cpu_of(work: Callable[[], object], times: int) -> float:
    """Median CPU seconds of doing it once."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def parsing(times: int) -> list[list[str]]:
    """Rows for an engine's text, from bytes to a reading."""
    rows = []
    for path, ranks in ((ONE_RANK, "one rank"), (EIGHT_RANKS, "eight data-parallel ranks")):
        text = gzip.decompress(path.read_bytes())
        normalise(text, engine="e", t=0.0)  # Names are remembered from the first poll.
        taken = cpu_of(lambda text=text: normalise(text, engine="e", t=0.0), times)  # type: ignore[misc]
        rows.append([f"one poll of SGLang 0.5.23, {ranks}, {len(text) / 1e3:.0f} KB", f"{1e3 * taken:.2f} ms"])
    return rows


def judging(seconds: int) -> list[list[str]]:
    """Rows for a second of eight GPUs and one engine: taking in what was read, the verdict, one scrape's text."""
    publication = Publication()
    observer = Observer(plan())
    for identity in identities("healthy"):
        observer.observe(identity)
    took: dict[str, list[float]] = {"readings": [], "verdict": [], "scrape": []}
    due, taken_in = 0.0, 0.0
    for t, reading in readings("healthy", 0.0, 70.0 + seconds, power_samples=True):
        if t > due:
            start = time.process_time()
            snapshot = observer.judge(due)
            judged = time.process_time()
            publication.publish(snapshot)
            publication.render(PROMETHEUS_2, compressed=True)
            if due > 70:  # The window is full.
                took["readings"].append(taken_in)
                took["verdict"].append(judged - start)
                took["scrape"].append(time.process_time() - judged)
            due, taken_in = t, 0.0
        start = time.process_time()
        observer.observe(reading)
        taken_in += time.process_time() - start
    middle = {name: 1e3 * statistics.median(values) for name, values in took.items()}
    return [
        ["a second's readings of 8 GPUs and an engine taken in", f"{middle['readings']:.2f} ms"],
        ["a second's verdict on them", f"{middle['verdict']:.2f} ms"],
        ["the text for the first scrape after a verdict", f"{middle['scrape']:.2f} ms"],
    ]


def replaying() -> list[list[str]]:
    """A row for a recording through the analysis again."""
    start = time.process_time()
    first = last = None
    for snapshot in replay(read_recording(RECORDING)):
        first, last = first or snapshot, snapshot
    taken = time.process_time() - start
    hours = (last.t - first.t) / 3600 if first and last else 0.0
    return [["replay of a recording of 8 GPUs and an engine", f"{hours / taken:.2f} hours a second"]]


def starting(times: int) -> list[list[str]]:
    """Rows for the start, from nothing to the first complete reading of 8 GPUs."""
    probe = f"import time; t = time.process_time(); import {IMPORTS}; print(time.process_time() - t)"
    command = (sys.executable, "-c", probe)
    imports = [
        float(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
        for _ in range(times)
    ]
    ready, cpu = [], []
    with Host(8, 1) as host:
        for _ in range(times):
            start = time.monotonic()
            program, address = host.serve()
            with program:
                program.wait_for(f"{address}/-/ready")
                ready.append(time.monotonic() - start)
                cpu.append(program.cpu_seconds())
    return [
        ["importing all that `wattline serve` needs", f"{1e3 * statistics.median(imports):.0f} ms"],
        [
            "start of the process to ready, 8 GPUs read",
            f"{statistics.median(ready):.2f} s on the clock, {number(statistics.median(cpu), 2)} s of CPU",
        ],
    ]


def measure(*, quick: bool = False) -> list[Table]:
    """The table."""
    rows = [
        *parsing(3 if quick else 200),
        *judging(3 if quick else 120),
        *replaying(),
        *starting(1 if quick else 9),
    ]
    note = (
        "Medians of repeated work, so with warm caches: in the process, where it comes once a second, it takes up to "
        "twice as much."
    )
    return [Table("The pieces", ("work", "takes"), rows, note)]
