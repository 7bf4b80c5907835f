"""The story as it is shipped, through the exporter's analysis and the shipped rules: who watches it sees the pages."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.alerts.compare import scraped
from tests.alerts.servers import ALERTS, RULES, SUITES, program
from tests.recording.simulated import plan, watch
from wattline.analysis.observer import Observer
from wattline.analysis.plan import Plan
from wattline.analysis.snapshot import State
from wattline.simulation.scenario import STORY_NAME, timeline

if TYPE_CHECKING:
    from pathlib import Path

SCRAPE = 15
"""Seconds between two scrapes and two evaluations, as deploy/prometheus/prometheus.yml has them."""
LOOPS = 2
"""The second begins while the page of the first one's last fault is still kept."""
PAGES = {State.IDLE_WHILE_BUSY: "GpuIdleWhileBusy", State.STALLED: "InferenceStalled"}


@dataclass
class Scraped:
    """What Prometheus keeps of one series: a value at each scrape, or none."""

    values: dict[int, float] = field(default_factory=dict)

    def told(self, scrapes: int) -> str:
        """The series in the words of promtool: one that ends gets the mark that Prometheus sets then."""
        return " ".join(
            f"{self.values[n]:.12g}" if n in self.values else "stale" if n - 1 in self.values else "_"
            for n in range(scrapes)
        )


@cache
def history(offset: int) -> tuple[list[dict[str, str]], int]:
    """The exporter's series over the loops, scraped ``offset`` seconds after the quarter minutes."""
    # The engine's grace is that of `wattline demo`, not the one of other tests.
    observer = Observer(Plan(deployments=plan().deployments))
    found: dict[str, Scraped] = defaultdict(Scraped)
    scrapes = 0
    for snapshot in watch(observer, STORY_NAME, 0.0, LOOPS * timeline().cycle_seconds):
        if snapshot.t % SCRAPE == offset:
            for name, value in scraped(snapshot).items():
                found[name.replace("{", '{instance="demo:1", job="wattline", ', 1)].values[scrapes] = value
            scrapes += 1
    series = [{"series": name, "values": each.told(scrapes)} for name, each in sorted(found.items())]
    return [{"series": 'up{instance="demo:1", job="wattline"}', "values": f"1x{scrapes - 1}"}, *series], scrapes


def firing(folder: Path, suite: str, offset: int) -> dict[str, list[int]]:
    """At which seconds of the story each alert fires, by the shipped rules."""
    series, scrapes = history(offset)
    checks = [
        {"eval_time": f"{n * SCRAPE}s", "expr": 'ALERTS{alertstate="firing", alertname!="Watchdog"}'}
        for n in range(scrapes)
    ]
    test = {"interval": f"{SCRAPE}s", "input_series": series, "promql_expr_test": checks}
    rules = [str(ALERTS / name) for name in RULES]
    asked = {"rule_files": rules, "evaluation_interval": f"{SCRAPE}s", "tests": [test]}
    (folder / "story.yml").write_text(yaml.safe_dump(asked))
    done = subprocess.run(
        [program("promtool", suite), "test", "rules", "story.yml"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    # Every alert is an unexpected one, and is told with its time.
    told = re.findall(r"time: (?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?,\s+exp: nil\s+got: (.+)", done.stdout + done.stderr)
    assert done.returncode == 0 or told, done.stdout + done.stderr
    found: dict[str, list[int]] = defaultdict(list)
    for hours, minutes, seconds, got in told:
        at = 3600 * int(hours or 0) + 60 * int(minutes or 0) + int(seconds or 0) + offset
        for name in re.findall(r'alertname="(\w+)"', got):
            found[name].append(at)
    return found


def begins(times: list[int]) -> list[int]:
    """When an alert begins to fire."""
    return [t for t in times if t - SCRAPE not in times]


@pytest.mark.servers
@pytest.mark.parametrize("offset", [0, 7, 14])
@pytest.mark.parametrize("suite", SUITES)
def test_each_fault_of_the_story_pages_while_it_lasts_and_nothing_else_does(
    suite: str, offset: int, tmp_path: Path
) -> None:
    line = timeline()
    fired = firing(tmp_path, suite, offset)
    assert set(fired) == set(PAGES.values()), "benchmark over, warm-up, healthy decoding: nobody is called"
    for state, name in PAGES.items():
        told = begins(fired[name])
        assert [line.at(t).phase.state for t in told] == [state] * LOOPS, (name, told)
        assert [t // line.cycle_seconds for t in told] == [0, 1], "once in each loop"
