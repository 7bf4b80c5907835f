"""From a configuration that says ``auto`` or ``pods`` to one that names every engine and GPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from wattline.config import Deployment, Engine
from wattline.discovery.pods import ApiServer, PodsError
from wattline.discovery.processes import GPU_DEVICES, ProcessTable
from wattline.discovery.servers import POD, Endpoint, Note, find_pods, find_servers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wattline.config import Config
    from wattline.discovery.servers import Server
    from wattline.readings import GpuCondition

REMEMBER_SECONDS = 3600.0
"""A server that has gone keeps its place for this long, unless another takes one of its GPUs: that it is down must not
look as if there had never been one."""
CHOICE = "choice"
"""The kind of a note that says what was taken where nothing is configured."""
UNNAMED = Deployment().name
"""A deployment of this name is called like what is found; found altogether, it is as many deployments as there are
servers."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on


class Resolution(NamedTuple):
    """What became of a configuration."""

    config: Config
    """Without ``auto``."""
    notes: tuple[Note, ...]
    """What could not be seen and why, and what else is worth knowing."""
    unplaced: Mapping[str, tuple[str, ...]]
    """By deployment: the processes and pods of its servers whose GPUs are not known."""


@dataclass(slots=True)
class _Place:
    """A server as it is known over its restarts."""

    name: str
    server: Server
    """As it was seen last."""
    seen: float

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(self.server.gpus)

    def is_again(self, server: Server) -> bool:
        """Whether this may be the same server after a restart, perhaps in another container or on another port."""
        return (self.server.kind, self.server.model) == (server.kind, server.model)


@dataclass(slots=True)
class _Group:
    """Servers that share a GPU, and so are one deployment: power belongs to the board."""

    places: list[_Place]
    gpus: set[str] = field(default_factory=set)

    def engines(self) -> tuple[Engine, ...]:
        return tuple(
            Engine(url=endpoint.url, name=name, count_tokens=endpoint.count_tokens)
            for place in self.places
            for name, endpoint in _named(place)
        )

    def unplaced(self) -> tuple[str, ...]:
        return tuple(title for place in self.places for title in place.server.unplaced)


def _named(place: _Place) -> Iterable[tuple[str, Endpoint]]:
    for number, endpoint in enumerate(place.server.endpoints):
        yield endpoint.name or (place.name if number == 0 else f"{place.name}/{number}"), endpoint


def is_optional(config: Config) -> bool:
    """Whether nothing that is configured needs discovery: it only says which GPUs the engines use, if it can."""
    return not any(isinstance(d.engines, str) or d.gpus == "auto" for d in config.deployments)


def _chosen(deployment: Deployment) -> Deployment:
    """With what a deployment means that finds its engines and names no GPUs."""
    if deployment.gpus is not None or not isinstance(deployment.engines, str):
        return deployment
    return replace(deployment, gpus="all" if deployment.engines == "pods" else "auto")


class Discoverer:
    """Finds out, again and again, what runs on the GPUs. Remembers names, so that a restart does not change them.

    Args:
        proc_root: where proc is mounted.
        gpu_devices: beginnings of the paths that a process which uses a GPU holds open.
        api_server: tells the pods of this node.
    """

    def __init__(
        self,
        proc_root: Path = Path("/proc"),
        gpu_devices: tuple[str, ...] = GPU_DEVICES,
        api_server: ApiServer | None = None,
    ) -> None:
        self._root = proc_root
        self._gpu_devices = gpu_devices
        self._api_server = api_server or ApiServer()
        self._places: list[_Place] = []
        self._sure = False
        """Whether the last look saw every process on the GPUs: else it may know a part of a server's GPUs."""
        self._lock = Lock()

    def resolve(
        self,
        config: Config,
        conditions: Mapping[str, GpuCondition],
        listed: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Resolution:
        """Say which engines and GPUs ``auto`` and ``pods`` mean now. Reads ``/proc``, asks for pods, and may block.

        Args:
            config: as configured.
            conditions: the last condition of every GPU that can be read now, by UUID.
            listed: for deployments that list their GPUs, the UUIDs of those that are there, by name of deployment.
                Without it only UUIDs in the configuration are understood, no indices and bus ids.
        """
        try:
            servers, notes = self._find(config, conditions)
        except PodsError as error:
            # What was known of them stays as it was: not to be told is not to be told that they are gone.
            known = self.known(config, listed or {})
            return known._replace(notes=(Note("no_pods", str(error), blind=True), *known.notes))
        now = max((condition.t for condition in conditions.values()), default=0.0)
        with self._lock:
            self._sure = not any(note.blind for note in notes)
            self._remember(servers, now, _names_in(config))
            known = self._known(config, listed or {}, now)
        if is_optional(config):
            notes = tuple(dataclasses.replace(note, blind=False) for note in notes)
        return known._replace(notes=tuple(dict.fromkeys((*notes, *known.notes))))

    def _find(
        self, config: Config, conditions: Mapping[str, GpuCondition]
    ) -> tuple[tuple[Server, ...], tuple[Note, ...]]:
        table = ProcessTable(self._root, self._gpu_devices)
        wanting = [d for d in config.deployments if d.engines == "pods"]
        if not wanting:
            return find_servers(table, conditions)
        pods, problems = self._api_server.pods()
        placing = any(d.gpus not in ("all", None) for d in wanting) or any(d.gpus == "auto" for d in config.deployments)
        servers, notes = find_pods(table, conditions, pods, placing=placing)
        return servers, (*(Note("annotation", text, blind=True) for text in problems), *notes)

    def known(self, config: Config, listed: Mapping[str, tuple[str, ...]]) -> Resolution:
        """As :meth:`resolve`, from what was seen before; does not block."""
        with self._lock:
            return self._known(config, listed, 0.0)

    def _known(self, config: Config, listed: Mapping[str, tuple[str, ...]], now: float) -> Resolution:
        gone = frozenset(p.name for p in self._places if p.seen < now)
        work = _Assignment(config, self._places, gone, listed, sure=self._sure)
        return Resolution(work.config(), tuple(work.notes), work.unplaced)

    def _remember(self, servers: tuple[Server, ...], now: float, reserved: frozenset[str]) -> None:
        """Give every server its place: that of the same address, else that of one like it which has gone."""
        for place in self._places:
            if place.name in reserved:
                place.name = self._new_name(place.server, reserved)
        vacant = list(self._places)
        homeless: list[Server] = []
        for server in servers:
            same = next((p for p in vacant if p.server.endpoints == server.endpoints), None)
            if same is None:
                homeless.append(server)
            else:
                vacant.remove(same)
                same.server, same.seen = server, now
        for server in homeless:
            # Of several that have gone, rather the one on this port and on these GPUs.
            like = [p for p in vacant if p.is_again(server)]
            if like:
                place = max(like, key=lambda p: (p.server.port == server.port, len(p.gpus & server.gpus.keys())))
                vacant.remove(place)
                place.server, place.seen = server, now
            else:
                self._places.append(_Place(self._new_name(server, reserved), server, now))
        taken = {uuid for place in self._places if place not in vacant for uuid in place.gpus}
        for place in vacant:
            # Of a pod that crashes Kubernetes goes on to tell: one that is not told was meant to go.
            if place.server.kind == POD or place.gpus & taken or now - place.seen > REMEMBER_SECONDS:
                self._places.remove(place)

    def _new_name(self, server: Server, reserved: frozenset[str]) -> str:
        """The model's name; where that is taken, with the port; and if need be with a number."""
        taken = {place.name for place in self._places} | reserved
        wished = [server.model, f"{server.model or server.kind}:{server.port}"]
        numbered = (f"{wished[-1]}:{number}" for number in range(2, len(taken) + 3))
        return next(name for name in (*filter(None, wished), *numbered) if name not in taken)


class _Assignment:
    """Deals the servers out to the deployments of a configuration; each goes to one of them at most."""

    def __init__(
        self,
        config: Config,
        places: list[_Place],
        gone: frozenset[str],
        listed: Mapping[str, tuple[str, ...]],
        *,
        sure: bool,
    ) -> None:
        self._sure = sure
        config = replace(config, deployments=tuple(map(_chosen, config.deployments)))
        self.notes: list[Note] = []
        self.unplaced: dict[str, tuple[str, ...]] = {}
        self._config = config
        self._gone = gone
        self._groups = _groups(places)
        self._owned = {
            d.name: set(listed.get(d.name, tuple(g for g in d.gpus if isinstance(g, str))))
            for d in config.deployments
            if isinstance(d.gpus, tuple)
        }

    def config(self) -> Config:
        """The configuration without ``auto``. The most particular wishes are met first."""
        dealt: dict[int, tuple[Deployment, ...]] = {}
        order = sorted(range(len(self._config.deployments)), key=lambda i: _breadth(self._config.deployments[i]))
        for index in order:
            dealt[index] = self._deal(self._config.deployments[index])
        return replace(
            self._config, deployments=tuple(d for i in range(len(self._config.deployments)) for d in dealt[i])
        )

    def _deal(self, deployment: Deployment) -> tuple[Deployment, ...]:
        engines, gpus = deployment.engines, deployment.gpus
        if not isinstance(engines, str):
            mine = self._take_by_address(deployment, engines)
            if gpus is None:
                return (self._where_told(deployment, engines, mine),)
            if gpus != "auto":
                return (deployment,)
            self._tell(mine)
            return (self._placed(deployment, mine),)
        if gpus != "auto":
            mine = self._take_by_gpus(deployment)
            found = " + ".join(sorted(place.name for group in mine for place in group.places))
            name = found if found and deployment.name == UNNAMED else deployment.name
            return (replace(deployment, name=name, engines=tuple(e for group in mine for e in group.engines())),)
        mine, self._groups = self._free_of_others(deployment), []
        if deployment.name == UNNAMED:
            return tuple(
                self._placed(replace(deployment, name=g.places[0].name, engines=g.engines()), [g]) for g in mine
            )
        whole = replace(deployment, engines=tuple(e for group in mine for e in group.engines()))
        return (self._placed(whole, mine),)

    def _placed(self, deployment: Deployment, groups: list[_Group]) -> Deployment:
        """With the GPUs of its servers; what of them is on no known GPU is kept apart."""
        if unplaced := tuple(title for group in groups for title in group.unplaced()):
            self.unplaced[deployment.name] = unplaced
        return replace(deployment, gpus=tuple(dict.fromkeys(g for group in groups for g in sorted(group.gpus))))

    def _where_told(self, deployment: Deployment, engines: Iterable[Engine], groups: list[_Group]) -> Deployment:
        """With the GPUs of its engines' processes if all of them are known, else with all GPUs."""
        missing = [e.name for e in engines if not any(_is_at(e.url, p.server) for g in groups for p in g.places)]
        told = self._sure and not missing and all(group.gpus and not group.unplaced() for group in groups)
        if told:
            text = f"{deployment.name}: no gpus are configured; those of the engines' processes are taken (auto)"
        else:
            why = f"the driver does not tell which are those of {', '.join(missing) or 'every process'}"
            text = f"{deployment.name}: no gpus are configured; all are taken, because {why}"
        self.notes.append(Note(CHOICE, text, blind=False))
        return self._placed(deployment, groups) if told else replace(deployment, gpus="all")

    def _take_by_address(self, deployment: Deployment, engines: Iterable[Engine]) -> list[_Group]:
        mine = []
        for engine in engines:
            group = next((g for g in self._groups if any(_is_at(engine.url, p.server) for p in g.places)), None)
            if group is not None:
                self._groups.remove(group)
                mine.append(group)
            elif deployment.gpus == "auto" and not any(_is_at(engine.url, p.server) for g in mine for p in g.places):
                text = f"{deployment.name}: no process on a GPU of this host belongs to the engine {engine.name}"
                self.notes.append(Note("no_server", text, blind=True))
        return mine

    def _take_by_gpus(self, deployment: Deployment) -> list[_Group]:
        mine = []
        for group in self._free_of_others(deployment):
            owned = self._owned.get(deployment.name)
            if owned is not None and not (group.gpus and group.gpus <= owned):
                if group.gpus & owned:
                    text = f"{deployment.name}: {_names(group)} runs on GPUs that the deployment does not have, too"
                    self.notes.append(Note("foreign_gpus", text, blind=True))
                continue
            self._groups.remove(group)
            mine.append(group)
        if not mine:
            text = f"{deployment.name}: no inference server is found on its GPUs"
            self.notes.append(Note("no_server", text, blind=True))
        return mine

    def _free_of_others(self, deployment: Deployment) -> list[_Group]:
        """The servers that are left, but for those on GPUs that other deployments list."""
        free = []
        for group in self._groups:
            other = next((name for name, g in self._owned.items() if name != deployment.name and g & group.gpus), None)
            if other is None:
                free.append(group)
            else:
                text = f"{_names(group)} runs on GPUs of the deployment {other}, which has other engines"
                self.notes.append(Note("foreign_gpus", text, blind=True))
        self._tell(free)
        return free

    def _tell(self, groups: Iterable[_Group]) -> None:
        for group in groups:
            if len(group.places) > 1:
                text = f"{_names(group)} share a GPU and are one deployment: power belongs to the board"
                self.notes.append(Note("shared_gpu", text, blind=False))
            for place in group.places:
                if place.name in self._gone:
                    self.notes.append(Note("gone", f"{place.name} was here and is not running now", blind=False))
                for title in place.server.unplaced:
                    text = f"{title} of {place.name} is on no GPU that can be read here (yet)"
                    self.notes.append(Note("unplaced", text, blind=True))


def _names_in(config: Config) -> frozenset[str]:
    """What is called by the configuration already."""
    engines = {e.name for d in config.deployments if not isinstance(d.engines, str) for e in d.engines}
    return frozenset(d.name for d in config.deployments) | engines


def _breadth(deployment: Deployment) -> int:
    """How much a deployment would take: named engines first, then what is on listed GPUs, then the rest."""
    if not isinstance(deployment.engines, str):
        return 0
    return {"all": 2, "auto": 3}.get(deployment.gpus, 1) if isinstance(deployment.gpus, str) else 1


def _groups(places: Iterable[_Place]) -> list[_Group]:
    groups: list[_Group] = []
    for place in places:
        group = _Group([place], set(place.gpus))
        for other in [g for g in groups if g.gpus & group.gpus]:
            groups.remove(other)
            group = _Group([*other.places, *group.places], other.gpus | group.gpus)
        groups.append(group)
    return groups


def _names(group: _Group) -> str:
    return " and ".join(place.name for place in group.places)


def _is_at(url: str, server: Server) -> bool:
    """Whether an address of the configuration is this server's."""
    wanted = urlsplit(url)
    for endpoint in server.endpoints:
        found = urlsplit(endpoint.url)
        same_host = wanted.hostname == found.hostname or {wanted.hostname, found.hostname} <= _LOCAL
        if same_host and wanted.port == found.port:
            return True
    return False
