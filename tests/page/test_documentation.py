from __future__ import annotations

import re
from pathlib import Path

from tools import api_reference
from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import State
from wattline.publish.status import schema
from wattline.publish.words import ENGINE_DOWN, GPU_LOST

DOCS = Path(__file__).parents[2] / "docs"
PAGE = Path(__file__).parents[2] / "exporter" / "wattline" / "publish" / "static" / "page.js"


def test_the_reference_names_every_field() -> None:
    text = api_reference.reference()
    for part in schema()["$defs"].values():
        for name in part.get("properties", {}):
            assert f"| `{name}` |" in text


def test_nothing_in_the_schema_may_be_null() -> None:
    assert not re.search(r"'null'|None", str(schema()))


def test_the_page_is_documented_with_every_state() -> None:
    rows = re.findall(r"^\| ([A-Z][a-z ]+) \|", (DOCS / "page.md").read_text(), re.MULTILINE)
    assert rows == [state.record.title for state in State]


def test_every_runbook_that_is_linked_is_there() -> None:
    names = {ENGINE_DOWN, GPU_LOST, *(s.record.runbook for s in State), *(c.record.runbook for c in Cause)}
    missing = {name for name in names - {""} if not (DOCS / "runbooks" / f"{name}.md").is_file()}
    assert not missing


def test_the_page_asks_for_fields_that_are_told() -> None:
    """A field that is renamed must not leave a dash on the page for ever."""
    told = {name for part in schema()["$defs"].values() for name in part.get("properties", {})}
    asked = set(re.findall(r"\.([a-z]+(?:_[a-z]+)+)\b", PAGE.read_text()))
    assert len(asked) > 40
    assert asked <= told
    # The page makes the titles of past states itself, and draws an icon for each.
    assert all(f"\n  {state.value}: [{{ d: " in PAGE.read_text() for state in State)
    assert all(state.record.title == state.value.replace("_", " ").capitalize() for state in State)
