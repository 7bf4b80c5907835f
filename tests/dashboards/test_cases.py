"""What the simulated rig does not live through: a few series written by hand, and the answers on a real Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from exporter.analysis.snapshot import State
from exporter.publish.words import STATE_TITLES
from tests.dashboards import prometheus
from tests.dashboards.boards import filled, panels, targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from tests.dashboards.boards import Target
    from tests.dashboards.prometheus import Prometheus

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("dashboards-cases")]

START = 1_700_000_400.0
"""A multiple of ten minutes: Grafana begins at a multiple of the step."""
SECONDS = 1800
SCRAPE = 15
END = START + SECONDS


class Line(NamedTuple):
    """One series with one value, from a second on, up to another."""

    series: str
    value: float = 1.0
    since: int = 0
    until: int = SECONDS

    def samples(self) -> Iterator[str]:
        for t in range(self.since, self.until + 1, SCRAPE):
            yield f"{self.series} {self.value:g} {START + t:.3f}\n"


def labelled(name: str, **labels: str) -> str:
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


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


def past() -> Iterator[Line]:
    yield Line(labelled("ALERTS", alertname="Watchdog", alertstate="firing", severity="none"))
    for state in State:
        yield from states(f"is-{state}", "one:1", always(state))
    yield from a_burst()
    for other in set(State) - {State.UNKNOWN}:
        yield from states(f"half-{other}", "read:1", always(other))
        yield from states(f"half-{other}", "lost:1", always(State.UNKNOWN))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    lines = [sample for line in past() for sample in line.samples()]
    with prometheus.serving(tmp_path_factory.mktemp("cases"), [*lines, "# EOF\n"]) as running:
        yield running


ALL = {"deployment": ".*", "node": ".+"}
TABLE = "Which deployment wastes watts?"


def only(board: str, title: str, part: str) -> Target:
    """The one query of a panel that holds ``part``."""
    (found,) = (target for target in targets(board) if target.panel["title"] == title and part in target.expr)
    return found


def names_of_states(panel: dict[str, Any]) -> dict[str, str]:
    """What a panel writes in the place of a state's number."""
    mappings = list(panel["fieldConfig"]["defaults"].get("mappings") or ())
    for override in panel["fieldConfig"]["overrides"]:
        mappings += [each for prop in override["properties"] if prop["id"] == "mappings" for each in prop["value"]]
    known = set(STATE_TITLES.values())
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
    assert names_of_states(target.panel)[f"{float(row['value'][1]):g}"] == STATE_TITLES[shown]


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
        assert sorted(names.values()) == sorted(STATE_TITLES.values())


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
