"""One colour for each state on every picture, told apart by everybody."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from tests.dashboards.boards import NAMES, panels
from wattline.analysis.snapshot import State
from wattline.publish.colours import STATE_COLOURS

# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency (2009), severity
# 1.0: matrices over linear RGB.
VISION = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
BARELY_TOLD_APART = 10.0
"""CIE76 distance: 2.3 is a just noticeable difference side by side."""


def linear(colour: str) -> list[float]:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    red, green, blue = rgb
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def seen(colour: str, vision: str) -> tuple[float, float, float]:
    rgb = linear(colour)
    return lab([min(1.0, max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True)))) for row in VISION[vision]])


@pytest.mark.parametrize("vision", VISION)
def test_states_are_told_apart_with_any_colour_vision(vision: str) -> None:
    for one, other in combinations(State, 2):
        a, b = seen(STATE_COLOURS[one], vision), seen(STATE_COLOURS[other], vision)
        distance = sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5
        assert distance > BARELY_TOLD_APART, f"{one} and {other}: {distance:.1f}"


def coloured(panel: dict[str, Any]) -> list[tuple[str, str]]:
    """Every (name, colour) that a panel gives to a state."""
    titles = {state.record.title for state in State}
    found = []
    defaults = panel["fieldConfig"]["defaults"]
    mappings = list(defaults.get("mappings") or ())
    for override in panel["fieldConfig"]["overrides"]:
        properties = {prop["id"]: prop["value"] for prop in override["properties"]}
        if override["matcher"]["options"] in titles:
            found.append((override["matcher"]["options"], properties["color"]["fixedColor"]))
        mappings += properties.get("mappings", ())
    for mapping in (each for each in mappings if each["type"] == "value"):
        found += [
            (result["text"], result.get("color", ""))
            for result in mapping["options"].values()
            if result["text"] in titles
        ]
    return found


def test_a_state_has_one_colour_on_all_dashboards() -> None:
    right = {state.record.title: colour for state, colour in STATE_COLOURS.items()}
    found = [pair for name in NAMES for panel in panels(name) for pair in coloured(panel)]
    assert len(found) >= 5 * len(State), "a table, a timeline, a number, stacks and bars"
    assert {name: {colour for shown, colour in found if shown == name} for name in right} == {
        name: {colour} for name, colour in right.items()
    }


def test_states_come_in_one_order_where_they_are_stacked() -> None:
    titles = [state.record.title for state in State]
    stacks = [
        legends
        for name in NAMES
        for panel in panels(name)
        if set(titles) <= set(legends := [target.get("legendFormat", "") for target in panel["targets"]])
    ]
    assert len(stacks) == 3
    for legends in stacks:
        assert legends[: len(titles)] == titles
