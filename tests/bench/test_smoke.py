"""The benchmarks run. What they measure is not looked at here: no test depends on how fast a machine is."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from bench import host, run, tables, verdicts
from bench.engines import Server
from bench.host import EIGHT_RANKS, Host
from wattline.analysis.snapshot import State
from wattline.engines.normalise import normalise

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", run.BENCHMARKS)
def test_a_benchmark_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([name, "--quick"]) == 0
    shown = capsys.readouterr().out
    assert "┃" in shown
    assert "nan" not in shown


def test_a_benchmark_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["scrapes"])
    assert "unknown benchmark scrapes: expected some of scrape, process" in capsys.readouterr().err


def test_a_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n<!-- begin a -->\nold\n<!-- end a -->\n\n<!-- begin b -->\n<!-- end b -->\n")
    tables.write("a", [tables.Table("T", ("x", "y"), [("1", "2")], "A note.")], "a machine", page)
    text = page.read_text()
    assert "old" not in text
    assert "| x | y |\n|---|---|\n| 1 | 2 |\n\nA note.\n" in text
    assert "Measured on: a machine." in text
    assert text.endswith("<!-- end a -->\n\n<!-- begin b -->\n<!-- end b -->\n")
    with pytest.raises(ValueError, match="expected the comments 'begin c'"):
        tables.write("c", [], "a machine", page)


@pytest.mark.parametrize("name", run.BENCHMARKS)
def test_the_page_has_a_place_for_each_benchmark(name: str) -> None:
    text = tables.PAGE.read_text()
    assert f"<!-- begin {name} -->" in text
    assert f"<!-- end {name} -->" in text


def test_the_drivers_share_is_that_of_the_calls_that_were_made() -> None:
    before = {("0", "nvmlDeviceGetTotalEnergyConsumption"): 4}
    after = {
        ("0", "nvmlDeviceGetTotalEnergyConsumption"): 6,
        ("1", "nvmlDeviceGetTotalEnergyConsumption"): 1,
        ("1", "nvmlDeviceGetPcieThroughput.0"): 2,
        ("1", "nvmlDeviceGetFanSpeed"): 9,
    }
    assert host.driver_seconds(before, after) == pytest.approx(3 * 3200e-6 + 2 * 800e-6)


def test_a_repeated_text_reads_like_a_server_that_makes_tokens() -> None:
    server = Server(gzip.decompress(EIGHT_RANKS.read_bytes()))
    before, after = (normalise(server.body(seconds), engine="e", t=seconds) for seconds in (1.0, 6.0))
    assert before.up
    assert after.progress != before.progress
    assert (after.generation_tokens or 0) > (before.generation_tokens or 0)


def test_the_situations_that_are_judged_know_their_right_verdict() -> None:
    found = list(verdicts.loaded())
    assert {s.right for s in found} == {State.IDLE, State.IDLE_WHILE_BUSY, State.WORKING, State.SATURATED}
    assert all(s.seconds for s in found)


def test_a_threshold_tells_only_after_it_has_held_for_the_window() -> None:
    from tests.analysis.build import Bench

    bench, thresholds = Bench(), verdicts.Thresholds(10.0)
    told = [thresholds.fired(s.t, s.gpus) for s in (bench.run(1, watts=87, work=0) for _ in range(15))]
    assert all(not names for names in told[:8])
    assert "power < 100 W" in told[-1]


def test_a_host_can_be_without_engines() -> None:
    with Host(1, 0, timed=False) as empty:
        assert empty.config.read_text() == "deployments: []\n"
