"""Three hosts, one deployment over two of them, one Prometheus, and a long-term store behind it.

The rules are the shipped ones, twenty times as fast; so are the exporters' windows.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.servers import (
    ALERTS,
    RULES,
    Prometheus,
    faster,
    program,
    prometheus,
    wait_for,
)
from tests.fleet.nodes import Node, running

SPEED = 20.0
SUITE = "trixie"
HEAD = Node(deployment="glm5", scenario="climb_1024", seed=1)
FOLLOWER = Node(deployment="glm5", scenario="climb_1024", seed=2, reads_head=True)
OTHER = Node(deployment="small", scenario="healthy", seed=3)

pytestmark = pytest.mark.servers


@dataclass(frozen=True)
class Store:
    """A running VictoriaMetrics."""

    url: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - loopback
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


@contextmanager
def victoria_metrics(folder: Path) -> Iterator[Store]:
    log = folder / "victoria-metrics.log"
    command = [
        program("victoria-metrics", SUITE),
        f"-storageDataPath={folder / 'victoria-metrics'}",
        "-httpListenAddr=127.0.0.1:0",
        "-search.latencyOffset=0s",
        "-memory.allowedBytes=256MB",
    ]
    with log.open("w") as said:
        server = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            found: list[str] = []

            def listens() -> bool:
                assert server.poll() is None, log.read_text()
                found[:] = re.findall(r"started server at (http://127\.0\.0\.1:\d+)/", log.read_text())
                return bool(found)

            wait_for("VictoriaMetrics to listen", listens)
            yield Store(found[0])
        finally:
            server.terminate()
            server.wait()


@dataclass
class Pager:
    """Takes Prometheus' alerts as an Alertmanager does."""

    address: str = ""
    alerts: list[dict[str, Any]] = field(default_factory=list)

    def told(self, name: str) -> list[dict[str, str]]:
        """The labels of every alert of this name that was sent, each once however often it was sent."""
        sent = {frozenset(a["labels"].items()): a["labels"] for a in tuple(self.alerts)}
        return [labels for labels in sent.values() if labels["alertname"] == name]


@contextmanager
def pager() -> Iterator[Pager]:
    found = Pager()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.alerts += json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Fleet:
    prometheus: Prometheus
    store: Store
    pager: Pager
    addresses: list[str]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    rules = {name: faster((ALERTS / name).read_text(), SPEED) for name in RULES}
    with (
        running(HEAD, FOLLOWER, OTHER) as addresses,
        victoria_metrics(folder) as store,
        pager() as paged,
    ):
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "external_labels": {"cluster": "a"}},
            "rule_files": list(rules),
            "scrape_configs": [{"job_name": "wattline", "static_configs": [{"targets": addresses}]}],
            "remote_write": [
                {"url": f"{store.url}/api/v1/write", "queue_config": {"batch_send_deadline": "200ms"}},
            ],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [paged.address]}]}]},
        }
        with prometheus(folder, json.dumps(config), rules, SPEED, SUITE) as server:
            yield Fleet(server, store, paged, addresses)


Ask = Callable[[str], list[dict[str, Any]]]


def values(ask: Ask, expr: str, label: str = "deployment") -> dict[str, float]:
    return {r["metric"].get(label, ""): float(r["value"][1]) for r in ask(expr)}


def settled(fleet: Fleet, expr: str) -> dict[str, float]:
    """What both deployments say, once both do."""
    wait_for(expr, lambda: set(values(fleet.prometheus.query, expr)) == {"glm5", "small"})
    return values(fleet.prometheus.query, expr)


def test_an_alert_of_a_deployment_over_two_hosts_fires_once(fleet: Fleet) -> None:
    wait_for("the page", lambda: fleet.pager.told("GpuIdleWhileBusy"))
    pages = fleet.pager.told("GpuIdleWhileBusy")
    assert [(labels["deployment"], "instance" in labels) for labels in pages] == [("glm5", False)]
    firing = values(fleet.prometheus.query, 'ALERTS{alertname="GpuIdleWhileBusy",alertstate="firing"}')
    assert firing == {"glm5": 1.0}


def test_power_and_limits_are_added_over_hosts(fleet: Fleet) -> None:
    """Eight GPUs at 87 W of 600 W on each of two hosts; eight at 520 W on the third, swinging as loaded ones do."""
    power = settled(fleet, "deployment:wattline_power_watts:sum")
    assert power["glm5"] == pytest.approx(2 * 8 * 87, rel=0.06)
    assert power["small"] == pytest.approx(8 * 520, rel=0.06)
    assert settled(fleet, "deployment:wattline_power_limit_watts:sum") == {"glm5": 9600.0, "small": 4800.0}
    fraction = settled(fleet, "deployment:wattline_tdp_fraction:ratio")
    assert fraction["glm5"] == pytest.approx(87 / 600, rel=0.06)


def test_what_the_head_does_is_counted_once(fleet: Fleet) -> None:
    """Both exporters read the head's engine; only the head's own counts."""

    def instances(name: str) -> list[str]:
        return sorted(values(fleet.prometheus.query, f'{name}{{deployment="glm5"}}', "instance"))

    wait_for("both engines", lambda: instances("wattline_engine_up") == sorted(fleet.addresses[:2]))
    counted = ("engine_running_requests", "deployment_work_requests", "engine_generation_tokens_total")
    for name in counted:
        wait_for(name, lambda name=name: instances(f"wattline_{name}"))  # type: ignore[misc]
        assert instances(f"wattline_{name}") == [fleet.addresses[0]]

    def rate() -> float:
        return values(fleet.prometheus.query, "deployment:wattline_generation_tokens:rate5m").get("glm5", 0.0)

    # The shortened range is covered after 15 s; before that a rate falls short.
    wait_for("the token rate", lambda: rate() == pytest.approx(3740, rel=0.1))


def test_efficiency_divides_the_heads_tokens_by_the_power_of_both_hosts(fleet: Fleet) -> None:
    def ratio() -> float:
        return values(fleet.prometheus.query, "deployment:wattline_tokens_per_joule:rate5m").get("glm5", 0.0)

    wait_for("tokens per joule", lambda: ratio() == pytest.approx(3740 / (2 * 8 * 87), rel=0.1))


def test_state_shares_of_two_hosts_add_up_to_one(fleet: Fleet) -> None:
    expr = "sum by (deployment) (deployment_state:wattline_state_seconds:ratio_rate5m)"
    assert settled(fleet, expr) == pytest.approx({"glm5": 1.0, "small": 1.0})


def test_the_store_behind_remote_write_has_what_the_rules_recorded(fleet: Fleet) -> None:
    for name in ("deployment:wattline_power_limit_watts:sum", "deployment:wattline_tdp_fraction:ratio"):
        wait_for(name, lambda name=name: len(fleet.store.query(name)) == 2)  # type: ignore[misc]
        stored = fleet.store.query(f'{name}{{deployment="glm5"}}')
        assert stored[0]["metric"]["cluster"] == "a"
        told = values(fleet.prometheus.query, name)
        assert values(fleet.store.query, name) == pytest.approx(told, rel=0.1)


def test_the_rules_mean_the_same_when_the_store_evaluates_them(fleet: Fleet) -> None:
    text = (ALERTS / "recording.rules.yml").read_text()
    expr = re.search(r"record: deployment:wattline_tdp_fraction:ratio\n\s+expr: \|\n(.*?)\n\s+#", text, re.DOTALL)
    assert expr is not None
    here = settled(fleet, expr[1])
    wait_for("the store", lambda: len(fleet.store.query(expr[1])) == len(here))
    assert values(fleet.store.query, expr[1]) == pytest.approx(here, rel=0.1)


def test_the_stores_own_rule_engine_accepts_every_rule() -> None:
    command = [program("vmalert", SUITE), "-dryRun", *(f"-rule={ALERTS / name}" for name in RULES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
