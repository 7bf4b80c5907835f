"""Everything fits on a laptop's screen without scrolling sideways."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from tests.dashboards.boards import BOARDS, NAMES, panels

every_board = pytest.mark.parametrize("name", NAMES)

NARROWEST = 1440 - 280
"""Pixels for panels on a 1440 px screen with Grafana's menu docked open, its margins taken off."""
COLUMNS = 24
PADDING = 24
"""Borders and padding of a table's panel, and the bar of a table that scrolls downwards."""


def places(name: str) -> list[dict[str, int]]:
    listed = [panel for panel in BOARDS[name]["panels"] if not (panel["type"] == "row" and panel.get("collapsed"))]
    return [panel["gridPos"] for panel in listed]


@every_board
def test_panels_stay_on_the_grid(name: str) -> None:
    for panel in panels(name):
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]


@every_board
def test_panels_do_not_overlap(name: str) -> None:
    for one, other in combinations(places(name), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@every_board
def test_rows_of_panels_leave_no_holes(name: str) -> None:
    folded = [row["panels"] for row in BOARDS[name]["panels"] if row.get("collapsed")]
    for together in ([panel for panel in BOARDS[name]["panels"] if not panel.get("collapsed")], *folded):
        lines: dict[tuple[int, int], int] = {}
        for panel in together:
            place = panel["gridPos"]
            lines[place["y"], place["h"]] = lines.get((place["y"], place["h"]), 0) + place["w"]
        assert set(lines.values()) == {COLUMNS}


def column_widths(panel: dict[str, Any]) -> dict[str, int]:
    """What each visible column of a table takes at least; Grafana's own least width is 150."""
    (organize,) = (each["options"] for each in panel["transformations"] if each["id"] == "organize")
    how = {
        override["matcher"]["options"]: {prop["id"]: prop["value"] for prop in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
    }
    shown = {}
    for heading in organize["renameByName"].values():
        known = how.get(heading, {})
        if not known.get("custom.hidden"):
            shown[heading] = known.get("custom.width") or known.get("custom.minWidth") or 150
    return shown


@every_board
def test_tables_need_no_scrolling_sideways(name: str) -> None:
    for panel in panels(name):
        if panel["type"] == "table":
            room = NARROWEST * panel["gridPos"]["w"] / COLUMNS - PADDING
            widths = column_widths(panel)
            assert sum(widths.values()) <= room, (panel["title"], room, widths)
            assert any("custom.width" not in str(how) for how in widths)


@every_board
def test_headings_of_columns_fit_their_columns(name: str) -> None:
    for panel in panels(name):
        if panel["type"] == "table":
            for heading, width in column_widths(panel).items():
                # 14 px semi-bold letters are 7.6 px wide on average; the cell has 12 px of padding.
                assert 7.6 * len(heading) + 12 <= width, (panel["title"], heading)


@every_board
def test_titles_fit_their_panels(name: str) -> None:
    for panel in panels(name):
        room = NARROWEST * panel["gridPos"]["w"] / COLUMNS - 8
        # Letters as in a table's heading; 16 px of padding, and the mark that opens the description.
        assert 7.6 * len(panel["title"]) + 16 + 20 <= room, panel["title"]


@every_board
def test_the_story_of_the_deployment_stands_on_its_first_screen(name: str) -> None:
    if name != "deployment":
        return
    rows_on_screen = 20  # 800 px below the toolbar, 38 px a row.
    first = [
        panel["title"]
        for panel in BOARDS[name]["panels"]
        if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= rows_on_screen
    ]
    assert first == [
        "State now",
        "For",
        "What is coming?",
        "Of the limit",
        "Active power",
        "Tokens/watt",
        "Alerts firing",
        "What to do next?",
        "Which alerts fire?",
        "Which state when?",
        "Does the power follow the throughput?",
        "How many requests does it hold?",
    ]
