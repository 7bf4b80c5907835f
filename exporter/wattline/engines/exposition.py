"""A tolerant and bounded reader of metrics texts: Prometheus text 0.0.4 and OpenMetrics alike.

Engines send far more than is needed (300 KB a poll is usual) and not always valid text. So lines are chosen by the
name of their sample before anything is parsed, comments are not looked at, and what remains goes through
prometheus_client's parser line by line. A name with its labels is parsed once: at the next poll only its value differs.
Because ``# TYPE`` lines are ignored, a counter reads the same whether its family is declared with or without
``_total``, and a missing ``# EOF`` does not matter.

A name may be spelled with a colon or with an underscore after its prefix (``sglang:num_running_reqs``,
``sglang_num_running_reqs``): both are the same metric here, and where a text has both, only the colon's is taken.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LINE_BYTES = 16 * 1024
"""A longer line is skipped: the lines that are wanted have short labels."""
MAX_WANTED_BYTES = 2 * 1024 * 1024
"""More than this in wanted lines is no engine (64 ranks make 0.3 MiB), and would take seconds to parse."""

REMEMBERED = 4096
"""Parsed names and labels that are kept from one poll to the next: an engine with eight ranks has 150 of them."""
MAX_REMEMBERED_CHARS = 512

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE = re.compile(
    rb"\s*+[a-zA-Z_:][\w:]*+(?:\s*+\{.*\})?\s++[-+]?(?:\d|\.\d|nan|inf)",
    re.IGNORECASE,
)
"""Nothing in it can be divided between two parts in more than one way: a hostile line takes as long as a good one."""
_BEFORE_EXEMPLAR = re.compile(r'([^\s{]+(?:\{(?:[^"}]|"(?:\\.|[^"\\])*")*\})?\s+\S+)')
_SHAPE_LINES = 1000
_PLAIN = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^{}]*\})?) (-?[0-9]{1,17}(?:\.[0-9]{1,17})?(?:[eE][-+]?[0-9]{1,2})?)"
)
"""A line as nearly all are: no brace within the labels, a usual number, no time stamp, no exemplar."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """What tells one series from another."""

    name: str
    labels: Mapping[str, str]
    key: frozenset[tuple[str, str]]


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
    without_value: frozenset[str] = frozenset()
    """Plain names of which a sample is NaN or infinite."""

    def respelled(self, names: Mapping[str, str]) -> Exposition:
        """The same under other plain names; a name that the text has itself is left alone."""
        new = {old: name for old, name in names.items() if name not in self.names}
        return replace(
            self,
            series={new.get(name, name): series for name, series in self.series.items()},
            names=frozenset(new.get(name, name) for name in self.names),
            bad_lines=tuple(new.get(name, name) for name in self.bad_lines),
            without_value=frozenset(new.get(name, name) for name in self.without_value),
        )


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
    data = b"\n" + (body.encode("utf-8", "replace") if isinstance(body, str) else body)
    lines: list[str] = []
    seen: set[str] = set()
    occurring: set[bytes] = set()
    bad: list[str] = []
    size = 0
    finder, wanted = _finder(names, prefixes)
    for match in finder.finditer(data):
        spelling, prefix = match.groups()
        if prefix:
            occurring.add(prefix)
        name = wanted.get(spelling.replace(b":", b"_", 1))
        if name is None:
            continue
        seen.add(name)
        end = data.find(b"\n", match.end())
        line = data[match.start() + 1 : end if end >= 0 else None]
        size += len(line)
        if size > MAX_WANTED_BYTES:
            raise TooManySamplesError
        if len(line) > MAX_LINE_BYTES:
            bad.append(name)
        else:
            lines.append(line.decode("utf-8", "replace"))
    by_spelling: dict[str, dict[frozenset[tuple[str, str]], Series]] = defaultdict(dict)
    for text in lines:
        sample = _sample(text)
        if sample is None:
            bad.append(plain(_name(text)))
        else:
            identity, value = sample
            by_spelling[identity.name][identity.key] = Series(identity.labels, value)
    found, without_value = _chosen(by_spelling)
    begun = frozenset(f"{p.decode()}_" for p in occurring)
    return Exposition(found, frozenset(seen), begun, tuple(bad), without_value)


def _chosen(
    by_spelling: Mapping[str, Mapping[frozenset[tuple[str, str]], Series]],
) -> tuple[dict[str, tuple[Series, ...]], frozenset[str]]:
    """The series by plain name, and the names of which one has no value."""
    found: dict[str, tuple[Series, ...]] = {}
    without_value: set[str] = set()
    # Colons sort before underscores, so a name spelled both ways keeps its colon.
    for spelled in sorted(by_spelling):
        name, told = plain(spelled), by_spelling[spelled].values()
        if name in found:
            continue
        finite = tuple(s for s in told if math.isfinite(s.value))
        if finite:
            found[name] = finite
        if len(finite) < len(told):
            without_value.add(name)
    return found, frozenset(without_value)


def shape(body: bytes | str, content_type: str | None = None) -> str:
    """Say what a body is in which nothing was recognised: ``empty``, ``metrics`` or ``not_metrics``."""
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    if any(word in (content_type or "").lower() for word in ("text/html", "json", "protobuf")):
        return "not_metrics" if data.strip() else "empty"
    for line in data.split(b"\n", _SHAPE_LINES)[:_SHAPE_LINES]:
        if line.strip() and not line.lstrip().startswith(b"#"):
            return "metrics" if len(line) <= MAX_LINE_BYTES and _SAMPLE.match(line) else "not_metrics"
    return "empty"


@lru_cache(maxsize=8)
def _finder(names: frozenset[str], prefixes: tuple[str, ...]) -> tuple[re.Pattern[bytes], Mapping[bytes, str]]:
    """A search for names at the beginning of a line: most of a large body is never looked at by anything slower."""
    alone = sorted(name for name in names if not name.startswith(prefixes))
    # Of two prefixes that begin alike the longer is meant: vllm_router_ is not vllm_.
    words = "|".join(re.escape(prefix[:-1]) for prefix in sorted(prefixes, key=len, reverse=True))
    begins = "|".join([f"({words or '(?!)'})[:_]", *(re.escape(name) for name in alone)])
    return re.compile(f"\n((?:{begins})[a-zA-Z0-9_:]*)".encode()), {name.encode(): name for name in names}


def _sample(line: str) -> tuple[_Identity, float] | None:
    """Take one line apart; ``None`` when it is bad."""
    match = _PLAIN.fullmatch(line)
    identity = _identity(match[1]) if match and len(match[1]) <= MAX_REMEMBERED_CHARS else None
    if match and identity:
        return identity, float(match[2])
    return _parsed(_without_exemplar(line))


@lru_cache(maxsize=REMEMBERED)
def _identity(head: str) -> _Identity | None:
    """Parse the name and labels of a line, which are the same at every poll."""
    sample = _parsed(f"{head} 0")
    return sample[0] if sample else None


def _parsed(line: str) -> tuple[_Identity, float] | None:
    try:
        (family,) = text_string_to_metric_families(line + "\n")
        (sample,) = family.samples
        value = float(sample.value)
    except Exception:  # noqa: BLE001 - whatever a parser makes of a bad line, the line is what is lost
        return None
    return _Identity(sample.name, sample.labels, frozenset(sample.labels.items())), value


def _name(line: str) -> str:
    match = _NAME.match(line.encode())
    return match.group().decode() if match else ""


def _without_exemplar(line: str) -> str:
    """Cut an OpenMetrics exemplar (and a timestamp before it), which the text parser does not know."""
    match = _BEFORE_EXEMPLAR.match(line) if " # " in line else None
    return match.group(1) if match else line
