"""The metrics of the simulated rig in its healthy phase, as a scrape would see them.

``python -m tests.app.golden`` writes the golden file anew: read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import SourceView
from wattline.engines.normalise import normalise
from wattline.publish.collector import SnapshotCollector
from wattline.readings import EngineReading
from wattline.simulation.rig import Rig
from wattline.simulation.scenario import timeline
from wattline.simulation.simulate import EngineText, simulate

GOLDEN = Path(__file__).parent / "golden.prom"
SECONDS = 150


def metrics(scenario: str = "healthy") -> str:
    """The text of a scenario at its end; the same every time."""
    observer = Observer(
        Plan(deployments=(DeploymentPlan("glm5", (EnginePlan("head", "http://127.0.0.1:30000/metrics"),)),))
    )
    for gpu in Rig(timeline(scenario), 1).gpus:
        observer.observe(gpu.identity())
    t = 0.0
    for item in simulate(SECONDS, 1, scenario):
        if item.t > t:
            observer.judge(t)
            t = item.t
        if not isinstance(item, EngineText):
            observer.observe(item)
        elif item.text is None:
            observer.observe(EngineReading(t=item.t, engine="head", up=False, error="connection_refused"))
        else:
            observer.observe(normalise(item.text, engine="head", t=item.t))
    sources = (SourceView("simulated", up=True, age_seconds=0.0), SourceView("engine:head", up=True, age_seconds=0.0))
    registry = CollectorRegistry()
    collector = SnapshotCollector()
    collector.snapshot = observer.judge(float(SECONDS), sources)
    registry.register(collector)
    return generate_latest(registry).decode()


if __name__ == "__main__":
    GOLDEN.write_text(metrics())
