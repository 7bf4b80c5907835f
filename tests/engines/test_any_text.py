"""Whatever a server sends: a reading comes of it, and no number in it is one that cannot be."""

from __future__ import annotations

import math
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.texts import recorded, text
from wattline.engines.normalise import normalise
from wattline.engines.tables import KINDS
from wattline.readings import EngineReading

NAMES = sorted(name for kind in KINDS.values() for name in kind.wanted())
VALUES = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(["NaN", "+Inf", "-Inf", "nan", "1e999", "-0", "0x10", "1_000", "", "12 1395066363000", "1 # {} 1"]),
    st.text(max_size=8),
)
LABELS = st.dictionaries(
    st.one_of(
        st.sampled_from(
            ["dp_rank", "tp_rank", "pid", "priority", "mode", "engine_type", "engine", "endpoint", "model"]
        ),
        st.text(max_size=6),
    ),
    st.one_of(
        st.sampled_from(["", "0", "1", "decode", "prefill_compute", "/generate", "prefill"]), st.text(max_size=6)
    ),
    max_size=4,
)


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    name = draw(st.one_of(st.sampled_from(NAMES), st.text(max_size=12)))
    if draw(st.booleans()):
        name = name.replace("_", ":", 1)
    labels = draw(LABELS)
    inner = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inner}}} {draw(VALUES)}"


TEXTS = st.one_of(
    st.lists(sample_lines(), max_size=12).map("\n".join),
    st.text(),
    st.binary(),
)


def assert_sane(reading: EngineReading) -> None:
    numbers = [getattr(reading, f.name) for f in fields(reading)]
    for number in (*numbers, *reading.progress):
        if isinstance(number, float):
            assert math.isfinite(number)
            assert number >= 0
    assert reading.kv_cache_usage_ratio is None or reading.kv_cache_usage_ratio <= 1
    assert reading.up == (reading.error is None)
    if not reading.up:
        assert reading == EngineReading(reading.t, reading.engine, up=False, error=reading.error)
    assert {error.kind for error in reading.errors} <= {"bad_line", "implausible", "unknown_label"}


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_any_text_gives_a_reading(body: str | bytes) -> None:
    assert_sane(normalise(body, engine="e", t=1.0))


@given(TEXTS, st.sampled_from(list(KINDS)), st.one_of(st.none(), st.text()))
@settings(max_examples=200, deadline=None)
def test_any_text_of_a_configured_kind_gives_a_reading(body: str | bytes, kind: str, content_type: str | None) -> None:
    assert_sane(normalise(body, engine="e", t=1.0, kind=kind, content_type=content_type))


REAL = [recorded("0.4.6_busy_t0"), text("vllm_v0.prom"), text("dynamo.prom"), text("tgi.prom")]


@given(st.sampled_from(REAL), st.integers(0), st.integers(0, 40), st.binary(max_size=8))
@settings(max_examples=200, deadline=None)
def test_a_real_text_with_a_hole_or_a_foreign_piece_gives_a_reading(
    body: bytes, at: int, length: int, piece: bytes
) -> None:
    at %= len(body)
    assert_sane(normalise(body[:at] + piece + body[at + length :], engine="e", t=1.0))


@given(st.sampled_from(REAL), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_order_of_lines_does_not_matter(body: bytes, random: object) -> None:
    lines = body.splitlines(keepends=True)
    random.shuffle(lines)  # type: ignore[attr-defined]
    assert normalise(b"".join(lines), engine="e", t=1.0) == normalise(body, engine="e", t=1.0)
