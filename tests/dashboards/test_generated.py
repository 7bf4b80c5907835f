"""The committed JSON is what any Grafana can be given as it is."""

from __future__ import annotations

import json
import re

import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.build import DASHBOARDS, HERE, Encoder
from tests.dashboards.boards import BOARDS, NAMES

every_board = pytest.mark.parametrize("name", NAMES)


def test_there_are_three_dashboards() -> None:
    assert sorted(DASHBOARDS) == sorted(NAMES) == sorted(path.stem for path in HERE.glob("*.json"))


@every_board
def test_nothing_is_lost_on_the_way_through_the_schema(name: str) -> None:
    again = json.loads(Encoder(sort_keys=True).encode(Dashboard.from_json(BOARDS[name])))
    assert again == BOARDS[name]


@every_board
def test_it_can_be_provisioned_without_filling_anything_in(name: str) -> None:
    text = json.dumps(BOARDS[name])
    assert "__inputs" not in text
    assert not re.search(r"\$\{DS_", text)
    assert "id" not in BOARDS[name]


@every_board
def test_no_data_source_is_named_but_by_the_variable(name: str) -> None:
    named = re.findall(r'"datasource": (\{.*?"\}|"[^"]*")', json.dumps(BOARDS[name]))
    assert len(named) > 50
    assert set(named) == {'{"type": "prometheus", "uid": "${datasource}"}'}


@every_board
def test_variables_carry_no_value_of_another_installation(name: str) -> None:
    """Of several data sources the default one is opened: it has a name of its own in each Grafana."""
    for variable in BOARDS[name]["templating"]["list"]:
        default = {"text": "default", "value": "default"} if variable["type"] == "datasource" else None
        assert variable.get("current") == default, variable["name"]
        assert not variable.get("options"), variable["name"]


def test_the_uids_that_links_rely_on_never_change() -> None:
    assert {name: BOARDS[name]["uid"] for name in NAMES} == {
        "fleet": "wattline-fleet",
        "deployment": "wattline-deployment",
        "gpu": "wattline-gpu",
    }
