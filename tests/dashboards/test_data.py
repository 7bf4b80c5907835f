"""Every query against a real Prometheus that holds the past of the simulated rig."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.dashboards import prometheus
from tests.dashboards.alarms import alarms
from tests.dashboards.boards import AROUND, BOARDS, NAMES, Target, filled, targets, variables
from tests.dashboards.history import FLEET, SCRAPE_SECONDS, openmetrics
from wattline.analysis.snapshot import State
from wattline.simulation.scenario import timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dashboards.prometheus import Prometheus

# One real Prometheus serves all of them: they stay together when tests are spread over processes.
pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("dashboards-data")]

START = 1_700_000_000.0
SECONDS = timeline().cycle_seconds + 90.0
"""The whole story once, and the beginning of its second round."""
SETTLED = 4.0
"""Seconds that a verdict must have held at the end of a phase: with the window before it, several scrapes saw it."""
WARM = 75.0
"""The first verdicts need a window, and the first rates two scrapes."""
A_GPU = "GPU-01a0ded0-0000-4000-8000-000000000003"

EVERYTHING = {
    "fleet": {"deployment": ".*", "node": ".+"},
    "deployment": {"deployment": "glm5", "node": ".+", "gpu": ".+"},
    "gpu": {"deployment": ".*", "node": ".+", "gpu": A_GPU},
}
NEVER = {
    ("deployment", "Has the scheduler anything to do?"): "the simulated engine is of a release that does not tell",
}
NO_SUCH_FAULT = {
    ("Exporters up", "up, of"): "every exporter lives",
    ("What holds the clocks back?", "{{reason}} · {{instance}} GPU {{gpu}}"): "no GPU is hot",
    ("What is coming?", "watched so far, of 60 s"): "every exporter has watched for a window",
    (
        "How close is it to what its GPUs can do?",
        "operations",
    ): "the simulated engine is of a release that does not tell",
}
"""Queries, by panel and legend, that rightly find nothing in this past."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus.serving(folder, openmetrics(START, SECONDS), more=judged) as running:
        yield running


def judged(running: Prometheus) -> Iterator[str]:
    """What the alert rules say about that past."""
    return alarms(running, START + SCRAPE_SECONDS, START + SECONDS)


def answer(server: Prometheus, target: Target, start: float, end: float, **values: str) -> list[dict[str, Any]]:
    """What the panel gets: tables and numbers the end of the range, graphs all of it; never less than 60 s."""
    expr = filled(target.expr, **(EVERYTHING[target.board] | {"__range": f"{max(60.0, end - start):.0f}s"} | values))
    return server.at(expr, end) if target.target.get("instant") else server.over_time(expr, start, end)


def labels_of(series: dict[str, Any]) -> set[str]:
    return set(series["metric"])


@pytest.mark.parametrize("name", NAMES)
def test_every_query_gets_data(server: Prometheus, name: str) -> None:
    empty = {
        target.where
        for target in targets(name)
        # Over the whole past, whatever the panel asks for: a state that is not held now was held once.
        if not server.over_time(filled(target.expr, **EVERYTHING[name]), START + WARM, START + SECONDS)
    }
    assert empty == {
        target.where
        for target in targets(name)
        if (name, target.panel["title"]) in NEVER
        or (target.panel["title"], target.target.get("legendFormat")) in NO_SUCH_FAULT
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_label_in_a_legend_or_column_is_there(server: Prometheus, name: str) -> None:
    for target in targets(name):
        series = answer(server, target, START + WARM, START + SECONDS)
        if not series:
            continue
        common = set.intersection(*map(labels_of, series))
        wanted = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target.target.get("legendFormat") or ""))
        assert wanted - set(AROUND) <= common, target.where
    for panel in (target.panel for target in targets(name) if target.panel["type"] == "table"):
        renamed = next(each["options"]["renameByName"] for each in panel["transformations"] if each["id"] == "organize")
        got = set().union(
            *(
                labels_of(series)
                for target in targets(name)
                if target.panel is panel
                for series in answer(server, target, START + WARM, START + SECONDS)
            )
        )
        # Prometheus drops an empty label: the simulated engine tells no version, and what is well has no runbook.
        absent = {"version", "runbook", *AROUND}
        assert {label for label in renamed if not label.startswith("Value")} - absent <= got, panel["title"]


class Stretch(NamedTuple):
    """A phase of the story, from where the verdict is settled to its end."""

    phase: str
    state: State
    start: float
    end: float


def _stretches() -> Iterator[Stretch]:
    line = timeline()
    seconds = [float(t) for t in range(int(WARM), int(SECONDS))]
    for (phase, state), group in groupby(seconds, lambda t: (line.at(t).phase.name, line.settled_state(t))):
        times = list(group)
        if state is not None and times[-1] - times[0] >= SETTLED:
            yield Stretch(phase, state, times[0], times[-1])


STRETCHES = list(_stretches())


def test_the_story_has_a_settled_stretch_of_every_state_but_unknown() -> None:
    assert {stretch.state for stretch in STRETCHES} == set(State) - {State.UNKNOWN}


STATE_OF_TITLE = {state.record.title: state for state in State}
NOT_IN = {
    "What does a token cost?": "no token comes",
    "Who wasted most?": "nothing was wasted",
    "Which alerts fire?": "none fires",
    "What does waste cost an hour, by cause?": "nothing is wasted",
    "What did a million tokens cost?": "no token comes",
    "Which GPUs do least while their deployment holds work?": "nobody holds work",
}
"""Panels that are rightly empty while the reason holds."""


@pytest.mark.parametrize("stretch", STRETCHES, ids=lambda stretch: f"{stretch.phase}-{stretch.state}")
@pytest.mark.parametrize("name", NAMES)
def test_every_panel_has_data_in_every_phase(server: Prometheus, name: str, stretch: Stretch) -> None:
    start, end = START + stretch.start, START + stretch.end
    filters = {"deployment": "glm5", "node": "node-a:10087"}
    empty: set[str] = set()
    filled_titles: set[str] = set()
    for target in targets(name):
        title = target.panel["title"]
        (filled_titles if answer(server, target, start, end, **filters) else empty).add(title)
    empty -= filled_titles
    excused = set(NOT_IN) | {title for board, title in NEVER if board == name}
    assert empty <= excused


def test_power_is_drawn_in_the_colour_of_the_state_that_holds(server: Prometheus) -> None:
    stack = [t for t in targets("fleet") if t.panel["title"].startswith("How much power goes into which state")]
    for stretch in STRETCHES:
        at = START + stretch.end // SCRAPE_SECONDS * SCRAPE_SECONDS
        drawn = {
            STATE_OF_TITLE[target.target["legendFormat"]]
            for target in stack
            if target.target["legendFormat"] in STATE_OF_TITLE
            and server.at(filled(target.expr, deployment="glm5", node="node-a:10087"), at)
        }
        assert drawn == {stretch.state}, stretch


def test_shares_of_time_add_up_to_one(server: Prometheus) -> None:
    shares = [t for t in targets("deployment") if t.panel["title"] == "What did it do with its time?"]
    total: dict[float, float] = {}
    for target in shares:
        (series,) = answer(server, target, START + WARM, START + SECONDS)
        for t, value in series["values"]:
            total[t] = total.get(t, 0.0) + float(value)
    assert len(total) > 40
    assert all(share == pytest.approx(1.0) for share in total.values())


def test_a_deployment_over_two_hosts_is_one_row_with_the_sums_of_both(server: Prometheus) -> None:
    hosts = [host.name for host in FLEET if host.deployment == "qwen-235b"]
    assert len(hosts) == 2
    columns = [t for t in targets("fleet") if t.panel["title"] == "Which deployment wastes watts?"]
    for target in columns:
        rows = answer(server, target, START + WARM, START + SECONDS)
        names = [row["metric"]["deployment"] for row in rows]
        assert len(names) == len(set(names)), target.where
    gpus = next(
        t for t in columns if t.expr.startswith("sum by (cluster, namespace, deployment) (wattline_deployment_gpus")
    )
    of_both = next(
        row for row in answer(server, gpus, START + WARM, START + SECONDS) if row["metric"]["deployment"] == "qwen-235b"
    )
    assert float(of_both["value"][1]) == 16


def test_nothing_is_shown_as_zero_where_nobody_looks(server: Prometheus) -> None:
    """Before the first scrape no panel says 0; no alert is 0 only while the rules are alive."""
    before = START - 3600
    for name in NAMES:
        for target in targets(name):
            assert not answer(server, target, before - 600, before), target.where


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_finds_what_is_there(server: Prometheus, name: str) -> None:
    known = EVERYTHING[name]
    for variable in variables(name).values():
        if variable["type"] != "query":
            continue
        query = filled(variable["query"]["query"], **known)
        if variable["name"] in AROUND:
            continue
        if match := re.fullmatch(r"label_values\((.*), (\w+)\)", query):
            found = {row["metric"][match[2]] for row in server.at(match[1], START + SECONDS)}
            assert len(found) >= (1 if name == "deployment" else 4), variable["name"]
            continue
        if variable.get("hide"):
            continue
        inner = re.fullmatch(r"query_result\((.*)\)", query)
        assert inner
        pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
        picks: dict[str, str] = {}
        for row in server.at(inner[1], START + SECONDS):
            # As Grafana writes a result for its regex.
            text = "{" + ",".join(f'{label}="{value}"' for label, value in row["metric"].items()) + "} 1 1"
            picks.update([(found["value"], found["text"]) for found in [pattern.search(text)] if found])
        assert picks[A_GPU] == "node-a:10087 GPU 3"
        assert len(picks) == len(set(picks.values()))


def test_annotations_mark_every_state_of_interest(server: Prometheus) -> None:
    (changes,) = (each for each in BOARDS["deployment"]["annotations"]["list"] if each["name"] == "State changes")
    marks = server.over_time(filled(changes["expr"], **EVERYTHING["deployment"]), START, START + SECONDS, step=60)
    assert {series["metric"]["state"] for series in marks} >= {"idle_while_busy", "low_power", "stalled"}
    assert not {series["metric"]["state"] for series in marks} & {"idle", "working", "saturated"}


def test_annotations_show_alerts_of_the_deployment_only(server: Prometheus) -> None:
    (alerts,) = (each for each in BOARDS["deployment"]["annotations"]["list"] if each["name"] == "Alerts")
    # The two faults of the story last as long as a page waits; what the other hosts hold, they hold for good.
    for deployment, expected in (
        ("glm5", {"GpuIdleWhileBusy", "InferenceStalled"}),
        ("llama-70b", set()),
        ("qwen-235b", {"GpuPartiallyIdle", "RequestsWaitWhileCacheFree"}),
        ("mistral", {"GpuLost", "WattlineDeploymentUnknown"}),
    ):
        expr = filled(alerts["expr"], **(EVERYTHING["deployment"] | {"deployment": deployment}))
        marks = server.over_time(expr, START, START + SECONDS)
        assert {series["metric"]["alertname"] for series in marks} == expected


def test_alerts_fire_when_their_rules_have_waited(server: Prometheus) -> None:
    """A GPU is lost and stays so: GpuLost holds for a minute before it fires, and goes on."""
    times = {
        series["metric"]["alertstate"]: [float(t) for t, _ in series["values"]]
        for series in server.over_time('ALERTS{alertname="GpuLost"}', START, START + SECONDS)
    }
    assert times["firing"][0] - times["pending"][0] == 60
    assert times["firing"][-1] == START + SECONDS


@pytest.mark.parametrize("deployment", sorted({host.deployment for host in FLEET}))
def test_the_dashboard_of_any_deployment_is_full(server: Prometheus, deployment: str) -> None:
    shown: dict[str, bool] = {}
    for target in targets("deployment"):
        # From one scrape earlier: the last verdict about mistral is the first sample of the time range, and a window
        # leaves out the moment at which it begins.
        data = answer(server, target, START + WARM - SCRAPE_SECONDS, START + SECONDS, deployment=deployment)
        shown[target.panel["title"]] = shown.get(target.panel["title"], False) or bool(data)
    empty = {title for title, full in shown.items() if not full}
    lost = {"Of the limit", "Active power", "Tokens/watt"} if deployment == "mistral" else set()
    assert empty - lost <= set(NOT_IN) | {title for board, title in NEVER if board == "deployment"}
    assert lost <= empty, "of a deployment that lost a GPU there is no such number now"


@pytest.mark.parametrize(
    ("name", "variable", "picked", "opened"),
    [
        ("fleet", "open_deployment", {}, {"glm5"}),
        ("fleet", "open_deployment", {"deployment": "llama-70b|mistral"}, {"mistral"}),
        ("fleet", "open_gpu", {"deployment": "mistral"}, {"GPU-41a0ded0-0000-4000-8000-000000000003"}),
        ("deployment", "open_gpu", {"gpu": A_GPU}, {A_GPU}),
        ("gpu", "open_deployment", {}, {"glm5"}),
    ],
)
def test_links_at_the_top_open_the_one_that_asks_for_attention(
    server: Prometheus, name: str, variable: str, picked: dict[str, str], opened: set[str]
) -> None:
    (found,) = (each for each in BOARDS[name]["templating"]["list"] if each["name"] == variable)
    query = re.fullmatch(r"query_result\((.*)\)", filled(found["query"]["query"], **(EVERYTHING[name] | picked)))
    (label,) = re.findall(r"/(\w+)=", found["regex"])
    assert query
    idle_while_busy = next(stretch for stretch in STRETCHES if stretch.state is State.IDLE_WHILE_BUSY)
    assert {row["metric"][label] for row in server.at(query[1], START + idle_while_busy.end)} == opened
