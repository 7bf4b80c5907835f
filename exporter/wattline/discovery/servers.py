"""From the processes on each GPU to the inference servers behind them."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattline.discovery.processes import UnreadableError
from wattline.discovery.sockets import host_and_port
from wattline.engines.command_lines import Command, ServerKind
from wattline.engines.tables import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattline.discovery.pods import Pod
    from wattline.discovery.processes import Process, ProcessTable
    from wattline.discovery.sockets import Listener
    from wattline.readings import GpuCondition

HIDDEN_MEMORY_BYTES = 2 * 2.0**30
"""A GPU without any process that is told holds less than this: the driver's own share is below 1 GiB."""
POD = "pod"
BYSTANDERS = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced", "Xorg"})
"""Programs that hold a GPU on behalf of others: nothing is to be said about them."""
_LISTED = 4
"""Of many things that share a fate, so many are named."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that discovery has to say."""

    kind: str
    """A bounded word."""
    text: str
    blind: bool
    """Whether something could not be seen; else it is for information."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where metrics are."""

    url: str
    count_tokens: bool = True
    """False: another node's exporter counts them."""
    name: str = ""
    """Of the engine, where it is known; else it is called like its deployment."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running inference server, as far as it can be seen from this host."""

    kind: str
    """A kind of server, or ``pod``: one or several that Kubernetes tells."""
    pid: int
    model: str
    """Empty when its command line does not say."""
    port: int
    endpoints: tuple[Endpoint, ...]
    """The first is the server's own, or that of the node that leads."""
    gpus: Mapping[str, tuple[str, ...]]
    """UUIDs of the GPUs that its processes are on, with the ranks that they have on each as far as titles tell."""
    unplaced: tuple[str, ...] = ()
    """What of it computes, but on no GPU that is visible here."""


@dataclass(slots=True)
class _Look:
    """One look at the host: what is found, and what is to be said."""

    table: ProcessTable
    notes: list[Note] = field(default_factory=list)
    fates: dict[tuple[str, str, bool], list[str]] = field(default_factory=lambda: defaultdict(list))

    def fate(self, kind: str, what: str, text: str, *, blind: bool = True) -> None:
        """Say the same of many things at once: ``what`` is listed before ``text``."""
        self.fates[kind, text, blind].append(what)

    def said(self) -> tuple[Note, ...]:
        """Every note, in a fixed order."""
        joined = (Note(kind, f"{_listed(what)} {text}", blind) for (kind, text, blind), what in self.fates.items())
        return (*joined, *self.notes)


def _listed(things: Sequence[str]) -> str:
    shown = ", ".join(things[:_LISTED])
    return f"{shown} and {len(things) - _LISTED} more" if len(things) > _LISTED else shown


def find_servers(
    table: ProcessTable, conditions: Mapping[str, GpuCondition]
) -> tuple[tuple[Server, ...], tuple[Note, ...]]:
    """Find the servers behind the processes that NVML tells.

    Args:
        table: a fresh look at the processes.
        conditions: the last condition of every GPU that can be read, by UUID.

    Returns:
        The servers in the order of their ports, and what could not be seen and why.
    """
    look = _Look(table)
    gpus_of: dict[int, dict[str, list[Process]]] = defaultdict(lambda: defaultdict(list))
    kinds: dict[int, tuple[ServerKind, Command]] = {}
    placed: set[int] = set()
    for uuid, condition in conditions.items():
        for pid in _pids(look, uuid, condition):
            placed.add(pid)
            line = _line(look, pid, uuid)
            found = _server_among(line)
            if found is not None:
                server, kind, command = found
                kinds[server.pid] = kind, command
                gpus_of[server.pid][uuid].append(line[0])
            elif line:
                _tell_no_server(look, line, uuid)
    servers = (_server(look, pid, *started_as, gpus_of[pid], placed) for pid, started_as in kinds.items())
    running = sorted((s for s in servers if s is not None), key=lambda s: (s.port, s.pid))
    return tuple(running), look.said()


def find_pods(
    table: ProcessTable, conditions: Mapping[str, GpuCondition], pods: Sequence[Pod], *, placing: bool
) -> tuple[tuple[Server, ...], tuple[Note, ...]]:
    """Make a server of the pods of each deployment, and find the GPUs that their processes are on.

    Args:
        table: a fresh look at the processes.
        conditions: the last condition of every GPU that can be read, by UUID.
        pods: that run on this node.
        placing: whether it must be known on which GPUs they are.

    Returns:
        The servers in the order of their names, and what could not be seen and why.
    """
    look = _Look(table)
    gpus_of: dict[str | None, set[str]] = defaultdict(set)
    for uuid, condition in conditions.items() if placing else ():
        for pid in _pids(look, uuid, condition):
            if _line(look, pid, uuid):
                gpus_of[table.pod(pid)].add(uuid)
    members: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        members[pod.deployment].append(pod)
    servers = tuple(
        Server(
            kind=POD,
            pid=0,
            model=deployment,
            port=of[0].port,
            endpoints=tuple(Endpoint(pod.url, name=pod.name) for pod in of),
            gpus=dict.fromkeys(sorted(set().union(*(gpus_of[pod.uid] for pod in of))), ()),
            unplaced=tuple(pod.name for pod in of if placing and not gpus_of[pod.uid]),
        )
        for deployment, of in sorted(members.items())
    )
    return servers, look.said()


def _pids(look: _Look, uuid: str, condition: GpuCondition) -> Iterable[int]:
    if condition.processes is None:
        look.fate("processes_unknown", uuid, "does not tell its processes (nvmlDeviceGetComputeRunningProcesses)")
        return ()
    if not condition.processes and (condition.memory_used_bytes or 0.0) >= HIDDEN_MEMORY_BYTES:
        look.fate(
            "hidden_processes",
            uuid,
            "holds memory, but the driver tells of no process: those of other containers are hidden from this one "
            "(share the host's process ids, hostPID)",
        )
    return sorted({process.pid for process in condition.processes})


def _line(look: _Look, pid: int, uuid: str) -> list[Process]:
    """The process on the GPU and its ancestors; nothing when it cannot be told who it is."""
    table = look.table
    try:
        line = table.line(pid)
    except UnreadableError as error:
        look.fate("unreadable", f"process {pid} on {uuid}", f"may not be looked at ({error})")
        return []
    if not line:
        if not table.of_the_host:
            where = "is not visible: this exporter is in a process namespace of its own (share the host's, hostPID)"
            look.fate("pid_namespace", f"process {pid} on {uuid}", where)
        elif table.hides_others:
            look.fate("hidepid", f"process {pid} on {uuid}", "is not visible: /proc is mounted with hidepid")
        # Else it has ended since NVML was asked.
        return []
    holds = table.holds_gpu(pid)
    if holds is False or (holds is None and not table.of_the_host):
        # The same number means another process here.
        text = "is another process here: the driver counts in another process namespace (share the host's, hostPID)"
        look.fate("pid_namespace", f"process {pid} on {uuid}", text)
        return []
    return line


def _server_among(line: Iterable[Process]) -> tuple[Process, ServerKind, Command] | None:
    for process in line:
        command = Command.of(process.argv)
        if (kind := _kind(command)) is not None:
            return process, kind, command
    return None


def _kind(command: Command) -> ServerKind | None:
    """The row of an engine's table that fits a command; where two fit, the first is meant."""
    return next((row for kind in KINDS.values() for row in kind.servers if row.runs(command)), None)


def _tell_no_server(look: _Look, line: list[Process], uuid: str) -> None:
    command = Command.of(line[0].argv)
    if command.names & BYSTANDERS:
        return
    title = line[0].argv[0] if line[0].argv else "a process that has ended"
    if "::" in title:
        look.fate("no_server", f"process {line[0].pid} ({title[:40]}) on {uuid}", "has no known server above it")
    else:
        text = "is of no inference server that is known here"
        look.fate("not_a_server", f"process {line[0].pid} ({command.name[:40]}) on {uuid}", text, blind=False)


def _server(
    look: _Look,
    pid: int,
    kind: ServerKind,
    command: Command,
    gpus: Mapping[str, Sequence[Process]],
    placed: set[int],
) -> Server | None:
    below = look.table.below(pid)
    variable = look.table.environment(pid, kind.port_variable) if kind.port_variable else None
    front, front_command = _front(pid, kind, command, below)
    expected, told = kind.expected_port(front_command, variable)
    name = f"{kind.kind} server (process {pid})"
    port, endpoints = expected, []
    follows = command.number(kind.rank_flag) or command.has(kind.headless_flag)
    if follows and (head := _head(look, kind, command, name, expected)) is not None:
        endpoints.append(Endpoint(head, count_tokens=False))
    if (not follows or (endpoints and command.has(*kind.own_metrics_modes))) and (
        own := _own_endpoint(look, kind, name, front, front_command, below, (expected, told))
    ) is not None:
        port = own[0]
        endpoints.append(Endpoint(own[1]))
    if not endpoints:
        return None
    _tell_no_metrics(look, kind, command, name)
    workers = [p for p in below if kind.workers and p.argv and p.argv[0].startswith(kind.workers)]
    return Server(
        kind=kind.kind,
        pid=pid,
        model=kind.model(command),
        port=port,
        endpoints=tuple(endpoints),
        gpus={uuid: tuple(sorted(_ranks(kind, processes))) for uuid, processes in gpus.items()},
        unplaced=tuple(sorted(p.argv[0][:60] for p in workers if p.pid not in placed)),
    )


def _ranks(kind: ServerKind, processes: Iterable[Process]) -> Iterable[str]:
    """``sglang::scheduler_DP1_TP0`` has the rank ``DP1 TP0``."""
    for process in processes:
        title = process.argv[0] if process.argv else ""
        if kind.workers and title.startswith(kind.workers) and (rank := title.removeprefix(kind.workers).strip("_")):
            yield rank.replace("_", " ")


def _front(pid: int, kind: ServerKind, command: Command, below: Iterable[Process]) -> tuple[int, Command]:
    """The process that listens, and its command line."""
    if kind.front:
        for process in below:
            front = Command.of(process.argv)
            if kind.front in front.names:
                return process.pid, front
    return pid, command


def _head(look: _Look, kind: ServerKind, command: Command, name: str, port: int) -> str | None:
    """Where the node that leads serves the metrics of the whole, for a node that only follows."""
    address = (command.value(*kind.head_flags) or "").removeprefix("tcp://")
    host = address.rpartition(":")[0] if address.count(":") == 1 or address.startswith("[") else address
    if not host:
        flags = " or ".join(kind.head_flags)
        look.notes.append(Note("no_head", f"{name} follows a node that its command line does not name ({flags})", True))
        return None
    url = f"http://{host_and_port(host.strip('[]'), port)}{kind.path}"
    look.notes.append(Note("follower", f"{name} follows another node; its load is read there, at {url}", False))
    return url


def _own_endpoint(
    look: _Look,
    kind: ServerKind,
    name: str,
    front: int,
    command: Command,
    below: Sequence[Process],
    expectation: tuple[int, bool],
) -> tuple[int, str] | None:
    """The port and address of the server's own metrics; nothing when it cannot be told which they are."""
    expected, told = expectation
    table = look.table
    own = table.listeners(front)
    if own is None:
        # Not allowed to see whose they are: somebody listens there, and the command line says it is this server.
        candidates = [o for o in table.listening_around(front) if o.port == expected]
    else:
        everywhere = [*own, *(o for p in below for o in table.listeners(p.pid) or ())]
        candidates = [o for o in everywhere if o.port == expected]
        if not candidates and not told:
            candidates = list(own)
    ports = sorted({o.port for o in candidates})
    if len(ports) > 1:
        shown = _listed([str(port) for port in ports])
        text = f"{name} listens on the ports {shown}, and its command line does not say which has the metrics"
        look.notes.append(Note("several_ports", text, True))
        return None
    if not candidates:
        if own is not None or told:
            text = f"{name} does not listen on port {expected} (yet)"
            look.notes.append(Note("not_listening", text, False))
        else:
            text = f"{name}: nobody listens on its usual port {expected}, and its own sockets may not be looked at"
            look.notes.append(Note("unreadable", text, True))
    port = ports[0] if ports else expected
    address = _address(table, front, candidates, command.value(*kind.host_flags))
    if address is None:
        text = f"{name} listens only on the loopback address of its own network namespace (container): start it with "
        look.notes.append(Note("unreachable", f"{text}{kind.host_flags[0]} 0.0.0.0", True))
        return None
    scheme = "https" if command.has("--ssl-certfile", "--ssl-cert-file") else "http"
    return port, f"{scheme}://{host_and_port(address, port)}{kind.path}"


def _address(table: ProcessTable, pid: int, candidates: Iterable[Listener], told: str | None) -> str | None:
    """The address at which this exporter reaches a server, from what it listens on, else from its flag."""
    same = table.in_own_network(pid)
    network = table.network(pid)
    listening = sorted(candidates, key=lambda o: (":" in o.address, not o.everywhere, o.address))
    for listener in listening:
        if listener.everywhere and not same:
            if network.primary is not None:
                return network.primary
        elif listener.everywhere:
            return "::1" if ":" in listener.address else "127.0.0.1"
        elif same or not listener.loopback:
            return listener.address
    if listening:
        return None
    # A command line may name any address in the world: only one of this server's own is believed.
    usual = "127.0.0.1" if same else network.primary
    try:
        wanted = ipaddress.ip_address(told or "")
    except ValueError:
        return usual
    return str(wanted) if str(wanted) in network.addresses else usual


def _tell_no_metrics(look: _Look, kind: ServerKind, command: Command, name: str) -> None:
    if kind.needs and not command.has(kind.needs, "--config"):
        look.notes.append(Note("no_metrics", f"{name} was started without {kind.needs}", False))
    if kind.mute and command.has(kind.mute):
        look.notes.append(Note("no_metrics", f"{name} was started with {kind.mute}", False))
