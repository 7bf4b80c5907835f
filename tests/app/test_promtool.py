"""Prometheus' own linter has nothing to say about the metrics."""

from __future__ import annotations

import subprocess

import pytest

from tests.alerts.servers import SUITES, program
from tests.app.golden import metrics


@pytest.mark.servers
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("scenario", ["healthy", "wedged"])
def test_promtool_finds_nothing(suite: str, scenario: str) -> None:
    text = metrics(scenario)
    done = subprocess.run(
        [program("promtool", suite), "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.servers
def test_promtool_would_find_something() -> None:
    text = "# TYPE wattline_watts_count gauge\nwattline_watts_count 1\n"
    done = subprocess.run(
        [program("promtool", SUITES[0]), "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert done.returncode != 0
