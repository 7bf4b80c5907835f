"""The past of a small fleet as a Prometheus would hold it: the simulated rig, judged and published, without waiting.

Five hosts with the rig each. The first lives through the whole story; the others hold one scenario, two of them as one
deployment over two hosts, and one GPU of the second host serves no deployment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client import generate_latest

from tests.recording.simulated import ENGINE, URL, plan, watch
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan
from wattline.analysis.snapshot import SourceView
from wattline.config import Price
from wattline.publish.collector import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.analysis.snapshot import Snapshot

SCRAPE_SECONDS = 15


@dataclass(frozen=True)
class Host:
    """One host of the fleet and what goes on there."""

    name: str
    deployment: str
    scenario: str
    gpus: tuple[int | str, ...] | None = None
    engine: bool = True
    """False: none is configured."""


FLEET = (
    Host("node-a:10087", "glm5", "story"),
    Host("node-b:10087", "llama-70b", "tuned", gpus=tuple(range(7))),
    Host("node-c:10087", "qwen-235b", "batch_limited"),
    Host("node-d:10087", "qwen-235b", "partial_idle"),
    Host("node-e:10087", "mistral", "gpu_lost"),
)


def openmetrics(start: float, seconds: float, hosts: tuple[Host, ...] = FLEET) -> Iterator[str]:
    """Yield the samples of every host, one line each, as OpenMetrics with times of their own.

    Args:
        start: of the past, Unix seconds.
        seconds: its length.
        hosts: what to simulate.
    """
    for number, host in enumerate(hosts):
        registry = Registry()
        registry.reload_ok.set(1)
        registry.reload_time.set(start)
        registry.collector.price = Price(per_kwh=0.25, currency="EUR", pue=1.2)
        for snapshot in _watched(host, start, seconds):
            registry.collector.snapshot = snapshot
            for source in snapshot.sources:
                registry.observe_read(source.name, 0.003)
            if snapshot.t % SCRAPE_SECONDS == 0:
                at = f"{start + snapshot.t:.3f}"
                text = generate_latest(registry.registry).decode()
                for line in text.splitlines():
                    if line.startswith("wattline_"):
                        yield _labelled(line, host, number) + f" {at}\n"
                for line in _beside(snapshot):
                    yield _labelled(line, host, number) + f" {at}\n"
                yield f'up{{instance="{host.name}",job="wattline"}} 1 {at}\n'
    yield "# EOF\n"


def _beside(snapshot: Snapshot) -> Iterator[str]:
    """What stands in the same Prometheus: the engine's own histograms."""
    for d in snapshot.deployments:
        for name in ("sglang:time_to_first_token", "sglang:inter_token_latency", "sglang:e2e_request_latency"):
            for edge, ended in (("0.1", 1), ("1.0", 8), ("+Inf", 10)):
                yield f'{name}_seconds_bucket{{deployment="{d.name}",le="{edge}"}} {ended * snapshot.t}'


def _watched(host: Host, start: float, seconds: float) -> Iterator[Snapshot]:
    engines = (EnginePlan(ENGINE, URL),) if host.engine else ()
    watched = replace(plan(), deployments=(DeploymentPlan(host.deployment, engines, host.gpus),))
    observer = Observer(watched)
    observer.unix_offset = start
    for snapshot in watch(observer, host.scenario, 0.0, seconds, power_samples=True):
        sources = [SourceView("simulated", up=True, age_seconds=0.4)]
        sources += [
            SourceView(gpu.identity.uuid, up=gpu.up, age_seconds=0.4, errors={"timeout": 1}, rejected={"power": 1})
            for gpu in snapshot.gpus
        ]
        sources += [
            SourceView(f"engine:{each.name}", up=bool(each.reading and each.reading.up), age_seconds=2.0)
            for each in snapshot.engines
        ]
        yield replace(snapshot, sources=tuple(sources))


def _labelled(line: str, host: Host, number: int) -> str:
    """Add what a scrape adds, and keep the boards of different hosts apart."""
    name, brace, rest = re.match(r"([\w:]+)(\{?)(.*)", line).groups()  # type: ignore[union-attr]
    labels = f'{name}{{instance="{host.name}",job="wattline"' + ("," if brace else "}")
    return labels + re.sub(r'"GPU-.', f'"GPU-{number}', rest)
