"""The night: an exporter was killed, a deployment was renamed, a node throttles. No panel may look as by day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dashboards.panels import NO_DATA
from tests.dashboards import prometheus
from tests.dashboards.boards import Target, filled, targets
from tests.dashboards.history import Host, openmetrics
from tests.dashboards.lines import Line, labelled
from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dashboards.prometheus import Prometheus

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("dashboards-night")]

START = 1_700_000_000.0
SECONDS = 180
END = START + SECONDS
KILLED = START + 105
"""Two scrapes before the verdict is well established nothing more comes from the exporter of `dead`."""
RENAMED = START + 120
HOSTS = (Host("dead:1", "dead", "wedged"), Host("alive:1", "alive", "tuned"), Host("renamed:1", "old", "tuned"))
GPU = "GPU-01a0ded0-0000-4000-8000-000000000003"
"""Of the host whose exporter was killed."""
GPU_RENAMED = GPU.replace("GPU-0", "GPU-2")


def past() -> Iterator[str]:
    """What Prometheus holds: a killed exporter leaves `up` 0 and nothing else."""
    for line in openmetrics(START, SECONDS, HOSTS):
        if line.startswith("#"):
            break
        t = float(line.rsplit(" ", 1)[1])
        if t > KILLED and 'instance="dead:1"' in line:
            if line.startswith("up{"):
                yield line.replace("} 1 ", "} 0 ")
            continue
        yield line.replace('deployment="old"', 'deployment="new"') if t > RENAMED else line
    for written in by_hand():
        yield from written._replace(until=min(written.until, SECONDS)).samples(START)
    yield "# EOF\n"


def by_hand() -> Iterator[Line]:
    """Eight nodes, one GPU each: one of them is held back by heat all of the time. One node lost its power reading."""
    for node in range(8):
        of = {"deployment": "eight", "instance": f"n{node}:1", "job": "wattline"}
        gpu = of | {"uuid": f"GPU-{node}", "gpu": "0"}
        for t in range(0, SECONDS + 1, 15):
            hot = labelled("wattline_gpu_clocks_event_seconds_total", **gpu, reason="hw_thermal_slowdown")
            yield Line(hot, t if node == 5 else 0.0, t, t)
            capped = labelled("wattline_gpu_clocks_event_seconds_total", **gpu, reason="sw_power_cap")
            yield Line(capped, t * (0.1 if node < 4 else 0.3), t, t)
        yield Line(labelled("wattline_tokens_per_second", **of, kind="generation"), 600.0)
        yield Line(labelled("wattline_engine_up", **of, engine="one"))
        if node != 5:
            yield Line(labelled("wattline_power_watts", **of), 300.0)
    # One engine over two nodes: the head counts its tokens, and both draw power.
    for name, nodes_with_power in (("spans", ("head", "other")), ("spans-blind", ("head",))):
        for host in ("head", "other"):
            of = {"deployment": name, "instance": f"{host}:1", "job": "wattline"}
            yield Line(labelled("wattline_engine_up", **of, engine="one"))
            if host == "head":
                yield Line(labelled("wattline_tokens_per_second", **of, kind="generation"), 900.0)
            if host in nodes_with_power:
                yield Line(labelled("wattline_power_watts", **of), 300.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus.serving(tmp_path_factory.mktemp("night"), past()) as running:
        yield running


def answer(server: Prometheus, target: Target, **picked: str) -> list[dict[str, Any]]:
    values = {"deployment": "dead", "node": "dead:1", "gpu": GPU, "__range": "60s"} | picked
    expr = filled(target.expr, **values)
    # The whole time range lies after the death.
    return server.at(expr, END) if target.target.get("instant") else server.over_time(expr, END - 30, END)


def numbers(server: Prometheus, board: str, title: str, **picked: str) -> list[float]:
    return [
        float(row["value"][1])
        for target in targets(board)
        if target.panel["title"] == title
        for row in answer(server, target, **picked)
    ]


SPEAKS_OF_SILENCE = {
    ("fleet", "Exporters up"): [0.0, 1.0],
    ("fleet", "Which exporters run, and with which configuration?"): [0.0],
    ("fleet", "Which deployment wastes watts?"): [NO_DATA, NO_DATA, pytest.approx(END - KILLED, abs=60)],
    ("deployment", "State now"): [NO_DATA],
    # Its last sample is looked for minute by minute.
    ("deployment", "For"): [pytest.approx(END - KILLED, abs=60)],
    ("deployment", "What to do next?"): [1 + NO_DATA],
}
"""What a panel for now still shows of a killed exporter; every other one shows nothing."""
OF_A_DAY = "energy_joules_total"
"""The day's waste says in its name that it looks back."""
LOOKS_BACK = {
    ("fleet", "Who wasted most?"),
    ("fleet", "Where did the energy go?"),
    ("fleet", "What did each state cost?"),
    ("fleet", "What did a million tokens cost?"),
    ("fleet", "Is everything being read?"),  # Its column of errors.
    ("deployment", "What would speak for each cause, and how long was it suspected?"),
    ("deployment", "What did each state cost?"),
    ("deployment", "What did a million tokens cost?"),
    ("gpu", "Energy drawn"),
}
"""Panels that say that they are about the whole time range. All others are about now."""


@pytest.mark.parametrize("board", ["fleet", "deployment", "gpu"])
def test_no_panel_for_now_shows_a_value_whose_source_is_gone(server: Prometheus, board: str) -> None:
    """The time range begins before the exporter was killed."""
    shown: dict[tuple[str, str], list[float]] = {}
    for target in targets(board):
        where = (board, target.panel["title"])
        over_a_day = OF_A_DAY in target.expr and "[1d]" in target.expr
        if target.target.get("instant") and where not in LOOKS_BACK and not over_a_day:
            rows = answer(server, target, __range=f"{SECONDS}s")
            shown.setdefault(where, []).extend(float(row["value"][1]) for row in rows)
    assert {where: values for where, values in shown.items() if values} == {
        where: values for where, values in SPEAKS_OF_SILENCE.items() if where[0] == board
    }


def test_nothing_wastes_is_said_only_where_everybody_is_seen(server: Prometheus) -> None:
    everybody, living = ({"deployment": ".*", "node": node} for node in (".+", "alive:1"))
    assert numbers(server, "fleet", "Wasting watts now", **living) == [0]
    assert numbers(server, "fleet", "Power spent there", **living) == [0]
    assert numbers(server, "fleet", "Wasting watts now", **everybody) == []
    assert numbers(server, "fleet", "Power spent there", **everybody) == []
    assert numbers(server, "fleet", "Exporters up", **living) == [1, 1]
    assert numbers(server, "fleet", "Exporters up", **everybody) == [2, 3]


def test_a_deployment_that_went_blind_keeps_its_row_above_those_that_work(server: Prometheus) -> None:
    states, where = [t for t in targets("fleet") if "state=" in t.expr and t.panel["type"] == "table"][:2]
    rows = {
        row["metric"]["deployment"]: float(row["value"][1])
        for row in answer(server, states, deployment=".*", node=".+")
    }
    assert rows == {"dead": NO_DATA, "alive": rows["alive"], "new": rows["new"]}, (
        "a renamed one is known by its new name"
    )
    assert {rows["alive"], rows["new"]} <= {State.WORKING.record.rank, State.SATURATED.record.rank}
    wasted = next(t for t in targets("fleet") if t.panel == states.panel and OF_A_DAY in t.expr)
    named = {row["metric"]["deployment"] for row in answer(server, wasted, deployment=".*", node=".+")}
    assert named == {"dead", "alive", "new"}, "the old name has no row of its own"
    (worst,) = answer(server, where, deployment=".*", node=".+")
    assert (worst["metric"]["deployment"], worst["metric"]["instance"]) == ("dead", "dead:1")


def test_a_renamed_deployment_doubles_nothing_about_a_gpu(server: Prometheus) -> None:
    """Within the time range the GPU had two names; each panel shows one series of each kind all the same."""
    for target in targets("gpu"):
        expr = filled(target.expr, deployment=".*", node=".+", gpu=GPU_RENAMED, __range="180s")
        legend = target.target.get("legendFormat") or ""
        series = server.over_time(expr, START + 75, END) if target.target.get("range") else server.at(expr, END)
        names = [legend + str({k: v for k, v in row["metric"].items() if f"{{{{{k}}}}}" in legend}) for row in series]
        if target.panel["type"] not in {"table", "heatmap"}:
            assert len(names) == len(set(names)), (target.where, [row["metric"] for row in series])


def test_a_node_that_throttles_is_named_whatever_the_others_do(server: Prometheus) -> None:
    """Its mean over eight nodes would be 12 %."""
    drawn = {
        (row["metric"]["reason"], row["metric"].get("instance")): float(row["values"][-1][1])
        for target in targets("deployment")
        if target.panel["title"] == "What holds the clocks back?"
        for row in answer(server, target, deployment="eight", node=".+", gpu=".+")
    }
    assert drawn == {("hw_thermal_slowdown", "n5:1"): pytest.approx(1.0), ("sw_power_cap", None): pytest.approx(0.2)}


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        ("eight", [2.0]),  # Seven nodes tell both; the tokens of the eighth would make it 2.3.
        ("spans", [1.5]),  # The second node draws power for the tokens that the first one counts.
        ("spans-blind", []),  # It draws some here as well, and nobody knows how much.
    ],
)
def test_tokens_per_watt_divides_the_tokens_of_a_host_by_its_own_power(
    server: Prometheus, deployment: str, expected: list[float]
) -> None:
    assert numbers(server, "deployment", "Tokens/watt", deployment=deployment, node=".+") == expected
    (column,) = (t for t in targets("fleet") if t.panel["type"] == "table" and "wattline_engine_up" in t.expr)
    assert [float(row["value"][1]) for row in answer(server, column, deployment=deployment, node=".+")] == expected
