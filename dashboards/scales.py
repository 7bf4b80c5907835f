"""Colours of values by the thresholds that judge them: a fraction looks like the state it would mean under load."""

from __future__ import annotations

from dashboards.numbers import judged_by
from dashboards.palette import FAULT, STATE_COLOURS
from wattline.analysis.snapshot import State

T = judged_by()
Steps = tuple[tuple[float | None, str], ...]

OF_LIMIT_STEPS: Steps = (
    (None, STATE_COLOURS[State.IDLE]),
    (T.idle_tdp_fraction, STATE_COLOURS[State.LOW_POWER]),
    (T.low_tdp_fraction, STATE_COLOURS[State.WORKING]),
    (T.saturated_tdp_fraction, STATE_COLOURS[State.SATURATED]),
)
ACTIVE_STEPS: Steps = (
    (None, STATE_COLOURS[State.IDLE]),
    (T.idle_active_fraction, STATE_COLOURS[State.WORKING]),
)
SHARE_OF_LINK_STEPS: Steps = ((None, "transparent"), (T.pcie_share, FAULT))
