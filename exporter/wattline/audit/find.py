"""What a server holds of GPUs and engines, and which of them belong together. Pure but for the questions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattline.audit.sources import SOURCES
from wattline.engines.exposition import plain
from wattline.engines.tables import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattline.audit.client import Server
    from wattline.audit.sources import Field, Source
    from wattline.engines.kinds import EngineKind

REPLICAS = frozenset({"replica", "prometheus_replica", "__replica__", "_replica", "receive_replica"})
"""Labels by which one Prometheus of a pair differs from the other."""
GPU_HOSTS = ("node", "Hostname", "hostname", "kubernetes_node", "host", "instance")
ENGINE_HOSTS = ("node", "hostname", "kubernetes_node", "host", "instance")
PODS = (("pod", "namespace"), ("exported_pod", "exported_namespace"))
LEAST_NAMES = 2
"""So many metrics of a table make a target an engine: one name alone may be somebody else's."""


@dataclass(slots=True)
class FoundGpu:
    """One GPU, by its UUID."""

    uuid: str
    source: Source
    model: str = ""
    labels: list[dict[str, str]] = field(default_factory=list)
    """Label sets of its power over the time: they change where it is renamed, or where its pod does."""
    fields: set[str] = field(default_factory=set)
    """Which fields of a reading some series tells."""


@dataclass(slots=True)
class FoundEngine:
    """One target that serves the metrics of an engine."""

    name: str
    kind: EngineKind
    labels: dict[str, str]


@dataclass(slots=True)
class Joined:
    """An engine or several, and the GPUs that serve them."""

    name: str
    by: str
    engines: list[FoundEngine] = field(default_factory=list)
    gpus: list[FoundGpu] = field(default_factory=list)


@dataclass(slots=True)
class Inventory:
    """What there is."""

    gpus: dict[str, FoundGpu] = field(default_factory=dict)
    engines: dict[str, FoundEngine] = field(default_factory=dict)


def _names(names: Iterable[str]) -> str:
    return '{__name__=~"' + "|".join(sorted(names)) + '"}'


def spellings(kind: EngineKind) -> str:
    """A selector of every metric of a kind, by a colon or an underscore after its prefix."""
    prefix = plain(kind.prefix)
    return "|".join(sorted(n.replace("_", "[:_]", 1) if n.startswith(prefix) else n for n in kind.wanted()))


async def find(server: Server, start: float, end: float) -> Inventory:
    """Look for everything that a table knows. Raises as :meth:`Server.series`."""
    told = await server.series([_names({f.metric for s in SOURCES for f in s.fields})], start, end)
    patterns = [f'{{__name__=~"{spellings(kind)}"}}' for kind in KINDS.values()]
    return Inventory(gpus(told), engines(await server.series(patterns, start, end)))


def canonical(uuid: str) -> str:
    """One way to write a UUID: some exporters leave out what it begins with."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def gpus(told: Iterable[Mapping[str, str]]) -> dict[str, FoundGpu]:
    """The GPUs behind label sets, by UUID. One that several exporters show is the first source's that tells power."""
    series = [dict(labels) for labels in told]
    found: dict[str, FoundGpu] = {}
    for source in SOURCES:
        fields: dict[str, list[Field]] = {}
        for row in source.fields:
            fields.setdefault(row.metric, []).append(row)
        own = [s for s in series if s.get("__name__") in fields and s.get(source.uuid)]
        shown = {canonical(s[source.uuid]) for s in own if s["__name__"] == source.power} - found.keys()
        for labels in own:
            uuid = canonical(labels[source.uuid])
            if uuid not in shown:
                continue
            gpu = found.setdefault(uuid, FoundGpu(uuid, source))
            gpu.model = gpu.model or next((labels[name] for name in source.model if labels.get(name)), "")
            gpu.fields |= {
                f.reading for f in fields[labels["__name__"]] if f.where is None or labels.get(f.where[0]) == f.where[1]
            }
            if labels["__name__"] == source.power:
                gpu.labels.append(labels)
    return found


def engines(told: Iterable[Mapping[str, str]]) -> dict[str, FoundEngine]:
    """The engines behind label sets, by the name of their target."""
    by_target: dict[tuple[str, str], list[dict[str, str]]] = {}
    for labels in told:
        by_target.setdefault((labels.get("job", ""), labels.get("instance", "")), []).append(dict(labels))
    found: dict[str, FoundEngine] = {}
    for (job, instance), series in by_target.items():
        names = {plain(s["__name__"]) for s in series}
        kind = next(
            (
                k
                for k in KINDS.values()
                if len([n for n in names & k.wanted() if n.startswith(plain(k.prefix))]) >= LEAST_NAMES
            ),
            None,
        )
        if kind is None or not instance:
            continue
        # What is the same on all of its series are labels of the target.
        common = {k: v for k, v in series[0].items() if k not in REPLICAS and all(s.get(k) == v for s in series)}
        name = f"{job}/{instance}" if job else instance
        found[name] = FoundEngine(name, kind, common | {"job": job, "instance": instance})
    return found


def _host(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """The host that labels name, without port and domain."""
    named = next((labels[name] for name in names if labels.get(name)), "")
    bare = re.sub(r":\d+$", "", named)
    return bare if re.fullmatch(r"[\d.]+", bare) or ":" in bare else bare.partition(".")[0]


def _pods(labels: Mapping[str, str]) -> set[tuple[str, str]]:
    return {(labels.get(space, ""), labels[pod]) for pod, space in PODS if labels.get(pod)}


def join(
    found: Inventory, rules: Sequence[tuple[str, str]] = ()
) -> tuple[list[Joined], list[FoundEngine], list[FoundGpu]]:
    """Put engines and GPUs together that the same labels name; what no label joins is returned apart, never guessed.

    Args:
        found: what there is.
        rules: pairs of a label of engines and a label of GPUs that must be equal; without them the pod that uses a
            GPU counts, then the host.

    Returns:
        The deployments, the engines without GPUs, the GPUs without engine.
    """
    joined: dict[str, Joined] = {}
    lonely: list[FoundEngine] = []
    for engine in found.engines.values():
        by, key, own = _partners(engine, found.gpus, rules)
        if not own:
            lonely.append(engine)
            continue
        deployment = joined.setdefault(key, Joined(key, by))
        deployment.engines.append(engine)
        deployment.gpus += [g for g in own if g not in deployment.gpus]
    taken = {g.uuid for d in joined.values() for g in d.gpus}
    return [joined[k] for k in sorted(joined)], lonely, [g for g in found.gpus.values() if g.uuid not in taken]


def _partners(
    engine: FoundEngine, gpus: Mapping[str, FoundGpu], rules: Sequence[tuple[str, str]]
) -> tuple[str, str, list[FoundGpu]]:
    """How an engine is joined, by what name, and with which GPUs."""
    if rules:
        values = [engine.labels.get(mine, "") for mine, _ in rules]
        own = [
            g
            for g in gpus.values()
            if all(values) and any([s.get(theirs) for _, theirs in rules] == values for s in g.labels)
        ]
        return "--join", "/".join(values), own
    pods = _pods(engine.labels)
    own = [g for g in gpus.values() if any(pods & _pods(s) for s in g.labels)]
    if own:
        space, pod = min(pods)
        return "pod", f"{space}/{pod}" if space else pod, own
    host = _host(engine.labels, ENGINE_HOSTS)
    # A GPU whose exporter names the pod that uses it is that pod's.
    own = [g for g in gpus.values() if host and any(_host(s, GPU_HOSTS) == host for s in g.labels) and not _claimed(g)]
    return "host", host, own


def _claimed(gpu: FoundGpu) -> bool:
    return gpu.source.name == "dcgm-exporter" and any(s.get("exported_pod") for s in gpu.labels)
