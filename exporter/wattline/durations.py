"""Durations as people write them: ``60s``, ``500ms``, ``1h30m``, or plain seconds."""

from __future__ import annotations

import re

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|[dhms])"
_DURATION = re.compile(f"(?:{_PART})+", re.ASCII)
EXPECTED = "a duration such as 60s, 500ms or 1h30m, or seconds as a number"


def parse_duration(value: object) -> float:
    """Seconds.

    Args:
        value: text with units, greatest unit first, each at most once; or a number of seconds.

    Raises:
        ValueError: it is neither, or below zero.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    if isinstance(value, str) and _DURATION.fullmatch(value):
        parts = re.findall(_PART, value, re.ASCII)
        order = [list(_UNITS).index(unit) for _, unit in parts]
        if order == sorted(set(order)):
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    raise ValueError(f"expected {EXPECTED}")


def format_duration(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads as the same milliseconds: ``1h30m``, ``500ms``, ``0s``."""
    rest = round(seconds * 1000)
    text = ""
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, round(size * 1000))
        if count:
            text += f"{count}{unit}"
    return text or "0s"
