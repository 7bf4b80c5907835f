"""One colour for each state and for each kind of reading: the page and the dashboards take theirs from here.

A colour never stands alone: the state's name is always beside it.
"""

from __future__ import annotations

from wattline.analysis.snapshot import State

STATE_COLOURS: dict[State, str] = {state: state.record.colour for state in State}

POWER = "#E69F00"
TOKENS = "#8F7EE6"

DARK_TEXT = "#000000"
LIGHT_TEXT = "#FFFFFF"


def luminance(colour: str) -> float:
    """Relative luminance of an ``#RRGGBB`` colour, from 0 (black) to 1 (white), as WCAG 2.2 defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)  # noqa: PLR2004
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, from 1 to 21, as WCAG 2.2 defines it."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def text_on(colour: str) -> str:
    """Black or white, whichever reads better on ``colour``."""
    return max((DARK_TEXT, LIGHT_TEXT), key=lambda text: contrast(text, colour))


def terminal_style(state: State) -> str:
    """How the name of a state looks on a terminal, in the words of the ``rich`` library."""
    colour = STATE_COLOURS[state]
    return f"bold {text_on(colour)} on {colour}"
