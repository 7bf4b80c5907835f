"""What the simulated rig does not live through: a few series written by hand, and the answers on a real Prometheus."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dashboards.numbers import alert_names
from tests.dashboards import prometheus
from tests.dashboards.boards import BOARDS, ROOT, filled, panels, targets
from tests.dashboards.lines import SCRAPE, Line, labelled
from wattline.analysis.causes import Cause
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
ONSET_BEFORE = 8
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
    of = {"deployment": deployment, "instance": instance, "job": "wattline"}
    for since, until in lived.values():
        # A verdict looks back: the onset lies before the first scrape that shows the state.
        began = START + max(0, since - ONSET_BEFORE)
        yield Line(labelled("wattline_deployment_state_since_timestamp_seconds", **of), began, since, until)


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


def first_minutes() -> Iterator[Line]:
    """The minute before a verdict, and the first minute of an exporter."""
    for name, watched in (("pending", 60), ("young", 20), ("settled", 60)):
        of = {"deployment": name, "instance": "one:1", "job": "wattline"}
        yield Line(labelled("wattline_deployment_watched_seconds", **of), watched)
    yield Line(labelled("wattline_window_seconds", instance="one:1", job="wattline"), 60)
    of = {"deployment": "pending", "instance": "one:1", "job": "wattline"}
    yield Line(labelled("wattline_deployment_pending_seconds", **of, state="idle_while_busy"), 18)


ILL_SINCE = 1500


def woken() -> Iterator[Line]:
    """Two of three hosts work; the third, in the middle, idles while busy since a second that is on no scrape."""
    for instance, state in (("a:1", State.WORKING), ("b:1", State.IDLE_WHILE_BUSY), ("c:1", State.WORKING)):
        of = {"deployment": "woken", "instance": instance, "job": "wattline"}
        lived = (
            always(state)
            if state is State.WORKING
            else {State.WORKING: (0, ILL_SINCE - SCRAPE), state: (ILL_SINCE, SECONDS)}
        )
        yield from states("woken", instance, lived)
        for cause in ("not_fed", "memory_bound"):
            suspected = labelled("wattline_deployment_suspected_cause", **of, cause=cause)
            yield Line(suspected, float(instance == "b:1" or cause == "memory_bound"))
    alert = {"alertname": "GpuIdleWhileBusy", "deployment": "woken", "severity": "critical"}
    yield Line(labelled("ALERTS", **alert, alertstate="firing"), 1, 1650)
    yield Line(labelled("ALERTS_FOR_STATE", **alert), START + 1605, 1605)
    node = {"alertname": "WattlineConfigReloadFailed", "instance": "b:1", "severity": "warning"}
    yield Line(labelled("ALERTS", **node, alertstate="firing"), 1, 1650)
    yield Line(labelled("ALERTS_FOR_STATE", **node), START + 1500, 1605)
    yield Line(labelled("wattline_deployment_gpus", deployment="woken", instance="b:1", job="wattline"), 8)
    waits = alert | {"alertname": "InferenceStalled"}
    yield Line(labelled("ALERTS", **waits, alertstate="pending"), 1, 1650)
    yield Line(labelled("ALERTS_FOR_STATE", **waits), START + 1650, 1650)


PRICES = {"a:1": ("EUR", 0.25, 1.2), "b:1": ("USD", 0.10, 1.0)}


def costly() -> Iterator[Line]:
    """A kilowatt is wasted on each of three hosts, two of which have a price; a thousand tokens come a second."""
    for instance in ("a:1", "b:1", "c:1"):
        host = {"instance": instance, "job": "wattline"}
        of = host | {"deployment": "costly"}
        if instance in PRICES:
            currency, price, pue = PRICES[instance]
            yield Line(labelled("wattline_energy_price_per_kilowatt_hour", **host, currency=currency), price)
            yield Line(labelled("wattline_energy_pue_ratio", **host), pue)
        yield Line(labelled("wattline_deployment_suspected_cause", **of, cause="not_fed"), float(instance == "a:1"))
        for t in range(0, SECONDS + 1, SCRAPE):
            energy = labelled("wattline_deployment_state_energy_joules_total", **of, state="stalled")
            yield Line(energy, 1000 * t, t, t)
            yield Line(labelled("wattline_engine_generation_tokens_total", **of, engine="e"), 1000 * t, t, t)


def past() -> Iterator[Line]:
    yield Line(labelled("ALERTS", alertname="Watchdog", alertstate="firing", severity="none"))
    for state in State:
        yield from states(f"is-{state}", "one:1", always(state))
    yield from a_burst()
    yield from states("moved", "one:1", {State.IDLE: (0, 660), State.STALLED: (CHANGES, SECONDS)})
    yield from states("restarted", "one:1", {State.WORKING: (900, SECONDS)})
    yield from two_hosts()
    yield from first_minutes()
    yield from woken()
    yield from costly()
    for cluster, state in (("east", State.WORKING), ("west", State.STALLED)):
        for line in states("twin", "one:1", always(state)):
            yield line._replace(series=line.series.replace("{", f'{{cluster="{cluster}",', 1))
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
    texts = {
        value: result["text"]
        for each in mappings
        if each["type"] == "value"
        for value, result in each["options"].items()
    }
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
    ("deployment", "Which state when?"),
    ("deployment", "Which node is in which state?"),
]


@pytest.mark.parametrize(("board", "title"), SHOWS_STATES[:-1])
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


def marks(server: Prometheus, board: str, step: int, **values: str) -> set[tuple[str, str, float]]:
    """Host, state and second of each mark, as Grafana makes them: at the value, which is in milliseconds."""
    (found,) = (each for each in BOARDS[board]["annotations"]["list"] if each["name"] == "State changes")
    assert found["useValueForTime"] is True
    asked = server.over_time(annotation(board, "State changes", **values), START, END, step)
    told = {
        (series["metric"]["instance"], series["metric"]["state"], float(value) / 1000 - START)
        for series in asked
        for _, value in series["values"]
    }
    return {mark for mark in told if mark[2] > 0}


@pytest.mark.parametrize("step", [60, 300, 600])
def test_a_state_of_interest_is_marked_at_its_onset_whatever_the_step(server: Prometheus, step: int) -> None:
    """Grafana asks once a minute, and over a day for a hundred moments only."""
    onset = CHANGES - ONSET_BEFORE
    assert marks(server, "deployment", step, deployment="moved") == {("one:1", "stalled", onset)}


@pytest.mark.parametrize("deployment", ["restarted", "other"])
def test_what_is_well_has_no_mark(server: Prometheus, deployment: str) -> None:
    assert marks(server, "deployment", 60, deployment=deployment) == set()


def test_a_gpu_shows_states_of_its_own_deployment_on_its_own_node(server: Prometheus) -> None:
    assert marks(server, "gpu", 60) == {("one:1", "low_power", 600 - ONSET_BEFORE)}


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


def shown_now(server: Prometheus, title: str, deployment: str) -> list[tuple[str, float]]:
    """Legends with their labels filled in, and the values."""
    return [
        (
            re.sub(r"\{\{(\w+)\}\}", lambda match: row["metric"][match[1]], target.target["legendFormat"]),  # noqa: B023
            float(row["value"][1]),
        )
        for target in targets("deployment")
        if target.panel["title"] == title
        for row in server.at(filled(target.expr, deployment=deployment, node=".+", gpu=".+"), END)
    ]


@pytest.mark.parametrize(
    ("deployment", "shown"),
    [
        ("pending", [("idle_while_busy", 18)]),
        ("young", [("watched so far, of 60 s", 20)]),
        ("settled", [("coming", 0)]),
        ("is-working", []),  # Of an exporter that does not tell, nothing is said.
    ],
)
def test_what_is_coming_is_said_before_the_verdict(
    server: Prometheus, deployment: str, shown: list[tuple[str, float]]
) -> None:
    assert shown_now(server, "What is coming?", deployment) == shown


def test_the_name_of_a_state_that_is_coming_says_when() -> None:
    panel = next(panel for panel in panels("deployment") if panel["title"] == "What is coming?")
    names = {
        override["matcher"]["options"]: prop["value"]
        for override in panel["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if prop["id"] == "displayName"
    }
    assert names == {
        "low_power": "Low power at 60 s; so far",
        "idle_while_busy": "Idle while busy at 60 s; so far",
        "stalled": "Stalled at 60 s; so far",
        "coming": "\N{NO-BREAK SPACE}",
    }


def test_the_time_in_the_state_is_that_of_the_host_that_matters_from_its_onset(server: Prometheus) -> None:
    assert shown_now(server, "For", "woken") == [("for", SECONDS - ILL_SINCE + ONSET_BEFORE)]


def rows_of(server: Prometheus, title: str, deployment: str) -> list[dict[str, Any]]:
    (target,) = (target for target in targets("deployment") if target.panel["title"] == title)
    return server.at(filled(target.expr, deployment=deployment, node=".+", gpu=".+"), END)


def in_words(title: str, column: str, value: str) -> str:
    """What a table writes in the place of a label's value."""
    panel = next(panel for panel in panels("deployment") if panel["title"] == title)
    (override,) = (each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"] == column)
    (mappings,) = (prop["value"] for prop in override["properties"] if prop["id"] == "mappings")
    return str(mappings[0]["options"][value]["text"])


def test_what_to_do_next_names_the_state_first_then_each_cause_and_its_runbook(server: Prometheus) -> None:
    """That decoding is bound by memory is normal, and no reason to do anything."""
    rows = [row["metric"] for row in rows_of(server, "What to do next?", "woken")]
    assert [(row["what"], row.get("runbook")) for row in rows] == [
        ("idle_while_busy", "GpuIdleWhileBusy"),
        ("not_fed", None),  # The state's own runbook explains it.
    ]
    steps = {row["what"]: in_words("What to do next?", "First step", row["step"]) for row in rows}
    assert steps["not_fed"] == "Which processes are on the GPUs"


def test_every_state_and_cause_that_asks_for_something_has_a_first_step_and_a_runbook_that_exists() -> None:
    (target,) = (target for target in targets("deployment") if target.panel["title"] == "What to do next?")
    runbooks = set(re.findall(r'"runbook", "(\w+)"', target.expr))
    assert runbooks >= {"WattlineExporterDown", "WattlineDeploymentUnknown"} | {
        state.record.runbook for state in State if state.bad
    }
    assert all((ROOT / "docs" / "runbooks" / f"{name}.md").exists() for name in runbooks)
    for named in (*(state for state in State if state.bad), *(c for c in Cause if c.record.weight != "normal")):
        assert in_words("What to do next?", "First step", named.value) != "Nothing is to be done"


def test_alerts_that_fire_are_listed_with_how_long_their_condition_has_held(server: Prometheus) -> None:
    rows = rows_of(server, "Which alerts fire?", "woken")
    listed = [(row["metric"]["alertname"], row["metric"]["severity"], float(row["value"][1])) for row in rows]
    assert sorted(listed) == [
        ("GpuIdleWhileBusy", "critical", SECONDS - 1605),
        ("WattlineConfigReloadFailed", "warning", 300),
    ]
    assert shown_now(server, "Alerts firing", "woken") == [("alerts", 2)]


def test_deployments_of_one_name_in_two_clusters_are_two(server: Prometheus) -> None:
    column = only("fleet", TABLE, 'state="unknown"')
    rows = server.at(filled(column.expr, deployment="twin", node=".+"), END)
    assert {(row["metric"]["cluster"], float(row["value"][1]), row["metric"]["around"]) for row in rows} == {
        ("east", State.WORKING.record.rank, "var-cluster=east&var-namespace="),
        ("west", State.STALLED.record.rank, "var-cluster=west&var-namespace="),
    }
    for target in targets("deployment"):
        if target.panel["title"] == "State now":
            (row,) = server.at(filled(target.expr, deployment="twin", node=".+", cluster="west"), END)
            assert float(row["value"][1]) == State.STALLED.record.rank


def test_the_link_of_a_row_opens_the_deployment_in_its_cluster() -> None:
    panel = only("fleet", TABLE, "").panel
    urls = [
        link["url"]
        for override in panel["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if prop["id"] == "links"
        for link in prop["value"]
    ]
    assert [url.split("&")[:2] for url in urls] == [
        ["/d/wattline-deployment/deployment?${datasource:queryparam}", "${__data.fields.around:raw}"]
    ]


def costs(server: Prometheus, title: str, *by: str, **values: str) -> dict[tuple[str, ...], float]:
    (target,) = (target for target in targets("fleet") if target.panel["title"] == title)
    expr = filled(
        target.expr, deployment="costly", **{"node": ".+", "__range": "900s", "__rate_interval": "60s"} | values
    )
    return {tuple(row["metric"][label] for label in by): float(row["value"][1]) for row in server.at(expr, END)}


def test_energy_is_priced_where_there_is_a_price_in_its_currency_and_with_the_overhead_of_the_site(
    server: Prometheus,
) -> None:
    """900 s at a kilowatt are a quarter of a kilowatt-hour."""
    assert costs(server, "What did each state cost?", "state", "currency") == {
        ("stalled", "EUR"): pytest.approx(0.25 * 0.25 * 1.2),
        ("stalled", "USD"): pytest.approx(0.25 * 0.10),
    }
    assert costs(server, "What does waste cost an hour, by cause?", "cause", "currency") == {
        ("not_fed", "EUR"): pytest.approx(0.25 * 1.2)
    }
    assert costs(server, "What did each state cost?", "state", node="c:1") == {}


def test_a_million_tokens_cost_all_the_energy_that_was_paid_for(server: Prometheus) -> None:
    """0.9 million tokens came on the host."""
    found = costs(server, "What did a million tokens cost?", "deployment", "currency", node="a:1")
    assert found == {("costly", "EUR"): pytest.approx(0.25 * 0.25 * 1.2 / 0.9)}
