"""Five hundred GPUs: every panel answers, and none draws more than can be read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboards import prometheus
from tests.dashboards.alarms import alarms
from tests.dashboards.boards import Target, filled, panels, targets
from tests.dashboards.history import Host, openmetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dashboards.prometheus import Prometheus

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("dashboards-fleet")]

START = 1_700_000_000.0
SECONDS = 180.0
END = START + SECONDS
HOSTS = 63
GPUS_EACH = 8
WIDE = "deepseek"
WIDE_HOSTS = 20
"""One deployment over many hosts; every other host has one of its own."""
SCENARIOS = ("tuned", "wedged", "gpu_lost", "partial_idle")

FEW = 16
"""Lines of one query, and rows of a timeline. Fixed numbers of lines, such as one for each state, are fewer."""
GRAPHS = {"timeseries", "state-timeline", "bargauge", "stat", "xychart"}


def scenario(host: int) -> str:
    return "tuned" if host < WIDE_HOSTS else SCENARIOS[host % len(SCENARIOS)]


def deployment(host: int) -> str:
    return WIDE if host < WIDE_HOSTS else f"model-{host:02}"


def past() -> Iterator[str]:
    """One host of each scenario is simulated, and the others live through the same under names of their own."""
    lived = {
        name: "".join(openmetrics(START, SECONDS, (Host("HOST", "SERVED", name),))).replace("# EOF\n", "")
        for name in SCENARIOS
    }
    for host in range(HOSTS):
        text = lived[scenario(host)].replace('"HOST"', f'"node-{host:02}:10087"')
        yield text.replace('"SERVED"', f'"{deployment(host)}"').replace('"GPU-0', f'"GPU-{host:02}')
    yield "# EOF\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("fleet")
    with prometheus.serving(folder, past(), more=lambda before: alarms(before, START, END)) as running:
        yield running


VALUES = {
    "fleet": {"deployment": ".*", "node": ".+"},
    "deployment": {"deployment": WIDE, "node": ".+", "gpu": ".+"},
}
RANGE = 120.0


def answer(server: Prometheus, target: Target) -> list[dict[str, Any]]:
    expr = filled(target.expr, **VALUES[target.board], __range=f"{RANGE:.0f}s")
    return server.at(expr, END) if target.target.get("instant") else server.over_time(expr, END - RANGE, END)


def of(board: str, title: str) -> list[Target]:
    found = [target for target in targets(board) if target.panel["title"] == title]
    assert found, title
    return found


def test_there_are_five_hundred_gpus(server: Prometheus) -> None:
    ((_, count),) = (row["value"] for row in server.at("count(count by (uuid) (wattline_gpu_up))", END))
    assert float(count) == HOSTS * GPUS_EACH == 504


@pytest.mark.parametrize("board", VALUES)
def test_no_query_draws_more_than_can_be_read(server: Prometheus, board: str) -> None:
    counts = {target.where: len(answer(server, target)) for target in targets(board) if target.panel["type"] in GRAPHS}
    assert {where: count for where, count in counts.items() if count > FEW} == {}
    assert max(counts.values()) == FEW, "there was more to draw"


def test_the_table_of_the_fleet_has_one_row_for_each_deployment(server: Prometheus) -> None:
    known = {deployment(host) for host in range(HOSTS)}
    columns = of("fleet", "Which deployment wastes watts?")
    for target in columns:
        rows = [row["metric"]["deployment"] for row in answer(server, target)]
        assert len(rows) == len(set(rows)), target.where
        assert set(rows) <= known, target.where
    gpus = {
        row["metric"]["deployment"]: float(row["value"][1])
        for target in columns
        if target.expr.startswith("sum by (cluster, namespace, deployment) (wattline_deployment_gpus")
        for row in answer(server, target)
    }
    assert gpus == dict.fromkeys(known, GPUS_EACH) | {WIDE: WIDE_HOSTS * GPUS_EACH}


def test_numbers_of_the_fleet_are_sums_over_all_of_it(server: Prometheus) -> None:
    (wasting,) = of("fleet", "Wasting watts now")
    ((_, count),) = (row["value"] for row in answer(server, wasting))
    assert float(count) == Counter(map(scenario, range(HOSTS)))["wedged"], "each has a deployment of its own"
    (generated,) = of("fleet", "Tokens/s")
    ((_, tokens),) = (row["value"] for row in answer(server, generated))
    parts = server.at("sum by (instance) (wattline_tokens_per_second{kind='generation'})", END)
    assert float(tokens) == pytest.approx(sum(float(row["value"][1]) for row in parts))
    assert len(parts) > HOSTS / 2


def test_the_timeline_shows_those_that_are_not_well(server: Prometheus) -> None:
    (timeline,) = of("fleet", "When was each deployment in which state?")
    shown = {series["metric"]["deployment"] for series in answer(server, timeline)}
    assert len(shown) == FEW
    ill = {deployment(host) for host in range(HOSTS) if scenario(host) in {"wedged", "gpu_lost"}}
    assert len(ill) > FEW
    assert shown <= ill


def test_the_table_of_gpus_has_all_of_them_and_the_graph_the_lowest(server: Prometheus) -> None:
    for target in of("deployment", "How is each GPU?"):
        rows = answer(server, target)
        assert len({row["metric"]["uuid"] for row in rows}) == len(rows) == WIDE_HOSTS * GPUS_EACH, target.where
    (graph,) = of("deployment", "How much of its limit does each GPU use?")
    fractions = server.at(f'avg_over_time(wattline_gpu_tdp_fraction{{deployment="{WIDE}"}}[{RANGE:.0f}s])', END)
    means = {row["metric"]["uuid"]: float(row["value"][1]) for row in fractions}
    shown = {series["metric"]["uuid"] for series in answer(server, graph)}
    assert max(means[uuid] for uuid in shown) <= min(means[uuid] for uuid in set(means) - shown)


NOT_IN = {
    "Has the scheduler anything to do?": "the simulated engine is of a release that does not tell",
    "Which alerts fire?": "it is well",
    "What does waste cost an hour, by cause?": "nothing is wasted",
}


@pytest.mark.parametrize("board", VALUES)
def test_every_panel_has_data(server: Prometheus, board: str) -> None:
    full = {target.panel["title"] for target in targets(board) if answer(server, target)}
    empty = {panel["title"] for panel in panels(board)} - full
    assert empty == (set(NOT_IN) if board == "deployment" else set())
