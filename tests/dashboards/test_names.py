"""What is published is shown or alerted on, or it is written down why not."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import yaml

from tests.dashboards.boards import BOARDS, NAMES, ROOT, every_target, filled, variables
from tests.dashboards.promql import metrics
from wattline.publish import families
from wattline.publish.collector import Registry

DELIBERATELY_UNUSED = {
    "wattline_gpu_power_fraction_sum": "the heatmap shows the distribution, wattline_gpu_tdp_fraction its mean",
    "wattline_source_read_seconds_sum": "a quantile tells of a slow driver earlier than a mean",
    "wattline_source_read_seconds_count": "as its sum",
    "wattline_energy_co2_kilograms_per_kilowatt_hour": "for those who report it; the audit counts it by itself",
}

BY_PROMETHEUS = {"ALERTS", "ALERTS_FOR_STATE", "up"}
"""What Prometheus itself tells."""


@cache
def published() -> frozenset[str]:
    """Names of all series that the exporter can publish, but those of the process itself."""
    tables: tuple[tuple[families.Family[Any], ...], ...] = (
        families.GPU_FAMILIES,
        families.ENGINE_FAMILIES,
        families.DEPLOYMENT_FAMILIES,
        families.SOURCE_FAMILIES,
        families.SNAPSHOT_FAMILIES,
        families.PRICE_FAMILIES,
    )
    names = {families.PREFIX + family.name + "_total" * family.counter for table in tables for family in table}
    names |= {families.PREFIX + info.name for info in (families.GPU_INFO, families.ENGINE_INFO)}
    histograms = {families.PREFIX + families.POWER_FRACTION[0]}
    for metric in Registry().registry.collect():
        if metric.name.startswith(families.PREFIX):
            (histograms if metric.type == "histogram" else names).add(metric.name)
    return frozenset(names | {name + suffix for name in histograms for suffix in ("_bucket", "_sum", "_count")})


def named_by_dashboards() -> set[str]:
    named: set[str] = set()
    for target in every_target():
        named |= metrics(filled(target.expr, **dict.fromkeys(variables(target.board), ".*")))
    for name in NAMES:
        for variable in BOARDS[name]["templating"]["list"]:
            named |= set(re.findall(r"wattline_\w+", str(variable.get("definition"))))
    return named


def named_by_rules() -> tuple[set[str], set[str]]:
    """What the rules read, and what they record."""
    read: set[str] = set()
    recorded: set[str] = set()
    for path in (ROOT / "alerts").glob("*.rules.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                read |= metrics(rule["expr"])
                recorded |= {rule[key] for key in ("record",) if key in rule}
    return read, recorded


def test_every_metric_that_a_dashboard_names_is_published() -> None:
    assert named_by_dashboards() - BY_PROMETHEUS <= published()


def test_every_metric_that_a_rule_names_is_published_or_recorded() -> None:
    read, recorded = named_by_rules()
    assert len(read) > 20
    assert {name for name in read if name.startswith("wattline_")} <= published()
    assert {name for name in read if ":" in name} <= recorded


def test_every_published_metric_is_used_or_it_is_said_why_not() -> None:
    read, _ = named_by_rules()
    assert published() - named_by_dashboards() - read == set(DELIBERATELY_UNUSED)
