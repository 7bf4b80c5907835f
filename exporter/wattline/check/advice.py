"""What to look at next: a table by cause and by state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from wattline.analysis.snapshot import Cause, DeploymentView, EngineView, GpuView, State
from wattline.publish.status import says
from wattline.publish.words import ENGINE_DOWN, GPU_LOST, STATE_RUNBOOKS, cause_runbook, runbook
from wattline.recording.layout import bare_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Step(Struct, frozen=True, omit_defaults=True):
    """One thing to look at."""

    what: str
    command: Annotated[str | None, says("To run in a shell. PID stands for a process of the inference server.")] = None


PROCESSES = Step(
    "Which processes are on the GPUs",
    "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
)
STACKS = Step("What the server's scheduler waits for", "py-spy dump --pid PID")
FLAGS = Step("The flags that the server was started with", "ps -o args= -p PID")

CAUSE_STEPS: dict[Cause, tuple[Step, ...]] = {
    Cause.NOT_FED: (PROCESSES, STACKS),
    Cause.SPINNING: (PROCESSES, STACKS),
    Cause.COLLECTIVES_OVER_PCIE: (
        Step("Which GPUs can read each other's memory (OK means that they can)", "nvidia-smi topo -p2p r"),
        Step("How the GPUs are connected", "nvidia-smi topo -m"),
    ),
    Cause.PCIE_BANDWIDTH: (
        Step("Traffic of every link, second by second", "nvidia-smi dmon -s t -c 10"),
        Step("Whether weights or cache are kept in host memory: an offload flag", FLAGS.command),
    ),
    Cause.HOST_BOUND: (
        Step("Whether a thread of the server fills a core", "top -b -n 1 -H -p PID"),
        Step("Whether CUDA graphs are off, or captured for smaller batches only", FLAGS.command),
    ),
    Cause.BATCH_LIMITED: (Step("Whether a flag limits the requests that run at once", FLAGS.command),),
    Cause.PARTIAL_IDLE: (Step("What each process does on each GPU", "nvidia-smi pmon -c 3 -s um"), STACKS),
    Cause.THROTTLED: (Step("What slows the clocks, and how hot it is", "nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),),
    Cause.LINK_DEGRADED: (
        Step(
            "What each link runs at, and what it could",
            "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,"
            "pcie.link.width.current,pcie.link.width.max --format=csv",
        ),
    ),
    Cause.POWER_CAPPED: (Step("Who set the limit: all limits of each GPU", "nvidia-smi -q -d POWER"),),
    Cause.MEMORY_BOUND: (),
}

STATE_STEPS: dict[State, tuple[Step, ...]] = {
    State.STALLED: (STACKS, PROCESSES),
    State.IDLE_WHILE_BUSY: (PROCESSES, STACKS),
    State.LOW_POWER: (Step("Whether more requests at once change anything", "wattline check --watch"),),
}
"""For a state that asks for somebody to act, where no cause says where to look."""

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
    explained = [step for suspicion in view.suspicions for step in CAUSE_STEPS[suspicion.cause]]
    yield from explained or STATE_STEPS.get(view.state, ())
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
    if view.state in STATE_RUNBOOKS:
        yield runbook(STATE_RUNBOOKS[view.state])
    if view.state is State.UNKNOWN and lost:
        yield runbook(GPU_LOST)
    if view.state is State.UNKNOWN and any(e.reading is not None and not e.reading.up for e in engines):
        yield runbook(ENGINE_DOWN)
