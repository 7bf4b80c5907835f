"""The page that compares alerts is what its script writes; some of its lines are computed anew here."""

from __future__ import annotations

import re

import pytest

from tests.alerts.compare import (
    ALL_PHASES,
    PAGE,
    RECORDED,
    SOUND,
    USUAL,
    recorded_situations,
    simulated_situations,
    table,
)

pytestmark = pytest.mark.servers


def lines() -> list[list[str]]:
    """Cells of every situation on the page."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_simulated_situations_are_told_as_the_page_says() -> None:
    rows, _ = table(simulated_situations(("idle", "climb_1024", "collectives", "wedged")))
    assert not set(rows) - set(PAGE.read_text().splitlines()), "run python -m tests.alerts.compare"


def test_recorded_situations_are_told_as_the_page_says() -> None:
    situations = recorded_situations()
    rows, _ = table({name: situations[name] for name in ("idle_loaded", "c32", "hung", "queue_blocked")})
    assert not set(rows) - set(PAGE.read_text().splitlines()), "run python -m tests.alerts.compare"


def test_the_page_has_every_situation() -> None:
    assert [row[0].strip("`") for row in lines()] == [*ALL_PHASES, *RECORDED]


def test_the_summary_adds_up_what_the_tables_say() -> None:
    kinds = (*USUAL, "Wattline")
    faults = [row for row in lines() if row[2] == "**fault**"]
    sound = [row for row in lines() if row[2] == "sound"]
    assert {row[0].strip("`") for row in sound} == SOUND & {*ALL_PHASES, *RECORDED}
    for column, kind in enumerate(kinds, start=3):
        found = sum(row[column].startswith("found") for row in faults)
        false = sum(row[column] == "false alarm" for row in sound)
        assert re.search(rf"^\| {re.escape(kind)} \| {found} \| {false} \|$", PAGE.read_text(), re.MULTILINE), kind


def test_wattline_tells_nothing_in_a_sound_situation_and_pages_for_every_fault_that_stops_the_work() -> None:
    for row in lines():
        if row[2] == "sound":
            assert row[-2:] == ["silent", ""], row[0]
    pages = {row[0].strip("`"): row[-1] for row in lines()}
    for name in ("climb_64", "climb_256", "climb_512", "climb_1024"):
        assert "GpuIdleWhileBusy" in pages[name]
    for name in ("wedged", "hung"):
        assert "InferenceStalled" in pages[name]
    assert "GpuLost" in pages["gpu_lost"]
    assert "InferenceEngineDown" in pages["engine_down"]
