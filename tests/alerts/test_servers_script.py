from __future__ import annotations

import re

import pytest

from tests.alerts.servers import ROOT, SUITES, output, program

SCRIPT = ROOT / "tools" / "servers.sh"


@pytest.mark.servers
@pytest.mark.parametrize("suite", SUITES)
def test_what_is_there_is_not_fetched_again(suite: str) -> None:
    assert "all there" in output(SCRIPT, suite)


@pytest.mark.servers
def test_the_two_pairs_are_of_different_majors() -> None:
    majors = [re.search(r"version (\d+)\.", output(program("promtool", suite), "--version")) for suite in SUITES]
    assert [found and found[1] for found in majors] == ["2", "3"]


def test_no_address_stands_in_the_script() -> None:
    assert "://" not in SCRIPT.read_text()
