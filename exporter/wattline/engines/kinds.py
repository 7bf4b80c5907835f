"""The shape of an engine's table: which of its metrics make which number of a reading, and how.

A table is data: :class:`EngineKind` with rules. A :class:`Rule` adds up terms, a :class:`Term` makes one number of the
series of one metric. Where an engine has renamed a metric, the names stand side by side and the first present wins;
where it has a better and a worse source for a number, the rules stand side by side and the first that gives one wins.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from wattline.engines.exposition import plain
from wattline.readings import EngineReading, ReadingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from wattline.engines.command_lines import ServerKind
    from wattline.engines.exposition import Exposition, Series

PROCESS_START = "process_start_time_seconds"
"""Every prometheus client library serves it for its own process; several processes behind one text do not."""
MAX_COUNT = float(2**53)
"""Beyond this a float no longer counts, and no engine gets there."""
NUMBERS = (
    "running",
    "queued",
    "held_http",
    "waiting_for_peer",
    "finished_requests",
    "request_seconds",
    "cached_prompt_tokens",
    "scheduler_idle_seconds",
    "flops",
    "read_bytes",
    "write_bytes",
    "cuda_graph_passes",
    "eager_passes",
)
"""Fields of a reading that are numbers, each by the rules of its name."""
COUNTED = ("prompt_tokens", "generation_tokens")
"""Counters that also say which rule gave them."""
MAX_MODELS = 4
MAX_MODEL_CHARS = 500
"""What one reading names of models. Where there is more, it names none: half a list would mislead."""


class Over(StrEnum):
    """How the parts of a metric become one number."""

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Ranks:
    """What labels mean for metrics that each rank of a distributed engine writes for itself.

    Series of different ``parts`` count different things and are folded. Within one part all series repeat one
    number, whichever other labels set them apart, and the greatest of them is taken: ranks that do not report show 0.
    """

    parts: tuple[str, ...]
    replicas: frozenset[str]
    """Labels known to tell replicas apart. Other labels are taken for the same, and reported when they matter."""
    total: str | None = None
    """A label whose empty value marks the total of the other values, e.g. ``priority``."""


@dataclass(frozen=True, slots=True)
class Term:
    """One number from the series of one metric."""

    names: tuple[str, ...]
    """As the engine spells them, the newest first; the first present wins."""
    where: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Labels that must have one of these values."""
    by: tuple[str, ...] = ()
    """Further labels that split the metric into parts."""
    ranks: Ranks | None = None
    """``None``: every series is a part of its own."""
    replicas: frozenset[str] = frozenset()
    """Without ``ranks``: labels that alone make no part. Series that differ only by them repeat one number."""
    over: Over = Over.SUM
    minus: bool = False
    optional: bool = False
    """A rule still holds without it."""
    zero_without_match: bool = False
    """0 when the metric is there but no series has the labels of ``where``: nothing of that sort was ever counted."""
    zero_beside: frozenset[str] = frozenset()
    """0 when the metric is absent and one of these is there: it appears with its first use."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The sum of terms; nothing when a term that is not optional has no value."""

    terms: tuple[Term, ...]

    @property
    def source(self) -> str:
        """The name that a reading gives for where its number comes from."""
        return self.terms[0].names[0]


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of which one moves while the engine gets anywhere with its work, in a fixed order.

    A counter that an engine has, but has not set yet, is 0. That an engine has them is known when one of them is
    there, or one of ``evidence``; else there is no progress to look at.
    """

    terms: tuple[Term, ...] = ()
    evidence: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Off:
    """Shares by which a number was below and above the truth, at the extremes: ``Off(-0.1, 0.02)``."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a release behaved beside a client that counted itself (``make engines``); ``None`` was not compared.

    Each is over situations from one request to a full batch with a queue, streamed and not, short answers and long.
    """

    release: str
    held: Off | None = None
    """Running and queued, as means of a situation."""
    front: Off | None = None
    inside: Off | None = None
    """Requests inside by the summed time of those that ended."""
    tokens: Off | None = None
    """Generated tokens of whole situations."""
    pause_seconds: float | None = None
    """The longest time without progress while the client received tokens, looked at once a second."""


def _unchanged(reading: EngineReading, _exposition: Exposition) -> EngineReading:
    return reading


@dataclass(frozen=True, slots=True)
class EngineKind:
    """All that is known of one kind of engine."""

    name: str
    """The value of ``EngineReading.kind``."""
    prefix: str
    """What the names of its metrics begin with, mark included: ``vllm:``. A text with such a name is of this kind."""
    path: str = "/metrics"
    """Where it serves them, unless it is told otherwise."""
    passed_on_as: tuple[str, ...] = ()
    """Prefixes under which another program passes its metrics on: ``ray_vllm:``."""
    servers: tuple[ServerKind, ...] = ()
    """How it is started, one row a way: a running server is found by it."""
    start: str = ""
    """What to do so that it serves metrics, in the imperative; shown where none are found."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What an error word means for this kind, where that is more than it means for any."""
    running: tuple[Rule, ...] = ()
    queued: tuple[Rule, ...] = ()
    held_http: tuple[Rule, ...] = ()
    waiting_for_peer: tuple[Rule, ...] = ()
    kv_cache_usage_ratio: tuple[Rule, ...] = ()
    awake: tuple[Rule, ...] = ()
    """1 or more while the engine is awake, 0 while it sleeps."""
    finished_requests: tuple[Rule, ...] = ()
    request_seconds: tuple[Rule, ...] = ()
    prompt_tokens: tuple[Rule, ...] = ()
    cached_prompt_tokens: tuple[Rule, ...] = ()
    generation_tokens: tuple[Rule, ...] = ()
    scheduler_idle_seconds: tuple[Rule, ...] = ()
    flops: tuple[Rule, ...] = ()
    read_bytes: tuple[Rule, ...] = ()
    write_bytes: tuple[Rule, ...] = ()
    cuda_graph_passes: tuple[Rule, ...] = ()
    eager_passes: tuple[Rule, ...] = ()
    progress: Progress = field(default_factory=Progress)
    model_labels: tuple[str, ...] = ()
    """Labels that name the model, as releases spell them."""
    gauge_lag_seconds: float = 0.0
    evidence: frozenset[str] = frozenset()
    """Further names whose mere presence ``finish`` looks at."""
    compared: Comparison | None = None
    """The evidence for its numbers; without, they rest on documentation and source."""
    finish: Callable[[EngineReading, Exposition], EngineReading] = _unchanged
    """What no table can say."""

    def wanted(self) -> frozenset[str]:
        """Plain names of every metric that the table uses."""
        rules = (rule for name in (*NUMBERS, *COUNTED, "kv_cache_usage_ratio", "awake") for rule in getattr(self, name))
        terms = (*(term for rule in rules for term in rule.terms), *self.progress.terms)
        names = (name for term in terms for name in (*term.names, *term.zero_beside))
        return frozenset(plain(name) for name in (*names, *self.progress.evidence, *self.evidence, PROCESS_START))

    def bare(self) -> dict[str, str]:
        """Its plain names by what they are without the prefix."""
        prefix = plain(self.prefix)
        return {name.removeprefix(prefix): name for name in self.wanted() if name.startswith(prefix)}

    def passed_on(self, prefix: str) -> dict[str, str]:
        """Its plain names by how they are spelled where they are passed on under this prefix."""
        return {plain(prefix) + bare: name for bare, name in self.bare().items()}


def metric(*names: str, over: Over = Over.SUM) -> tuple[Rule, ...]:
    """Make the rules of a number that is one metric, under any of these names, the newest first."""
    return (Rule((Term(names, over=over),)),)


class _NotObtainedError(Exception):
    """The metric is there, but a part of it cannot be read: what is left would tell less than there is."""


class Extraction:
    """Takes the numbers of one text by one table, and remembers what was wrong with them."""

    def __init__(self, kind: EngineKind, exposition: Exposition) -> None:
        self._kind = kind
        self._exposition = exposition
        self._bad = frozenset(exposition.bad_lines)
        self._errors: dict[ReadingError, None] = {ReadingError(n, "bad_line"): None for n in exposition.bad_lines}
        self.ranks_disagree = False

    def reading(self, engine: str, t: float) -> EngineReading:
        """Make the reading."""
        kind = self._kind
        prompt, prompt_source = self._first(kind.prompt_tokens)
        generation, generation_source = self._first(kind.generation_tokens)
        numbers: dict[str, Any] = {name: self._value(getattr(kind, name)) for name in NUMBERS}
        kv_cache_usage_ratio = self._ratio(kind.kv_cache_usage_ratio)
        awake = self._value(kind.awake)
        progress = self._progress()
        start_time = self._start_time()
        return kind.finish(
            EngineReading(
                t=t,
                engine=engine,
                up=True,
                kind=kind.name,
                model=self._model(),
                start_time=start_time,
                **numbers,
                kv_cache_usage_ratio=kv_cache_usage_ratio,
                asleep=None if awake is None else awake == 0,
                prompt_tokens=prompt,
                generation_tokens=generation,
                generation_tokens_source=generation_source,
                prompt_tokens_source=prompt_source,
                progress=progress,
                gauge_lag_seconds=kind.gauge_lag_seconds,
                ranks_disagree=self.ranks_disagree,
                errors=tuple(self._errors),
            ),
            self._exposition,
        )

    def _first(self, rules: Iterable[Rule]) -> tuple[float | None, str | None]:
        try:
            for rule in rules:
                value = self._rule(rule)
                if value is not None:
                    return value, rule.source
        except _NotObtainedError:
            # No worse rule stands in: another counter for one poll would look like another engine.
            pass
        return None, None

    def _value(self, rules: Iterable[Rule]) -> float | None:
        return self._first(rules)[0]

    def _ratio(self, rules: Iterable[Rule]) -> float | None:
        value, source = self._first(rules)
        if value is not None and value > 1.0:
            self._errors[ReadingError(str(source), "implausible")] = None
            return None
        return value

    def _rule(self, rule: Rule) -> float | None:
        total = 0.0
        for term in rule.terms:
            value = self._term(term)
            if value is None and not term.optional:
                return None
            total += (value or 0.0) * (-1 if term.minus else 1)
        # A difference of two gauges read at slightly different moments may fall just below nothing.
        return max(0.0, total)

    def _term(self, term: Term) -> float | None:
        name = next((n for n in map(plain, term.names) if n in self._exposition.series), None)
        if name is None:
            if any(n in self._exposition.names for n in map(plain, term.names)):
                raise _NotObtainedError
            return 0.0 if any(plain(n) in self._exposition.series for n in term.zero_beside) else None
        present = tuple(self._plausible(name, self._exposition.series[name]))
        damaged = name in self._exposition.without_value or name in self._bad
        if damaged or len(present) < len(self._exposition.series[name]):
            raise _NotObtainedError
        series = [s for s in present if all(s.labels.get(k, "") in allowed for k, allowed in term.where.items())]
        if not series:
            return 0.0 if term.zero_without_match and present else None
        values = [*self._alone(term, series)] if term.ranks is None else [*self._parts(name, term, term.ranks, series)]
        total = sum(values)
        return total / len(values) if term.over is Over.MEAN else total

    def _plausible(self, name: str, series: Iterable[Series]) -> Iterator[Series]:
        for one in series:
            if 0 <= one.value <= MAX_COUNT:
                yield one
            else:
                self._errors[ReadingError(name, "implausible")] = None

    def _alone(self, term: Term, series: list[Series]) -> Iterator[float]:
        """Give each series' value, but one for those that only ``replicas`` tell apart."""
        groups: dict[object, set[float]] = defaultdict(set)
        for one in series:
            own = frozenset((k, v) for k, v in one.labels.items() if k not in term.replicas)
            groups[own if term.replicas else id(one)].add(one.value)
        self.ranks_disagree |= any(len(values) > 1 for values in groups.values())
        return map(max, groups.values())

    def _parts(self, name: str, term: Term, ranks: Ranks, series: list[Series]) -> Iterator[float]:
        """Give one value a part: see :class:`Ranks`."""
        split = (*ranks.parts, *term.where, *term.by)
        if ranks.total is not None:
            totals = [s for s in series if s.labels.get(ranks.total, "") == ""]
            series, split = (totals, split) if totals else (series, (*split, ranks.total))
        groups: dict[tuple[str, ...], list[Series]] = defaultdict(list)
        for one in series:
            # A missing rank label means that there is one rank: rank 0.
            groups[tuple(one.labels.get(label) or "0" for label in split)].append(one)
        for group in groups.values():
            self._compare(name, ranks, split, group)
            yield max(s.value for s in group)

    def _compare(self, name: str, ranks: Ranks, split: tuple[str, ...], group: list[Series]) -> None:
        """Notice replicas that differ where they cannot: a dead process that keeps its last value, a new label."""
        if len(group) == 1:
            return
        by_process: dict[frozenset[tuple[str, str]], set[float]] = defaultdict(set)
        for one in group:
            by_process[frozenset((k, v) for k, v in one.labels.items() if k != "pid")].add(one.value)
        self.ranks_disagree |= any(len(values) > 1 for values in by_process.values())
        known = {*split, *ranks.replicas, ranks.total}
        unknown = {label for one in group for label in one.labels} - known
        if any(len({one.labels.get(label) for one in group}) > 1 for label in unknown):
            self._errors[ReadingError(name, "unknown_label")] = None

    def _progress(self) -> tuple[float, ...]:
        progress = self._kind.progress
        try:
            values = [self._term(term) for term in progress.terms]
        except _NotObtainedError:
            return ()
        evident = any(plain(name) in self._exposition.names for name in progress.evidence)
        if not evident and all(value is None for value in values):
            return ()
        return tuple(value or 0.0 for value in values)

    def _start_time(self) -> float | None:
        values = {s.value for s in self._plausible(PROCESS_START, self._exposition.series.get(PROCESS_START, ()))}
        return values.pop() if len(values) == 1 else None

    def _model(self) -> str | None:
        labels = self._kind.model_labels
        every = (s.labels for series in self._exposition.series.values() for s in series)
        models = {own[label] for own in every for label in labels if own.get(label)}
        named = ", ".join(sorted(models))
        return named if named and len(models) <= MAX_MODELS and len(named) <= MAX_MODEL_CHARS else None
