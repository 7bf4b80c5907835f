"""States and causes as people read them, and the runbook that goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from wattline.analysis.causes import Cause
    from wattline.analysis.snapshot import DeploymentView

ENGINE_DOWN = "InferenceEngineDown"
GPU_LOST = "GpuLost"


def cause_runbook(cause: Cause, state: State) -> str | None:
    """The runbook that explains a suspected cause; ``None`` when it is nothing to act on."""
    if cause.record.weight == "normal":
        return None
    return cause.record.runbook or state.record.runbook or State.LOW_POWER.record.runbook


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
