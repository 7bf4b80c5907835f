"""What the document on scaling says is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from bench.fleet import STEPS, Scrape, shorter, texts
from tests.alerts.servers import ALERTS, program

DOCUMENT = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()


def told(row: str) -> int:
    """The number in a row of a table."""
    found = re.search(rf"^\| {row} \| \**([\d,]+)\** \|$", DOCUMENT, re.MULTILINE)
    assert found is not None, row
    return int(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def scrape() -> Scrape:
    return Scrape.of(list(texts(STEPS))[-1])


def test_the_series_of_a_node_are_as_many_as_it_says(scrape: Scrape) -> None:
    assert scrape.per_gpu == told("each GPU")
    assert scrape.per_deployment == told("each deployment")
    assert scrape.per_engine == told("each engine")
    assert scrape.per_source == told("each source: the driver, every GPU, every engine, discovery")
    assert scrape.of_the_exporter == told("the exporter itself")
    assert scrape.series == told(r"\*\*the node: 8 GPUs, 1 engine, 10 sources\*\*")


def test_a_scrape_is_about_as_large_as_it_says(scrape: Scrape) -> None:
    assert scrape.bytes == pytest.approx(told("plain"), rel=0.03)
    assert scrape.bytes_gzip == pytest.approx(told("compressed, as Prometheus asks for it"), rel=0.05)


def test_the_recording_rules_make_no_more_series_than_it_says() -> None:
    rules = yaml.safe_load((ALERTS / "recording.rules.yml").read_text())["groups"]
    names = [rule["record"] for group in rules for rule in group["rules"]]
    by_state = [name for name in names if name.startswith("deployment_state:")]
    by_host = [name for name in names if name.startswith("deployment_instance:")]
    once = len(names) - len(by_host) + 6 * len(by_state)
    assert f"add up to {once} series for a deployment" in DOCUMENT
    assert f"and {len(by_host)} for\neach of its hosts that is at work" in DOCUMENT


@pytest.mark.servers
@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_the_agents_configuration_is_right(tmp_path: Path, suite: str) -> None:
    (text,) = re.findall(r"```yaml\n# agent\.yml\n(.*?)```", DOCUMENT, re.DOTALL)
    (tmp_path / "agent.yml").write_text(text)
    command = [program("promtool", suite), "check", "config", "--agent", "--syntax-only", str(tmp_path / "agent.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_faster_world_has_shorter_windows_and_the_same_names() -> None:
    """Durations shrink; numbers that only look like one do not."""
    assert shorter("rate(a:b:rate5m[5m]) > 0.5 and x{le='1'}[1h]", 15) == (
        "rate(a:b:rate5m[20000ms]) > 0.5 and x{le='1'}[240000ms]"
    )
