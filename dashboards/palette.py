"""Colours that only the dashboards need; those of states, power and tokens are the exporter's own."""

from __future__ import annotations

from wattline.analysis.snapshot import State
from wattline.publish.colours import POWER, STATE_COLOURS, TOKENS

POWER_INSTANT = "#F5C96B"
TOKENS_PROMPT = "#C3BAF2"
REQUESTS_RUNNING = "#44AA99"
REQUESTS_QUEUED = "#AA4499"
LIMIT = "#B0413E"
LIMIT_OTHER = "#A8A8A8"
NEUTRAL = "#8E8E8E"
CALM = "#7C93A6"
"""Of a share of the limit that is neither good nor bad by itself."""
FLOOR = STATE_COLOURS[State.IDLE]
FAULT = STATE_COLOURS[State.IDLE_WHILE_BUSY]
FINE = STATE_COLOURS[State.WORKING]

__all__ = [
    "CALM",
    "FAULT",
    "FINE",
    "FLOOR",
    "LIMIT",
    "LIMIT_OTHER",
    "NEUTRAL",
    "POWER",
    "POWER_INSTANT",
    "REQUESTS_QUEUED",
    "REQUESTS_RUNNING",
    "STATE_COLOURS",
    "TOKENS",
    "TOKENS_PROMPT",
]
