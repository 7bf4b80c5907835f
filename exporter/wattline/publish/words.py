"""States and causes as people read them, and the runbook that goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattline.analysis.snapshot import Cause, State

if TYPE_CHECKING:
    from wattline.analysis.snapshot import DeploymentView

RUNBOOKS = "https://github.com/wattline/wattline/blob/main/docs/runbooks"

STATE_TITLES: dict[State, str] = {state: state.value.replace("_", " ").capitalize() for state in State}
"""``Idle while busy``."""

CAUSE_TITLES: dict[Cause, str] = {
    Cause.NOT_FED: "Not fed",
    Cause.SPINNING: "Spinning",
    Cause.COLLECTIVES_OVER_PCIE: "Collectives over PCIe",
    Cause.PCIE_BANDWIDTH: "PCIe bandwidth",
    Cause.HOST_BOUND: "Host bound",
    Cause.BATCH_LIMITED: "Batch limited",
    Cause.PARTIAL_IDLE: "Partly idle",
    Cause.MEMORY_BOUND: "Memory bound",
    Cause.POWER_CAPPED: "Power capped",
    Cause.THROTTLED: "Throttled",
    Cause.LINK_DEGRADED: "Link degraded",
}

ENGINE_DOWN = "InferenceEngineDown"
GPU_LOST = "GpuLost"
LOW_POWER = "PowerFractionLow"

STATE_RUNBOOKS: dict[State, str] = {
    State.LOW_POWER: LOW_POWER,
    State.IDLE_WHILE_BUSY: "GpuIdleWhileBusy",
    State.STALLED: "InferenceStalled",
}
"""States that ask for somebody to act. ``unknown`` has one by what is missing."""

CAUSE_RUNBOOKS: dict[Cause, str] = {
    Cause.BATCH_LIMITED: "RequestsWaitWhileCacheFree",
    Cause.PARTIAL_IDLE: "GpuPartiallyIdle",
    Cause.POWER_CAPPED: "PowerLimitBelowDefault",
    Cause.THROTTLED: "GpuThrottled",
    Cause.LINK_DEGRADED: "PcieLinkDegraded",
}
"""Causes with a runbook of their own; the others are explained in that of the state they explain."""

NORMAL = frozenset({Cause.MEMORY_BOUND})
"""Said for completeness: nothing is to be done about it."""


def runbook(name: str) -> str:
    """Where the runbook of an alert is."""
    return f"{RUNBOOKS}/{name}.md"


def cause_runbook(cause: Cause, state: State) -> str | None:
    """Where to read on about a suspected cause; ``None`` when it is nothing to act on."""
    if cause in NORMAL:
        return None
    return runbook(CAUSE_RUNBOOKS.get(cause) or STATE_RUNBOOKS.get(state, LOW_POWER))


def percent(fraction: float) -> str:
    """0.145 as ``14.5 %``."""
    return f"{fraction * 100:.1f} %"


def summary(view: DeploymentView) -> str:
    """The verdict in one sentence: what is held, and what the GPUs draw. Names only what is known."""
    if view.state is State.UNKNOWN:
        return sentence(view.reason)
    power = None if view.tdp_fraction is None else f"GPUs draw {percent(view.tdp_fraction)} of their limit"
    if view.work is None:
        return sentence(power or view.reason)
    held = "no request is held" if view.work == 0 else f"{view.work:,.0f} requests are held"
    if view.work == 1:
        held = "1 request is held"
    if view.state is State.STALLED:
        held += ", no token comes"
    return sentence(f"{held}, {power}" if power else held)


def sentence(text: str) -> str:
    """The same text with a capital at its beginning."""
    return text[:1].upper() + text[1:]
