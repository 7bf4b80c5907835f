from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("60s", 60.0),
        ("500ms", 0.5),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1d", 86400.0),
        ("1.5h", 5400.0),
        ("1m500ms", 60.5),
        ("0s", 0.0),
        (30, 30.0),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_read_as_seconds(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(
    "value",
    ["", "s", "60", "60 s", "-1s", "1s1m", "1m1m", "1m 30s", "1,5s", "60S", "1e3s", ".5s", "\u0663s", "10m\n"],
)
def test_other_text_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 60s, 500ms or 1h30m"):
        parse_duration(value)


@pytest.mark.parametrize("value", [-1, True, None, [], float("nan"), float("inf")], ids=repr)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 60s, 500ms or 1h30m"):
        parse_duration(value)


@given(st.integers(min_value=0, max_value=10**9))
def test_what_is_written_reads_back_the_same(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (90, "1m30s"), (0.2, "200ms"), (3600, "1h"), (86401, "1d1s")])
def test_a_duration_is_written_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
