"""What the simulated rig does not live through: a few series written by hand, and the answers on a real Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dashboards.numbers import alert_names
from tests.dashboards import prometheus
from tests.dashboards.boards import BOARDS, filled, panels, targets
from tests.dashboards.lines import SCRAPE, Line, labelled
from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from tests.dashboards.boards import Target
    from tests.dashboards.prometheus import Prometheus

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("dashboards-cases")]

START = 1_700_000_400.0
"""A multiple of ten minutes: Grafana begins at a multiple of the step."""
SECONDS = 1800
END = START + SECONDS


def states(deployment: str, instance: str, lived: Mapping[State, tuple[int, int]]) -> Iterator[Line]:
    """The state of a deployment on one host: 1 from a second up to another, and 0 at all other times."""
    for state in State:
        series = labelled(
            "wattline_deployment_state", deployment=deployment, instance=instance, job="wattline", state=state
        )
        since, until = lived.get(state, (SECONDS + SCRAPE, SECONDS))
        yield Line(series, 0, 0, since - SCRAPE)
        yield Line(series, 1, since, until)
        yield Line(series, 0, max(0, until + SCRAPE))


def always(state: State) -> dict[State, tuple[int, int]]:
    return {state: (0, SECONDS)}


BURST_ENDS = 900
PER_REQUEST = 10.0
WATTS = 50.0


def a_burst() -> Iterator[Line]:
    """64 requests run and bring 10 tokens per second each, until they end; the exporter tells means over 60 s."""
    of = {"deployment": "burst", "instance": "one:1", "job": "wattline"}
    running = labelled("wattline_engine_running_requests", **of, engine="one")
    yield Line(running, 64, 0, BURST_ENDS)
    yield Line(running, 0, BURST_ENDS + SCRAPE)
    generated = labelled("wattline_tokens_per_second", **of, kind="generation")
    for t in range(0, SECONDS + 1, SCRAPE):
        share = min(1.0, max(0.0, (BURST_ENDS + 60 - t) / 60))
        yield Line(generated, 64 * share * PER_REQUEST, t, t)
    yield Line(labelled("wattline_power_watts", **of), WATTS)


MINE, BESIDE, ELSEWHERE, IDLE_ONE = "GPU-mine", "GPU-beside", "GPU-elsewhere", "GPU-idle"
ALARMS = {
    # What it is about, and whether the dashboard of GPU-mine shows it.
    "GpuXidErrors": ({"uuid": MINE, "gpu": "0", "deployment": "two", "instance": "one:1"}, True),
    "GpuThrottled": ({"uuid": BESIDE, "gpu": "1", "deployment": "two", "instance": "one:1"}, False),
    "PcieLinkDegraded": ({"uuid": ELSEWHERE, "gpu": "0", "deployment": "two", "instance": "two:1"}, False),
    "PowerAboveLimit": ({"uuid": IDLE_ONE, "gpu": "2", "instance": "one:1"}, False),
    "GpuIdleWhileBusy": ({"deployment": "two"}, True),
    "InferenceStalled": ({"deployment": "other"}, False),
    "InferenceEngineDown": ({"deployment": "two", "engine": "a", "instance": "one:1"}, True),
    "GpuPartiallyIdle": ({"deployment": "two", "instance": "two:1"}, False),
    "RequestsWaitWhileCacheFree": ({"deployment": "other", "instance": "one:1"}, False),
    "WattlineConfigReloadFailed": ({"instance": "one:1"}, True),
    "WattlineExporterDown": ({"instance": "two:1"}, False),
    "PrometheusRuleFailures": ({"instance": "prometheus:9090"}, False),
}
EXPORTER_ENDS = 1200
CHANGES = 675
"""On no step: long before the first moment of a long one at which it can be seen."""


def two_hosts() -> Iterator[Line]:
    """A deployment over two hosts, another on the first one, and alerts about all that there is."""
    for uuid, deployment, instance, until in (
        (MINE, "two", "one:1", EXPORTER_ENDS),
        (BESIDE, "two", "one:1", SECONDS),
        (ELSEWHERE, "two", "two:1", SECONDS),
        (IDLE_ONE, "", "one:1", SECONDS),
    ):
        of = {"uuid": uuid, "deployment": deployment, "instance": instance, "job": "wattline"}
        # The boards differ in how many others they reach; the one that serves nobody is asked about, too.
        peers = {"one:1": 2, "two:1": 0}[instance]
        yield Line(labelled("wattline_gpu_up", **of), until=until)
        yield Line(labelled("wattline_gpu_p2p_peers_possible", **of), peers)
        yield Line(labelled("wattline_gpu_p2p_peers", **of), peers)
    yield from states("two", "one:1", {State.WORKING: (0, 585), State.LOW_POWER: (600, SECONDS)})
    yield from states("two", "two:1", {State.WORKING: (0, 585), State.SATURATED: (600, SECONDS)})
    yield from states("other", "one:1", {State.WORKING: (0, 585), State.IDLE: (600, SECONDS)})
    for name, (labels, _) in ALARMS.items():
        yield Line(labelled("ALERTS", alertname=name, alertstate="firing", severity="info", **labels))


def past() -> Iterator[Line]:
    yield Line(labelled("ALERTS", alertname="Watchdog", alertstate="firing", severity="none"))
    for state in State:
        yield from states(f"is-{state}", "one:1", always(state))
    yield from a_burst()
    yield from states("moved", "one:1", {State.IDLE: (0, 660), State.STALLED: (CHANGES, SECONDS)})
    yield from states("restarted", "one:1", {State.WORKING: (900, SECONDS)})
    yield from two_hosts()
    for other in set(State) - {State.UNKNOWN}:
        yield from states(f"half-{other}", "read:1", always(other))
        yield from states(f"half-{other}", "lost:1", always(State.UNKNOWN))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    lines = [sample for line in past() for sample in line.samples(START)]
    with prometheus.serving(tmp_path_factory.mktemp("cases"), [*lines, "# EOF\n"]) as running:
        yield running


ALL = {"deployment": ".*", "node": ".+"}
TABLE = "Which deployment wastes watts?"


def only(board: str, title: str, part: str) -> Target:
    """The first query of a panel that holds ``part``."""
    return next(target for target in targets(board) if target.panel["title"] == title and part in target.expr)


def names_of_states(panel: dict[str, Any]) -> dict[str, str]:
    """What a panel writes in the place of a state's number."""
    mappings = list(panel["fieldConfig"]["defaults"].get("mappings") or ())
    for override in panel["fieldConfig"]["overrides"]:
        mappings += [each for prop in override["properties"] if prop["id"] == "mappings" for each in prop["value"]]
    known = {*(state.record.title for state in State), "No data"}
    texts = {value: result["text"] for each in mappings for value, result in each["options"].items()}
    return {value: text for value, text in texts.items() if text in known}


def test_what_is_known_to_be_bad_stands_above_unknown_and_unknown_above_all_that_is_well(server: Prometheus) -> None:
    """Sorted as the table is: a deployment that lost a GPU is no better than one that works."""
    column = only("fleet", TABLE, 'state="unknown"')
    (sort,) = column.panel["options"]["sortBy"]
    assert sort == {"displayName": "State now", "desc": True}
    rows = server.at(filled(column.expr, deployment="is-.*", node=".+"), END)
    rows.sort(key=lambda row: float(row["value"][1]), reverse=True)
    assert [row["metric"]["deployment"] for row in rows] == [
        "is-stalled",
        "is-idle_while_busy",
        "is-low_power",
        "is-unknown",
        "is-saturated",
        "is-working",
        "is-idle",
    ]


SHOWS_STATES = [
    ("fleet", TABLE),
    ("fleet", "When was each deployment in which state?"),
    ("deployment", "State now"),
]


@pytest.mark.parametrize(("board", "title"), SHOWS_STATES)
@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (State.IDLE, State.UNKNOWN),
        (State.WORKING, State.UNKNOWN),
        (State.SATURATED, State.UNKNOWN),
        (State.LOW_POWER, State.LOW_POWER),
        (State.IDLE_WHILE_BUSY, State.IDLE_WHILE_BUSY),
        (State.STALLED, State.STALLED),
    ],
)
def test_a_host_that_cannot_be_read_makes_well_unknown_and_hides_nothing_bad(
    server: Prometheus, board: str, title: str, other: State, shown: State
) -> None:
    target = only(board, title, 'state="unknown"')
    (row,) = server.at(filled(target.expr, deployment=f"half-{other}", node=".+"), END)
    assert names_of_states(target.panel)[f"{float(row['value'][1]):g}"] == shown.record.title


def test_every_panel_that_shows_states_by_number_has_all_their_names() -> None:
    shown = {
        (board, panel["title"])
        for board in ("fleet", "deployment", "gpu")
        for panel in panels(board)
        if names_of_states(panel)
    }
    assert shown == set(SHOWS_STATES)
    for board, title in SHOWS_STATES:
        names = names_of_states(only(board, title, 'state="unknown"').panel)
        assert sorted(names.values()) == sorted([*(state.record.title for state in State), "No data"])


@pytest.mark.parametrize("title", [panel["title"] for panel in panels("deployment") if panel["type"] == "xychart"])
def test_a_scatter_joins_values_of_the_same_window_and_only_where_requests_ran(server: Prometheus, title: str) -> None:
    """At every moment ten tokens came of each request, also while the burst ended; after it there is no point."""
    x, y = (
        {
            t: float(value)
            for series in server.over_time(filled(target.expr, deployment="burst", node=".+"), START + 60, END)
            for t, value in series["values"]
        }
        for target in targets("deployment")
        if target.panel["title"] == title
    )
    points = [(x[t], y[t]) for t in sorted(x.keys() & y.keys())]
    ending = [(share * 64, share * 64 * PER_REQUEST) for share in (1.0, 0.75, 0.5, 0.25)]
    if "per watt" in title:
        ending = [(running, tokens / WATTS) for running, tokens in ending]
    assert points[-4:] == [pytest.approx(point) for point in ending]
    assert len(points) == (BURST_ENDS + 60 - 60) / SCRAPE


def annotation(board: str, name: str, **values: str) -> str:
    (found,) = (each for each in BOARDS[board]["annotations"]["list"] if each["name"] == name)
    return filled(found["expr"], **({"gpu": MINE} | ALL | values))


@pytest.mark.parametrize("step", [60, 120, 300, 600])
@pytest.mark.parametrize("deployment", ["moved", "restarted"])
def test_a_change_of_state_is_marked_once_whatever_the_step(server: Prometheus, deployment: str, step: int) -> None:
    """Grafana asks for 100 moments: over two hours once in two minutes. A series that begins is no change of state."""
    expr = annotation("deployment", "State changes", deployment=deployment, __interval=f"{step}s")
    marks = [
        (series["metric"]["state"], t - START)
        for series in server.over_time(expr, START, END, step)
        for t, _ in series["values"]
    ]
    first = -(-CHANGES // step) * step
    assert marks == ({"moved": [("stalled", first)], "restarted": []}[deployment])


def test_a_gpu_shows_changes_of_state_of_its_own_deployment_on_its_own_node(server: Prometheus) -> None:
    marks = server.over_time(annotation("gpu", "State changes", __interval="60s"), START, END, 60)
    assert [(each["metric"]["deployment"], each["metric"]["instance"], each["metric"]["state"]) for each in marks] == [
        ("two", "one:1", "low_power")
    ]


def test_the_cases_are_alerts_that_there_are() -> None:
    assert set(ALARMS) <= set(alert_names())


@pytest.mark.parametrize("moment", [EXPORTER_ENDS, END], ids=["read", "its exporter is down"])
def test_a_gpu_shows_alerts_about_itself_its_deployment_and_its_node(server: Prometheus, moment: float) -> None:
    at = START + moment if moment == EXPORTER_ENDS else moment
    shown = {row["metric"]["alertname"] for row in server.at(annotation("gpu", "Alerts"), at)}
    assert shown == {name for name, (_, mine) in ALARMS.items() if mine}


def test_a_gpu_that_serves_nobody_shows_alerts_about_itself_and_its_node(server: Prometheus) -> None:
    shown = {row["metric"]["alertname"] for row in server.at(annotation("gpu", "Alerts", gpu=IDLE_ONE), END)}
    assert shown == {"PowerAboveLimit", "WattlineConfigReloadFailed"}


def test_an_alert_about_no_deployment_makes_no_row_without_a_name(server: Prometheus) -> None:
    rows = server.at(filled(only("fleet", TABLE, "ALERTS").expr, **ALL), END)
    assert all(row["metric"].get("deployment") for row in rows)
    alerts = {row["metric"]["deployment"]: float(row["value"][1]) for row in rows}
    assert (alerts["two"], alerts["other"], alerts["is-idle"]) == (6, 2, 0)


@pytest.mark.parametrize("gpu", [".+", MINE])
def test_a_pair_of_gpus_is_counted_once(server: Prometheus, gpu: str) -> None:
    """Three boards on a host make three pairs, whichever of them are picked; one alone on its host makes none."""
    asked = [target for target in targets("deployment") if target.panel["title"] == "Peer to peer?"]
    for target in asked:
        values = {"deployment": "two", "node": ".+", "gpu": gpu}
        ((_, pairs),) = (row["value"] for row in server.at(filled(target.expr, **values), START + EXPORTER_ENDS))
        assert float(pairs) == 3
    assert len(asked) == 2
