from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.build import load_thresholds, load_values
from tests.alerts.rules import alerts, all_rules, is_scalar, seconds, unique_by
from tests.alerts.servers import ALERTS, ROOT, RULES, SUITES, output, program
from tests.dashboards.promql import functions, parse, selectors, walk

SCRAPE_SECONDS = 15
CASES = sorted(path.name for path in (ALERTS / "tests").glob("*.yml"))
QUERIES = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in all_rules()]


@pytest.mark.servers
@pytest.mark.parametrize("suite", SUITES)
def test_promtool_accepts_the_rules(suite: str) -> None:
    said = output(
        program("promtool", suite), "check", "rules", "--lint=all", "--lint-fatal", *(ALERTS / n for n in RULES)
    )
    assert said.count("SUCCESS") == len(RULES)


@pytest.mark.servers
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("case", CASES)
def test_rules_do_what_their_unit_tests_say(case: str, suite: str, tmp_path: Path) -> None:
    """Where a test is about hours, each minute is evaluated: groups with an interval of their own would take longer."""
    test = (ALERTS / "tests" / case).read_text()
    interval = yaml.safe_load(test)["evaluation_interval"]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / case).write_text(test)
    for name in RULES:
        (tmp_path / name).write_text((ALERTS / name).read_text().replace("interval: 15s", f"interval: {interval}"))
    output(program("promtool", suite), "test", "rules", tmp_path / "tests" / case)


def test_every_alert_has_unit_tests_of_its_own_that_see_it_fire() -> None:
    assert {f"{name}.yml" for name in alerts()} == {name for name in CASES if name[0].isupper()}
    for name in alerts():
        tests = yaml.safe_load((ALERTS / "tests" / f"{name}.yml").read_text())["tests"]
        checks = [check for test in tests for check in test.get("alert_rule_test", ())]
        assert any(check["alertname"] == name and check.get("exp_alerts") for check in checks), name


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_what_where_and_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert set(rule["labels"]) == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info", "none"}
    annotations = rule["annotations"]
    assert {"summary", "description", "runbook_url"} <= set(annotations)
    assert set(annotations) <= {"summary", "description", "runbook_url", "dashboard_url", "incident_url"}
    addresses = load_values().addresses
    assert annotations["runbook_url"] == f"{addresses['runbooks_url']}/{name}"
    if rule["labels"]["severity"] == "critical" or "$labels.deployment" in annotations["summary"]:
        assert annotations["dashboard_url"].startswith(addresses["dashboards_url"])
    assert name not in annotations["summary"], "the name stands beside it already"
    assert re.search(r"(\.|\.\{\{ ?end ?\}\})$", annotations["summary"]), "one sentence"
    if name != "Watchdog":
        assert "$labels." in annotations["summary"], "it says where"
        assert (
            "$value" in annotations["description"]
            or "query" in annotations["description"]
            or "$labels" in (annotations["description"])
        )


@pytest.mark.parametrize("name", alerts())
def test_a_text_is_a_few_lines_and_asks_little(name: str) -> None:
    """The rest stands behind the links. What an action spans is one line of the message."""
    description = alerts()[name]["annotations"]["description"]
    assert len(re.findall(r"\bquery \(", description)) <= 3
    assert len(re.sub(r"\{\{.*?\}\}", "", description, flags=re.DOTALL).splitlines()) <= 4
    assert "humanizePercentage" not in description, "0.0007936 % is a number for no one"
    for gauge in re.findall(
        r"wattline_gpu_\w+_ratio|wattline_engine_\w+requests|wattline_deployment_suspected\w+", description
    ):
        assert re.search(rf"_over_time\(\s*{gauge}", description), f"{gauge}: the moment may contradict the alert"


@pytest.mark.parametrize("name", alerts())
def test_every_alert_has_a_runbook(name: str) -> None:
    text = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    sections = re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]
    assert all(len(section.split()) > 10 for section in sections)


def test_there_is_no_runbook_without_an_alert() -> None:
    assert {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} == set(alerts())


@pytest.mark.parametrize(("name", "expr"), QUERIES, ids=[name for name, _ in QUERIES])
def test_a_window_holds_at_least_four_scrapes(name: str, expr: str) -> None:
    for window in re.findall(r"\[(\w+)\]", expr):
        assert seconds(window) >= 4 * SCRAPE_SECONDS, name


@pytest.mark.parametrize(("name", "expr"), QUERIES, ids=[name for name, _ in QUERIES])
def test_counters_are_rated_and_gauges_are_not(name: str, expr: str) -> None:
    for selector, inside in selectors(expr):
        if name == "GpuXidErrors" and "rate" not in inside:
            continue  # That a code has a series at all is the news.
        rated = bool({"rate", "increase"} & set(functions(inside)))
        assert rated is (selector.name or "").endswith("_total"), f"{name}: {selector}"


@pytest.mark.parametrize(("name", "expr"), QUERIES, ids=[name for name, _ in QUERIES])
def test_no_join_can_meet_many_series_on_both_sides(name: str, expr: str) -> None:
    joins = [node for node, _ in walk(parse(expr)) if type(node).__name__ == "BinaryExpr"]
    for join in joins:
        if str(join.op) in {"and", "or", "unless"} or is_scalar(join.lhs) or is_scalar(join.rhs):
            continue
        left, right = unique_by(join.lhs), unique_by(join.rhs)
        assert left is not None, f"{name}: {join.lhs}"
        assert right is not None, f"{name}: {join.rhs}"
        matching = join.modifier.matching if join.modifier else None
        on = set(matching.labels) if matching else None
        if join.modifier and "group_left" in str(join.modifier):
            assert right == on, f"{name}: the side of the one must be unique by {on}"
        else:
            assert left == right, name
            assert on in (None, left), name


OUTER = load_values().outer_labels


@pytest.mark.parametrize(("name", "expr"), QUERIES, ids=[name for name, _ in QUERIES])
def test_every_grouping_and_every_join_keeps_the_outer_labels(name: str, expr: str) -> None:
    """One store may hold several clusters, whose deployments have the same names."""
    groupings = re.findall(r"\b(?:by|on) \(([\w, ]*)\)", expr)
    for labels in groupings:
        assert tuple(labels.split(", "))[: len(OUTER)] == OUTER, name
    for key in ("ignoring", "group_left (deployment"):
        assert key not in expr, name


def test_messages_are_grouped_and_inhibited_by_the_outer_labels() -> None:
    config = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())
    routes = [
        config["route"],
        *config["route"]["routes"],
        *(r for s in config["route"]["routes"] for r in s.get("routes", ())),
    ]
    for labels in [r["group_by"] for r in routes if "group_by" in r] + [r["equal"] for r in config["inhibit_rules"]]:
        assert tuple(labels[: len(OUTER)]) == OUTER


def test_joins_that_can_fail_are_found() -> None:
    many = parse("wattline_gpu_power_watts / on (instance) wattline_tokens_per_second")
    assert unique_by(many.lhs) is None
    assert unique_by(parse("sum by (a, b) (x)")) == {"a", "b"}
    assert unique_by(parse("avg_over_time(deployment_state:x:y[5m]) > 3")) == {"deployment", "state", *OUTER}


@pytest.mark.parametrize(("name", "expr"), QUERIES, ids=[name for name, _ in QUERIES])
def test_set_operators_name_their_labels(name: str, expr: str) -> None:
    """Without ``on`` they compare all labels, and a label that differs silences the alert for ever."""
    for node, _ in walk(parse(expr)):
        if type(node).__name__ == "BinaryExpr" and str(node.op) in {"and", "unless"}:
            assert node.modifier, f"{name}: {node}"
            assert node.modifier.matching, f"{name}: {node}"


def test_recorded_series_are_named_by_level_metric_and_operations() -> None:
    for rule in all_rules():
        if "record" in rule:
            assert re.fullmatch(
                r"[a-z_]+:wattline_[a-z_]+:(sum|ratio|minutes|(ratio_)?rate\d+[mh]|increase\d+[hd])", rule["record"]
            )
            level = {*rule["record"].split(":")[0].split("_"), *OUTER}
            assert unique_by(parse(rule["expr"])) == level, rule["record"]


def test_every_name_is_used_once_and_every_recorded_series_that_is_read_exists() -> None:
    names = [rule.get("alert") or rule["record"] for rule in all_rules()]
    assert len(names) == len(set(names))
    read = {s.name for _, expr in QUERIES for s, _ in selectors(expr) if ":" in (s.name or "")}
    assert read <= {rule["record"] for rule in all_rules() if "record" in rule}


def budget() -> dict[str, float]:
    """The longest way from the onset to the receiver for each page, in seconds, at a scrape every 15 s.

    The exporter judges every second over 60 s, reads engines every 5 s and gives up on one after 5 s.
    """
    value = {name: t.value for name, t in load_thresholds().items()}
    scrape = evaluation = SCRAPE_SECONDS
    window = seconds(value["page_window"])
    delivery = evaluation + seconds(value["page_group_wait"]) + 1
    # Both ends count: a window of 2 minutes holds up to 9 samples, of which 7 must say "gone".
    samples = seconds(value["gone_window"]) / scrape + 1
    gone = int((1 - float(value["gone_share"])) * samples) * scrape
    state = 60 + 5 + 1 + scrape + float(value["page_share"]) * window + seconds(value["page_for"]) + delivery
    return {
        "GpuIdleWhileBusy": state,
        "InferenceStalled": state,
        # A reading that hangs counts as lost after 10 s; a GPU that does not come back with its exporter is missed
        # after the whole window.
        "GpuLost": max(10 + gone, seconds(value["gone_window"])) + scrape + seconds(value["gone_for"]) + delivery,
        "InferenceEngineDown": 5 + 5 + scrape + gone + seconds(value["engine_down_for"]) + delivery,
        "WattlineExporterDown": scrape + gone + seconds(value["gone_for"]) + delivery,
        "AlertmanagerDown": scrape + gone + seconds(value["gone_for"]) + delivery,
    }


def test_every_page_arrives_within_four_minutes() -> None:
    waits = budget()
    assert set(waits) == {name for name, rule in alerts().items() if rule["labels"]["severity"] == "critical"}
    assert all(wait <= 240 for wait in waits.values()), waits


def test_the_documentation_shows_the_same_sums() -> None:
    text = (ROOT / "docs" / "alerting.md").read_text()
    for name, wait in budget().items():
        assert re.search(rf"^\| {name} \|.*\| {wait:.0f} s \|$", text, re.MULTILINE), f"{name}: {wait:.0f} s"


def test_stalled_share_is_half_of_the_page_share() -> None:
    value: dict[str, Any] = {name: t.value for name, t in load_thresholds().items()}
    assert float(value["stalled_share"]) == float(value["page_share"]) / 2
