"""What an exporter beside the simulated rig reads, as readings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.engines.normalise import normalise
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuSample
from wattline.simulation.rig import Rig
from wattline.simulation.scenario import timeline
from wattline.simulation.simulate import EngineText, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.analysis.observer import Observer
    from wattline.analysis.snapshot import Snapshot
    from wattline.readings import GpuIdentity, Reading

ENGINE = "127.0.0.1:30000"
URL = f"http://{ENGINE}/metrics"
DEPLOYMENT = "glm5"


def plan(window: float = 60.0) -> Plan:
    """One deployment of one engine and all GPUs. No grace: what starts in a simulation is meant."""
    return Plan(deployments=(DeploymentPlan(DEPLOYMENT, (EnginePlan(ENGINE, URL),)),), window=window, grace=0.0)


def identities(scenario: str, at: float = 0.0) -> Iterator[GpuIdentity]:
    """The GPUs that answer at a moment."""
    line = timeline(scenario)
    lost = line.at(at).phase.lost_gpus
    yield from (gpu.identity() for gpu in Rig(line, seed=1).gpus if gpu.identity().index not in lost)


def readings(
    scenario: str, start: float, end: float, *, power_samples: bool = False
) -> Iterator[tuple[float, Reading]]:
    """Every reading of a scenario with its moment, from ``start`` to ``end``, in the order of time."""
    for reading in simulate(end, scenario=scenario):
        if reading.t < start:
            continue
        match reading:
            case EngineText(t=t, text=None):
                yield t, EngineReading(t, ENGINE, up=False, error="connection_refused")
            case EngineText(t=t, text=str(text)):
                yield t, normalise(text, engine=ENGINE, t=t)
            case GpuSample(t=t) if not power_samples:
                yield t, replace(reading, power_samples_watts=())
            case GpuSample(t=t):
                # As a recording keeps them: in whole watts.
                whole = tuple(float(round(watts)) for watts in reading.power_samples_watts)
                yield t, replace(reading, power_samples_watts=whole)
            case GpuActivity(t=t) | GpuCondition(t=t):
                yield t, reading


def watch(
    observer: Observer, scenario: str, start: float, end: float, *, power_samples: bool = False
) -> Iterator[Snapshot]:
    """Feed an observer with a scenario, and judge every second as the exporter does."""
    for identity in identities(scenario, start):
        observer.observe(identity)
    due = start
    for t, reading in readings(scenario, start, end, power_samples=power_samples):
        while t > due:
            yield observer.judge(due)
            due += 1.0
        observer.observe(reading)
    yield observer.judge(due)
