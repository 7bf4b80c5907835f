"""A tolerant and bounded reader of metrics texts: Prometheus text 0.0.4 and OpenMetrics alike.

Engines send far more than is needed (300 KB a poll is usual) and not always valid text. So lines are chosen by the
name of their sample before anything is parsed, comments are not looked at, and what remains goes through
prometheus_client's parser, line by line when a line is bad. Because ``# TYPE`` lines are ignored, a counter reads the
same whether its family is declared with or without ``_total``, and a missing ``# EOF`` does not matter.

A name may be spelled with a colon or with an underscore after its prefix (``sglang:num_running_reqs``,
``sglang_num_running_reqs``): both are the same metric here, and where a text has both, only the colon's is taken.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_LINE_BYTES = 16 * 1024
"""A longer line is skipped: the lines that are wanted have short labels."""
MAX_WANTED_BYTES = 2 * 1024 * 1024
"""More than this in wanted lines is no engine (64 ranks make 0.3 MiB), and would take seconds to parse."""

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE = re.compile(rb"\s*[a-zA-Z_:][\w:]*\s*(?:\{.*\})?\s+[-+]?(?:\d|\.\d|nan|inf)", re.IGNORECASE)
_BEFORE_EXEMPLAR = re.compile(r'([^\s{]+(?:\{(?:[^"}]|"(?:\\.|[^"\\])*")*\})?\s+\S+)')
_SHAPE_LINES = 1000


class TooManySamplesError(Exception):
    """The text repeats wanted names more often than any engine does; what was read of it would be a guess."""


@dataclass(frozen=True, slots=True)
class Series:
    """One sample: labels and a finite value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """What was wanted of one text."""

    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    """By plain name (see :func:`plain`). NaN and infinite values are left out: they mean that there is no value."""
    names: frozenset[str] = frozenset()
    """Wanted plain names of which the text has a line, readable or not."""
    prefixes: frozenset[str] = frozenset()
    """Those of the given prefixes that a line begins with."""
    bad_lines: tuple[str, ...] = ()
    """Plain names of wanted lines that could not be parsed, one entry a line."""


def plain(name: str) -> str:
    """Spell a metric's name in the one way used for looking it up: ``sglang:x`` and ``sglang_x`` are ``sglang_x``."""
    return name.replace(":", "_", 1)


def read(body: bytes | str, names: frozenset[str], prefixes: tuple[str, ...]) -> Exposition:
    """Read the samples of the wanted ``names``, and note which ``prefixes`` occur at all.

    Args:
        body: the text; bytes are taken as UTF-8.
        names: wanted sample names in plain spelling, e.g. ``sglang_inter_token_latency_seconds_count``.
        prefixes: beginnings of sample names in plain spelling, each ending in ``_``.

    Raises:
        TooManySamplesError: lines with wanted names are more than :data:`MAX_WANTED_BYTES`.
    """
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    wanted = {name.encode(): name for name in names}
    spelled = {(prefix[:-1] + mark).encode(): prefix for prefix in prefixes for mark in "_:"}
    alone = (name for name in wanted if not name.startswith(tuple(spelled)))
    lines: list[str] = []
    seen: set[str] = set()
    occurring: set[str] = set()
    bad: list[str] = []
    size = 0
    for start in (*spelled, *alone):
        for line in _lines_beginning(data, start):
            if start in spelled:
                occurring.add(spelled[start])
            match = _NAME.match(line)
            name = wanted.get(match.group().replace(b":", b"_", 1)) if match else None
            if name is None:
                continue
            seen.add(name)
            size += len(line)
            if size > MAX_WANTED_BYTES:
                raise TooManySamplesError
            if len(line) > MAX_LINE_BYTES:
                bad.append(name)
            else:
                lines.append(line.decode("utf-8", "replace"))
    by_spelling: dict[str, dict[frozenset[tuple[str, str]], Series]] = defaultdict(dict)
    for spelling, series in _parse(lines, bad):
        by_spelling[spelling][frozenset(series.labels.items())] = series
    # Colons sort before underscores, so a name spelled both ways keeps its colon.
    found: dict[str, tuple[Series, ...]] = {}
    for spelling in sorted(by_spelling):
        finite = tuple(s for s in by_spelling[spelling].values() if math.isfinite(s.value))
        if finite:
            found.setdefault(plain(spelling), finite)
    return Exposition(found, frozenset(seen), frozenset(occurring), tuple(bad))


def shape(body: bytes | str, content_type: str | None = None) -> str:
    """Say what a body is in which nothing was recognised: ``empty``, ``metrics`` or ``not_metrics``."""
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    if any(word in (content_type or "").lower() for word in ("text/html", "json", "protobuf")):
        return "not_metrics" if data.strip() else "empty"
    for line in data.split(b"\n", _SHAPE_LINES)[:_SHAPE_LINES]:
        if line.strip() and not line.lstrip().startswith(b"#"):
            return "metrics" if len(line) <= MAX_LINE_BYTES and _SAMPLE.match(line) else "not_metrics"
    return "empty"


def _lines_beginning(data: bytes, start: bytes) -> Iterator[bytes]:
    """Yield the lines that begin with ``start``, at the speed of a search: most of a large body is never looked at."""
    at = 0 if data.startswith(start) else data.find(b"\n" + start) + 1
    while data.startswith(start, at):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield data[at:end]
        at = data.find(b"\n" + start, end) + 1
        if at <= end:
            return


def _parse(lines: list[str], bad: list[str]) -> Iterator[tuple[str, Series]]:
    """Parse all lines at once, which is the fast way, or one by one as soon as one is bad."""
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except Exception:  # noqa: BLE001 - whatever a parser makes of a bad line, the line is what is lost
        if len(lines) == 1:
            bad.append(plain(_name(lines[0])))
            return
        for line in lines:
            yield from _parse([_without_exemplar(line)], bad)
        return
    for family in families:
        for sample in family.samples:
            yield sample.name, Series(sample.labels, float(sample.value))


def _name(line: str) -> str:
    match = _NAME.match(line.encode())
    return match.group().decode() if match else ""


def _without_exemplar(line: str) -> str:
    """Cut an OpenMetrics exemplar (and a timestamp before it), which the text parser does not know."""
    match = _BEFORE_EXEMPLAR.match(line) if " # " in line else None
    return match.group(1) if match else line
