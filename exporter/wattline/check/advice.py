"""What to look at next: what the records of causes and states say, and what an unknown state lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, State
from wattline.analysis.steps import Step
from wattline.publish.words import ENGINE_DOWN, GPU_LOST, cause_runbook
from wattline.recording.layout import bare_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOST = (
    Step("Which GPUs the driver still has", "nvidia-smi -L"),
    Step("What the driver said", "dmesg -T | grep -iE 'xid|nvrm'"),
)
NO_GPU = (Step("Whether the driver works here (in a container: whether it was given the GPUs)", "nvidia-smi -L"),)
POWER = Step("Whether the driver tells power and limit of every GPU", "nvidia-smi -q -d POWER")
LONGER = Step("Watch for longer: what the server tells may lag by half a minute", "wattline check --for 2m")


def next_steps(
    view: DeploymentView, gpus: Sequence[GpuView], engines: Sequence[EngineView], *, some_gpu: bool
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """What to look at for a deployment, and the runbooks to read, the most telling first and none twice.

    Args:
        view: the verdict.
        gpus: its GPUs.
        engines: its engines.
        some_gpu: whether any GPU of this host is known; without one, none is lost.
    """
    lost = some_gpu and (bool(view.unresolved_gpus) or any(not g.up for g in gpus))
    steps = dict.fromkeys(_steps(view, gpus, engines, lost=lost))
    return tuple(steps), tuple(dict.fromkeys(_runbooks(view, engines, lost=lost)))


def _steps(
    view: DeploymentView, gpus: Sequence[GpuView], engines: Sequence[EngineView], *, lost: bool
) -> Iterator[Step]:
    if any(s.cause is Cause.PARTIAL_IDLE for s in view.suspicions) and (busy := _used(gpus)):
        yield Step(
            "If the server uses only some of the GPUs, name them (gpus, in the configuration)",
            f"wattline check --gpus {','.join(busy)}",
        )
    explained = [step for suspicion in view.suspicions for step in suspicion.cause.record.steps]
    yield from explained or view.state.record.steps
    if view.state is not State.UNKNOWN:
        return
    if lost:
        yield from LOST
    elif not gpus:
        yield from NO_GPU
    down = [e for e in engines if e.reading is not None and not e.reading.up]
    for engine in down:
        url = bare_url(engine.url)
        yield Step(
            f"What {engine.name} answers", f"curl -sS -o /dev/null -w '%{{http_code}}\\n' {url}" if url else None
        )
    if not engines:
        yield Step("Name the server", "wattline check --engine http://HOST:PORT/metrics")
    elif gpus and not down and not lost:
        powers = [g.sample.power_watts if g.sample else None for g in gpus]
        yield POWER if None in [*powers, *(g.limit_watts for g in gpus)] else LONGER


def _used(gpus: Sequence[GpuView]) -> list[str]:
    """The indices of the GPUs that some process holds, where others are held by none."""
    told = [g for g in gpus if g.condition is not None and g.condition.processes is not None]
    used = [str(g.identity.index) for g in told if g.condition and g.condition.processes]
    return used if len(used) < len(told) == len(gpus) else []


def _runbooks(view: DeploymentView, engines: Sequence[EngineView], *, lost: bool) -> Iterator[str]:
    for suspicion in view.suspicions:
        if (link := cause_runbook(suspicion.cause, view.state)) is not None:
            yield link
    if view.state.record.runbook:
        yield view.state.record.runbook
    if view.state is State.UNKNOWN and lost:
        yield GPU_LOST
    if view.state is State.UNKNOWN and any(e.reading is not None and not e.reading.up for e in engines):
        yield ENGINE_DOWN
