"""The bundle as it is, from the simulated GPUs to the receiver: real exporter, real Prometheus, real Alertmanager.

The world runs 20 times as fast. `wattline demo --speed 20` lets 20 simulated seconds pass in a real one, its counters
of seconds included. So every duration of the rules and configurations is divided by 20, a scrape comes every 0.75 s,
and a threshold in seconds per second is multiplied by 20. Nothing else differs from what is delivered but addresses.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from alerts.build import load_thresholds, load_values, render
from tests.alerts.long_story import SECONDS
from tests.alerts.servers import (
    ALERTS,
    ROOT,
    RULES,
    Prometheus,
    alertmanager,
    faster,
    prometheus,
    receiving,
    running,
    wait_for,
)

SPEED = 20


@contextmanager
def demo(folder: Path) -> Iterator[tuple[str, Path]]:
    """Address and log of an exporter over the simulated rig."""
    log = folder / "demo.log"
    command = (sys.executable, "-m", "tests.alerts.long_story", f"--speed={SPEED}", "--web.listen-address=127.0.0.1:0")
    with running(log, *command, address=r"serves http://(127\.0\.0\.1:\d+)/metrics", ready="/metrics") as url:
        yield url.removeprefix("http://"), log


def bundle() -> dict[str, str]:
    """Rules and Alertmanager's configuration for the fast world."""
    thresholds = {
        name: replace(t, value=str(float(t.value) * SPEED)) if t.unit == "seconds_per_second" else t
        for name, t in load_thresholds().items()
    }
    return {name: faster(text, SPEED) for name, text in render(thresholds, load_values()).items()}


def begins(log: Path) -> list[tuple[str, datetime]]:
    """Which phases have begun, and when."""
    found = re.findall(r'^time=(\S+) .*msg="Demo phase (\w+) ', log.read_text(), re.MULTILINE)
    return [(name, datetime.fromisoformat(time)) for time, name in found]


@pytest.mark.servers
@pytest.mark.timeout(400)
def test_pages_for_idle_while_busy_and_for_a_wedged_server_arrive_and_end_and_nothing_else_comes(
    tmp_path: Path,
) -> None:
    texts = bundle()
    with receiving() as receiver, demo(tmp_path) as (target, log):
        routes = texts["alertmanager.yml"].replace("http://alert-log:9099", receiver.url)
        with alertmanager(tmp_path / "alertmanager", routes) as manager:
            config = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
            config = faster(config, SPEED).replace("exporter:10087", target)
            config = config.replace("alertmanager:9093", manager.url.removeprefix("http://"))
            # It chooses its own port, and cannot be told to scrape it.
            config = config.replace("      - targets: [localhost:9090]\n", "      - targets: []\n")
            rules = {f"../wattline/alerts/{name}": texts[name] for name in RULES}
            with prometheus(tmp_path / "prometheus", config, rules, SPEED) as server:
                wait_for("the sign of life", lambda: receiver.told("firing", alertname="Watchdog"))
                patience = sum(seconds for _, seconds in SECONDS[:-1]) / SPEED + 60
                for status in ("firing", "resolved"):
                    for name in ("GpuIdleWhileBusy", "InferenceStalled"):
                        wait_for(
                            f"{name} {status}",
                            lambda name=name, status=status: receiver.told(status, alertname=name),  # type: ignore[misc]
                            patience,
                        )
                # A while of healthy decoding to the end.
                evaluated = server.evaluations()
                wait_for("20 more evaluations", lambda: server.evaluations() >= evaluated + 20)
                assert_healthy(server)
    pages = {("GpuIdleWhileBusy", "firing"), ("InferenceStalled", "firing")}
    pages |= {(name, "resolved") for name, _ in pages}
    assert receiver.names() == receiver.names("pages") == pages
    phases = begins(log)
    for name, phase in (("GpuIdleWhileBusy", "climb_1024"), ("InferenceStalled", "wedged")):
        told = receiver.told("firing", alertname=name)
        assert {alert["labels"]["deployment"] for alert in told} == {"glm5"}
        number = [begun for begun, _ in phases].index(phase)
        assert phases[number][1] < datetime.fromisoformat(told[0]["startsAt"]) < phases[number + 1][1], "in its phase"
    idle = receiver.told("firing", alertname="GpuIdleWhileBusy")[0]["annotations"]["description"]
    assert re.search(r"Hosts: 127\.0\.0\.1:\d+ for \d+ min\.\nSuspected cause: not fed\.$", idle)
    stalled = receiver.told("firing", alertname="InferenceStalled")[0]["annotations"]["description"]
    assert stalled.endswith("Suspected cause: spinning.")


def assert_healthy(server: Prometheus) -> None:
    """Every rule is evaluated without a fault, and every recorded series is there."""
    rules = server.rules()
    assert {rule["health"] for rule in rules} == {"ok"}
    assert len(rules) == sum((ALERTS / name).read_text().count("- record:") for name in RULES) + sum(
        (ALERTS / name).read_text().count("- alert:") for name in RULES
    )
    for rule in rules:
        if rule["type"] == "recording" and not re.search("cost|price|co2", rule["name"]):  # Nobody has set a price.
            assert server.query(rule["name"]), rule["name"]
