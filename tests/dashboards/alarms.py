"""What the committed alert rules say about a past: each expression on a real Prometheus, and then what it waits for.

promtool writes the past of recording rules and passes over alerts, so the two waits are done here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from tests.dashboards.boards import ROOT
from tests.dashboards.lines import labelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dashboards.prometheus import Prometheus

RULES = ROOT / "alerts" / "wattline.rules.yml"
INTERVAL = 15
"""Seconds between two evaluations, of every group."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(duration: str | None) -> int:
    """Return how long a duration of the rules is; none is 0."""
    return int(duration[:-1]) * SECONDS[duration[-1]] if duration else 0


def alarms(prometheus: Prometheus, start: float, end: float) -> Iterator[str]:
    """Yield what a Prometheus would have written of alerts and their beginnings between two moments, as OpenMetrics."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        assert seconds(group["interval"]) == INTERVAL
        for rule in group["rules"]:
            for series in prometheus.over_time(rule["expr"], start, end, INTERVAL):
                yield from _of_one(rule, series, start, end)
    yield "# EOF\n"


def _of_one(rule: dict[str, Any], series: dict[str, Any], start: float, end: float) -> Iterator[str]:
    true = {float(t) for t, _ in series["values"]}
    wait, keep = seconds(rule.get("for")), seconds(rule.get("keep_firing_for"))
    known = {name: value for name, value in series["metric"].items() if name != "__name__"} | rule["labels"]
    since = last = None
    fires = False
    for step in range(int((end - start) // INTERVAL) + 1):
        t = start + step * INTERVAL
        if t in true:
            since, last = t if since is None else since, t
            fires = fires or t - since >= wait
        elif not fires or t - (last or t) > keep:
            since, fires = None, False
        if since is not None:
            labels = {"alertname": rule["alert"], "alertstate": "firing" if fires else "pending"} | known
            yield labelled("ALERTS", **labels) + f" 1 {t:.3f}\n"
            del labels["alertstate"]
            yield labelled("ALERTS_FOR_STATE", **labels) + f" {since:.3f} {t:.3f}\n"
