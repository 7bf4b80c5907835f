"""From the body of one answer to one reading: the pure entry to everything in this package."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattline.engines.exposition import TooManySamplesError, plain, read, shape
from wattline.engines.kinds import PROCESS_START, Extraction
from wattline.engines.tables import KINDS
from wattline.readings import EngineReading

if TYPE_CHECKING:
    from wattline.engines.exposition import Exposition
    from wattline.engines.kinds import EngineKind

_TABLES = tuple(KINDS.values())
_ROUTERS = ("sgl_router_", "smg_", "vllm_router_", "llamacpp_router_")
_WORKER_LABEL = "worker_addr"
"""Marks the series of many servers merged into one text (``/engine_metrics`` of SGLang's gateway)."""
_PASSED_ON = {plain(prefix): kind.passed_on(prefix) for kind in _TABLES for prefix in kind.passed_on_as}
_WANTED = frozenset[str]().union(*(kind.wanted() for kind in _TABLES), *_PASSED_ON.values())
_PREFIXES = (*(plain(kind.prefix) for kind in _TABLES), *_PASSED_ON, *_ROUTERS)


def normalise(
    body: bytes | str, *, engine: str, t: float, content_type: str | None = None, kind: str | None = None
) -> EngineReading:
    """Make the reading of one engine from the body that it answered with. Never raises for anything in the body.

    Args:
        body: the text as received; bytes are taken as UTF-8.
        engine: the engine's name.
        t: when the answer had arrived, in seconds of the monotonic clock.
        content_type: as answered; only used to tell what a body without any engine's metrics is.
        kind: a name from :data:`wattline.engines.tables.KINDS`; ``None`` recognises the kind by the metrics.

    Returns:
        A reading that is not ``up`` with the error ``empty``, ``not_metrics`` (a web page, JSON, garbage),
        ``no_engine_metrics`` (metrics, but of no engine, or not of the configured kind), ``router`` (a gateway, or the
        merged metrics of several servers) or ``too_large`` (wanted names repeated without end).

    Raises:
        KeyError: ``kind`` is not a known one.
    """
    table = KINDS[kind] if kind is not None else None
    try:
        exposition = read(body, _WANTED, _PREFIXES)
        for prefix in exposition.prefixes.intersection(_PASSED_ON):
            exposition = exposition.respelled(_PASSED_ON[prefix])
        if table is not None and not _spoken(table, exposition):
            exposition = _bare(body, table) or exposition
    except TooManySamplesError:
        return EngineReading(t, engine, up=False, error="too_large")
    table, error = _recognise(exposition, table)
    if table is None:
        if error is None:
            found = shape(body, content_type)
            error = "no_engine_metrics" if found == "metrics" else found
        return EngineReading(t, engine, up=False, error=error)
    return Extraction(table, exposition).reading(engine, t)


def _spoken(kind: EngineKind, exposition: Exposition) -> bool:
    """Whether a text has names of this kind, its own or those under which they are passed on."""
    return any(plain(prefix) in exposition.prefixes for prefix in (kind.prefix, *kind.passed_on_as))


def _bare(body: bytes | str, kind: EngineKind) -> Exposition | None:
    """What a text says under names without the prefix: only who configured the kind knows whose they are."""
    bare = kind.bare()
    exposition = read(body, frozenset({*bare, PROCESS_START}), ())
    if not exposition.names.intersection(bare):
        return None
    return replace(exposition.respelled(bare), prefixes=frozenset({plain(kind.prefix)}))


def _recognise(exposition: Exposition, configured: EngineKind | None) -> tuple[EngineKind | None, str | None]:
    """Find the table to use, or the error if that can be told without looking at the body again."""
    tables = _TABLES if configured is None else (configured,)
    table = next((kind for kind in tables if _spoken(kind, exposition)), None)
    if table is None:
        return None, "router" if exposition.prefixes.intersection(_ROUTERS) else None
    if any(_WORKER_LABEL in s.labels for series in exposition.series.values() for s in series):
        return None, "router"
    good = sum(map(len, exposition.series.values()))
    if len(exposition.bad_lines) > good:
        return None, "not_metrics"
    return table, None
