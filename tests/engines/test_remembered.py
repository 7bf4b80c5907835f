"""Names and labels are remembered from poll to poll: what is read must be what the parser alone reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from prometheus_client.parser import text_string_to_metric_families

from tests.engines.test_any_text import sample_lines
from tests.engines.texts import recorded
from wattline.engines import exposition
from wattline.engines.exposition import read

NAMES = frozenset({"sglang_num_running_reqs", "sglang_token_usage"})


def by_the_parser(line: str) -> float | None:
    try:
        (family,) = text_string_to_metric_families(f"{line}\n")
        return float(family.samples[0].value)
    except (ValueError, IndexError, OverflowError):
        return None


@pytest.mark.parametrize(
    "value",
    ["1", "-1", "0.5", "1e3", "1.5E-3", "NaN", "+Inf", "1_000", "0x10", "1.", ".5", "", "1 1395066363000", "1 # {} 7"],
)
@pytest.mark.parametrize("labels", ["", '{a="1"}', '{a="}"}', '{a="\\""}', '{a="1",a="2"}', '{a="1}'])
def test_a_second_poll_reads_what_the_parser_reads(labels: str, value: str) -> None:
    line = f"sglang:num_running_reqs{labels} {value}"
    read(f"sglang:num_running_reqs{labels} 3\n", NAMES, ("sglang_",))
    series = read(f"{line}\n", NAMES, ("sglang_",)).series.get("sglang_num_running_reqs", ())
    expected = by_the_parser(line)
    assert [s.value for s in series] == ([expected] if expected is not None and math.isfinite(expected) else [])


@pytest.mark.parametrize("value", ["7", "1_000", "0x10", ""])
def test_a_value_is_never_that_of_an_exemplar(value: str) -> None:
    line = f'sglang:num_running_reqs{{a="1"}} 5 # {{b="1"}} {value}\n'
    (series,) = read(line, NAMES, ("sglang_",)).series["sglang_num_running_reqs"]
    assert series.value == 5.0


@given(sample_lines())
def test_a_line_that_needs_no_parser_reads_as_with_it(line: str) -> None:
    match = exposition._PLAIN.fullmatch(line)
    if match and exposition._identity(match[1]):
        assert float(match[2]) == by_the_parser(line)


def test_every_series_of_a_recorded_text_is_remembered() -> None:
    """Else each poll would cost as much as the first."""
    text = recorded("0.5.23_dp8_t0")
    wanted = frozenset({"sglang_num_running_reqs", "sglang_realtime_tokens_total"})
    read(text, wanted, ("sglang_",))
    misses = exposition._identity.cache_info().misses
    hits = exposition._identity.cache_info().hits
    series = read(text, wanted, ("sglang_",)).series
    assert exposition._identity.cache_info().misses == misses
    assert exposition._identity.cache_info().hits - hits == sum(map(len, series.values())) > 8


def test_what_is_remembered_is_bounded() -> None:
    for number in range(exposition.REMEMBERED + 100):
        exposition._sample(f'x{{a="{number}"}} 1')
    assert exposition._identity.cache_info().currsize == exposition.REMEMBERED
    long = f'x{{a="{"y" * exposition.MAX_REMEMBERED_CHARS}"}}'
    hits = exposition._identity.cache_info().hits
    exposition._sample(f"{long} 1")
    assert exposition._sample(f"{long} 2") is not None
    assert exposition._identity.cache_info().hits == hits
