from __future__ import annotations

import itertools

import pytest

from wattline.analysis.snapshot import State
from wattline.publish.colours import STATE_COLOURS, contrast, text_on
from wattline.publish.page import colours


def test_every_state_has_a_colour_of_its_own() -> None:
    assert set(STATE_COLOURS) == set(State)
    assert len(set(STATE_COLOURS.values())) == len(State)


@pytest.mark.parametrize("state", State)
def test_text_on_a_state_is_readable(state: State) -> None:
    """WCAG 2.2 asks for 4.5 (level AA)."""
    assert contrast(text_on(STATE_COLOURS[state]), STATE_COLOURS[state]) >= 4.5


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21.0)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)
    assert text_on("#F0E442") == "#000000"
    assert text_on("#0072B2") == "#FFFFFF"


DEFICIENCIES = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
"""How linear RGB looks with a deficiency of full severity: Machado, Oliveira and Fernandes, "A Physiologically-based
Model for Simulation of Color Vision Deficiency" (2009)."""


def seen(colour: str, deficiency: str) -> tuple[float, ...]:
    """CIELAB of a colour as somebody with the deficiency sees it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    if deficiency != "none":
        rows = DEFICIENCIES[deficiency]
        linear = [min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in rows]
    r, g, b = linear
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("deficiency", ["none", *DEFICIENCIES])
def test_states_stay_apart_for_every_kind_of_eyes(deficiency: str) -> None:
    """A distance of 10 in CIELAB is a plain difference; 2.3 is just noticeable."""
    for one, other in itertools.combinations(State, 2):
        pair = zip(seen(STATE_COLOURS[one], deficiency), seen(STATE_COLOURS[other], deficiency), strict=True)
        distance = sum((a - b) ** 2 for a, b in pair) ** 0.5
        assert distance > 10, f"{one} and {other}: {distance:.1f}"


def test_the_page_takes_its_colours_from_here() -> None:
    sheet = colours()
    for state, colour in STATE_COLOURS.items():
        assert f'[data-state="{state}"] {{ --state: {colour}; --on-state: {text_on(colour)}; }}' in sheet
