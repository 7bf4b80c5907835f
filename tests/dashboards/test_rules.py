"""The rules of grafana/dashboard-linter and a few of our own, over every panel and query."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.dashboards.boards import (
    BOARDS,
    BUILT_IN,
    NAMES,
    ROOT,
    Target,
    every_target,
    filled,
    panels,
    used_variables,
    variables,
)
from tests.dashboards.promql import functions, parse, selectors
from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Iterator

every_board = pytest.mark.parametrize("name", NAMES)
EXCEPTIONS = yaml.safe_load((ROOT / "dashboards" / ".lint").read_text())["exclusions"]
ALERTED = {
    name: each["value"] for name, each in yaml.safe_load((ROOT / "alerts" / "thresholds.yml").read_text()).items()
}
RATES = {"rate", "irate", "increase"}
HIDDEN = 2
"""Of a variable: it is not shown."""


def parsable(target: Target) -> str:
    return filled(target.expr, **dict.fromkeys(variables(target.board), ".*"))


@pytest.fixture(params=every_target(), ids=lambda target: target.where)
def target(request: pytest.FixtureRequest) -> Target:
    picked: Target = request.param
    return picked


@every_board
def test_it_is_not_changed_in_place(name: str) -> None:
    assert BOARDS[name]["editable"] is False


@every_board
def test_the_data_source_is_a_variable(name: str) -> None:
    source = BOARDS[name]["templating"]["list"][0]
    assert (source["name"], source["label"], source["type"], source["query"]) == (
        "datasource",
        "Data source",
        "datasource",
        "prometheus",
    )


@every_board
def test_the_variables_are_data_source_deployment_node_and_where_it_helps_gpu(name: str) -> None:
    expected = ["datasource", "cluster", "namespace", "deployment", "node"] + ["gpu"] * (name != "fleet")
    assert [each for each, how in variables(name).items() if how.get("hide") != HIDDEN] == expected


@every_board
def test_variables_follow_the_time_range_and_say_all_where_there_is_all(name: str) -> None:
    for variable in variables(name).values():
        if variable["type"] != "query":
            continue
        assert variable["refresh"] == 2, "on time range change"
        assert variable["datasource"]["uid"] == "${datasource}"
        if variable.get("includeAll"):
            assert variable["multi"]
            assert variable["allValue"] in {".+", ".*"}


@every_board
def test_panels_are_numbered_once_each(name: str) -> None:
    ids = [inner["id"] for panel in BOARDS[name]["panels"] for inner in (panel, *panel.get("panels", ()))]
    assert len(ids) == len(set(ids))
    assert None not in ids


@every_board
def test_every_panel_asks_something_and_says_how_to_read_the_answer(name: str) -> None:
    for panel in panels(name):
        title, description = panel["title"], panel["description"]
        assert title[0].isupper(), title
        assert len(title) <= 64, f"{title}: too long for its header"
        assert len(description) > 60, title
        assert description.endswith("."), title
        assert panel["targets"], title
    titles = [panel["title"] for panel in panels(name)]
    assert len(titles) == len(set(titles))


@every_board
def test_every_panel_has_a_unit(name: str) -> None:
    for panel in panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults.get("unit") or defaults.get("mappings"), panel["title"]


@every_board
def test_every_panel_and_query_asks_the_data_source_of_the_variable(name: str) -> None:
    for panel in panels(name):
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@every_board
def test_every_panel_tells_newer_grafana_that_its_options_are_current(name: str) -> None:
    assert {panel["pluginVersion"] for panel in panels(name)} == {"11.1.0"}


@every_board
def test_annotations_show_alerts_and_changes_of_state(name: str) -> None:
    found = {each["name"]: each for each in BOARDS[name]["annotations"]["list"]}
    assert sorted(found) == ["Alerts", "State changes"]
    for each in found.values():
        assert each["enable"] is True
        assert each["datasource"]["uid"] == "${datasource}"
        parse(filled(each["expr"], **dict.fromkeys(variables(name), ".*")))


def test_every_query_parses_and_knows_its_variables(target: Target) -> None:
    assert used_variables(target.expr) <= set(variables(target.board)) | set(BUILT_IN)
    parse(parsable(target))


def test_every_selector_is_filtered_by_a_variable(target: Target) -> None:
    marked = filled(target.expr, **{name: f"VARIABLE_{name}" for name in variables(target.board)})
    for selector, _ in selectors(marked):
        if selector.name == "ALERTS" and 'alertname="Watchdog"' in str(selector):
            continue  # The sign of life belongs to no deployment.
        if selector.name == "ALERTS_FOR_STATE":
            continue  # It is joined with alerts that are filtered.
        if selector.name == "ALERTS" and target.panel["title"] == "Alerts firing" and target.board == "fleet":
            continue  # All of Wattline's alerts; some, such as a lost exporter, belong to no deployment.
        assert "VARIABLE_" in str(selector), str(selector)


def test_counters_are_only_read_as_rates(target: Target) -> None:
    for selector, inside in selectors(parsable(target)):
        # Of engines of any kind, by a pattern for the name.
        if re.search(r"_(total|bucket|count|sum)$", selector.name or "") or "_bucket" in str(selector):
            assert RATES & set(functions(inside)), str(selector)
        else:
            assert not RATES & set(functions(inside)), f"{selector} is no counter"


def test_rates_over_time_use_the_interval_that_grafana_works_out(target: Target) -> None:
    # What is drawn may be chosen by the whole time range, as a number of its own: once, and not at each moment.
    for window in re.findall(r"\[([^\]]+)\](?! @ end)", target.expr):
        if window == ALERTED["energy_window"] and "energy_joules_total" in target.expr and target.target.get("instant"):
            continue  # What an alert reports is shown over the alert's window.
        if window in {"1d", "1d:1m"} and "last_over_time(" in target.expr and target.target.get("instant"):
            continue  # What was known before an exporter fell silent.
        if window == "60s" and target.panel["type"] == "xychart":
            continue  # Set against a mean over the exporter's window.
        assert window == ("$__range" if target.target.get("instant") else "$__rate_interval")


def test_what_is_chosen_by_the_whole_time_range_is_chosen_once(target: Target) -> None:
    """A topk at each moment draws pieces of many lines."""
    assert re.findall(r"\[([^\]]+)\] @ end\(\)", target.expr) in ([], ["$__range"])
    if target.target.get("range") and re.search(r"\b(top|bottom)k\(", target.expr):
        assert "[$__range] @ end()" in target.expr
    assert "@" not in target.expr.replace("[$__range] @ end()", "")


def test_a_query_is_either_for_now_or_over_time(target: Target) -> None:
    assert bool(target.target.get("instant")) != bool(target.target.get("range"))


def test_a_table_or_a_bar_asks_only_for_now(target: Target) -> None:
    if target.panel["type"] in {"table", "bargauge"}:
        assert target.target["instant"]
    if target.panel["type"] == "table":
        assert target.target["format"] == "table"


@every_board
def test_the_first_column_of_a_table_has_its_heading_also_when_no_other_query_answers(name: str) -> None:
    for panel in panels(name):
        if panel["type"] == "table":
            organize = next(each["options"] for each in panel["transformations"] if each["id"] == "organize")
            first, alone = (organize["renameByName"].get(column) for column in ("Value #A", "Value"))
            assert first == alone
            assert first or {"Value #A", "Value"} <= set(organize["excludeByName"])


UNITS = {
    "_ratio": {"percentunit"},
    "_fraction": {"percentunit"},
    "_watts": {"watt", "percentunit", "suffix:tok/J"},
    "_bytes": {"bytes", "percentunit"},
    "_hertz": {"hertz"},
    "_celsius": {"celsius"},
    "_bytes_per_second": {"Bps", "percentunit"},
    "_joules_total": {"watth", "watt"},
    "tokens_per_second": {"count:tok/s", "suffix:tok/J", "short"},
}


def test_the_unit_of_a_graph_is_that_of_what_it_shows(target: Target) -> None:
    if target.panel["type"] not in {"timeseries", "stat", "bargauge"} or "energy_price" in target.expr:
        return  # Money has the currency in its legend.
    legend = target.target.get("legendFormat")
    units = {target.panel["fieldConfig"]["defaults"]["unit"]} | {
        prop["value"]
        for override in target.panel["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if override["matcher"]["options"] == legend and prop["id"] == "unit"
    }
    for selector, _ in selectors(parsable(target)):
        for suffix, allowed in UNITS.items():
            if (selector.name or "").endswith(suffix) and not (suffix == "_watts" and "state" in str(selector)):
                assert units & allowed, f"{selector.name} in {units}"


def test_no_gauge_is_summed_over_time(target: Target) -> None:
    calcs = target.panel["options"].get("reduceOptions", {}).get("calcs", ["lastNotNull"])
    assert calcs == ["lastNotNull"]


def _properties_of(panel: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for override in panel["fieldConfig"]["overrides"]:
        for prop in override["properties"]:
            yield prop["id"], prop["value"]
    for link in panel["fieldConfig"]["defaults"].get("links") or ():
        yield "links", [link]


def _field_properties(name: str) -> Iterator[tuple[str, Any]]:
    for panel in panels(name):
        yield from _properties_of(panel)


@every_board
def test_links_lead_to_dashboards_that_are_there_with_variables_that_they_have(name: str) -> None:
    uids = {BOARDS[other]["uid"]: other for other in NAMES}
    leading = [link["url"] for prop, value in _field_properties(name) if prop == "links" for link in value]
    assert leading, "somewhere to go"
    for url in leading:
        if url.startswith("${runbooks}/"):
            continue
        uid, query = re.fullmatch(r"/d/([\w-]+)/\w+\?(.*)", url).groups()  # type: ignore[union-attr]
        known = set(variables(uids[uid]))
        assert set(re.findall(r"var-(\w+)=", query)) <= known
        assert set(re.findall(r"\$\{(\w+):queryparam\}", query)) <= known
        assert "${__url_time_range}" in query


@every_board
def test_links_and_switches_of_annotations_stay_at_the_top(name: str) -> None:
    """Newer Grafana shows at the top what has no placement; with one, it goes into a menu."""
    assert BOARDS[name]["links"]
    for each in (*BOARDS[name]["links"], *BOARDS[name]["annotations"]["list"]):
        assert "placement" not in each, each
    assert '"placement": "inControlsMenu"' not in json.dumps(BOARDS[name])


@every_board
def test_no_panel_with_links_has_a_time_range_of_its_own(name: str) -> None:
    """Grafana 11 to 13 leaves ``${__url_time_range}`` empty there: whoever follows the link loses the time range."""
    linked = [panel for panel in panels(name) if any(prop == "links" for prop, _ in _properties_of(panel))]
    assert linked, "somewhere to go"
    for panel in linked:
        assert not {"timeFrom", "timeShift"} & set(panel), panel["title"]


def test_waste_is_shown_over_the_window_and_from_the_amount_that_the_alert_reports() -> None:
    shown = [target for target in every_target() if f"[{ALERTED['energy_window']}]" in target.expr]
    shown = [target for target in shown if "energy_joules_total" in target.expr]
    assert [target.panel["title"] for target in shown] == ["Wasted in 1d", "Which deployment wastes watts?"]
    number = shown[0].panel["fieldConfig"]["defaults"]
    assert number["unit"] == "watth"
    assert number["thresholds"]["steps"][-1]["value"] == 1000 * ALERTED["energy_wasted"], "kWh in Wh"


def opened(name: str, **picked: str) -> dict[str, str]:
    """Where the links at the top lead when this is picked, by their titles. A list is what Grafana makes of it."""
    return {
        link["title"]: re.sub(
            r"\$\{(\w+):(\w+)\}",
            lambda match: f"var-{match[1]}={picked[match[1]]}" if match[2] == "queryparam" else picked[match[1]],
            link["url"],
        )
        for link in BOARDS[name]["links"]
    }


@every_board
def test_the_other_dashboards_and_the_last_day_are_linked_at_the_top(name: str) -> None:
    titles = {"fleet": "Fleet", "deployment": "Deployment", "gpu": "GPU"}
    links = {link["title"]: link for link in BOARDS[name]["links"]}
    day = links.pop("Last 24 h")
    assert list(links) == [title for other, title in titles.items() if other != name]
    assert all(link["keepTime"] and link["type"] == "link" for link in links.values())
    assert day["url"].endswith("?from=now-24h&to=now")
    assert day["url"].startswith(f"/d/{BOARDS[name]['uid']}/")
    assert day["includeVars"]
    assert not day["keepTime"]
    assert BOARDS[name]["time"] == {"from": "now-30m", "to": "now"}, "an incident of three minutes is to be seen"


def test_links_at_the_top_keep_what_is_picked_and_open_one_of_all() -> None:
    """A dashboard of one deployment, or of one GPU, can show no “All”: the one that is worst is opened."""
    source = "?var-datasource=mimir&var-cluster=c1&var-namespace=$__all&var-node=n1&"
    around = {"datasource": "mimir", "cluster": "c1", "namespace": "$__all"}
    everything = around | {"node": "n1", "deployment": "$__all", "gpu": "$__all"}
    worst = {"open_deployment": "bad", "open_gpu": "GPU-low"}
    fleet = opened("fleet", **everything, **worst)
    assert fleet["Deployment"] == f"/d/wattline-deployment/deployment{source}var-deployment=bad"
    assert fleet["GPU"] == f"/d/wattline-gpu/gpu{source}var-deployment=$__all&var-gpu=GPU-low"
    deployment = opened("deployment", **everything | {"deployment": "glm5"}, **worst)
    assert deployment["Fleet"] == f"/d/wattline-fleet/fleet{source}var-deployment=glm5"
    assert deployment["GPU"] == f"/d/wattline-gpu/gpu{source}var-deployment=glm5&var-gpu=GPU-low"
    gpu = opened("gpu", **everything | {"gpu": "GPU-7"}, **worst)
    assert gpu["Fleet"] == f"/d/wattline-fleet/fleet{source}var-deployment=$__all"
    assert gpu["Deployment"] == f"/d/wattline-deployment/deployment{source}var-deployment=bad&var-gpu=GPU-7"


@every_board
def test_alerts_do_not_shade_what_shows_states_by_colour(name: str) -> None:
    """Red over every colour makes a state look like another one."""
    states = {state.record.title for state in State}
    by_colour = {
        panel["id"]
        for panel in panels(name)
        if panel["type"] == "state-timeline"
        or (panel["type"] == "timeseries" and states <= {target.get("legendFormat") for target in panel["targets"]})
    }
    (alerts,) = (each for each in BOARDS[name]["annotations"]["list"] if each["name"] == "Alerts")
    assert alerts["filter"]["exclude"] is True
    assert set(alerts["filter"]["ids"]) == by_colour
    assert by_colour or name == "gpu"


@every_board
def test_axes_in_per_cent_are_labelled_between_0_and_100(name: str) -> None:
    """With `decimals: 0` Grafana puts labels at whole numbers only, and 1 is 100 %."""
    for panel in panels(name):
        if panel["type"] == "timeseries" and panel["fieldConfig"]["defaults"]["unit"] == "percentunit":
            assert "decimals" not in panel["fieldConfig"]["defaults"], panel["title"]


@every_board
def test_a_number_for_now_is_never_the_last_one_of_a_longer_time(name: str) -> None:
    """Grafana takes the last value of a range, however old, and shows it beside “No data”."""
    for panel in panels(name):
        if panel["type"] in {"stat", "bargauge", "table", "gauge"}:
            assert all(target.get("instant") for target in panel["targets"]), panel["title"]
        assert "lastNotNull" not in panel["options"].get("legend", {}).get("calcs", ()), panel["title"]


def test_every_exception_to_the_linter_has_a_reason() -> None:
    assert set(EXCEPTIONS) == {
        "template-job-rule",
        "template-instance-rule",
        "target-job-rule",
        "target-instance-rule",
    }
    assert all(len(exception["reason"]) > 10 for exception in EXCEPTIONS.values())
