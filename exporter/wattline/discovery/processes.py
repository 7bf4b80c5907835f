"""The processes of this host as ``/proc`` tells them: the only file that reads it.

Everything is read when it is asked for and kept for the life of one :class:`ProcessTable`, so that one look at the host
is one consistent look. Reading the command line of a process can block while that process holds its memory map: use a
thread that may be lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from wattline.discovery.sockets import Listener, addresses, listeners, primary

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed number of the namespace of the host itself (``PROC_PID_INIT_INO``)."""
GPU_DEVICES = ("/dev/nvidia", "/dev/dxg")
"""What a process that uses a GPU holds open; the second on WSL."""
_MOST_ARGUMENT_BYTES = 1 << 17
_POD_GROUP = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?=[./])")
"""As the kubelet names it: ``kubepods/burstable/podUID/``, or for systemd ``kubepods-burstable-podUID.slice`` with the
dashes of the UID as underscores."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process."""

    pid: int
    parent: int
    """0 for the first process of a PID namespace."""
    argv: tuple[str, ...]
    """Its command line, or the title that it has given itself. May hold secrets: never to be shown."""


@dataclass(frozen=True, slots=True)
class Network:
    """The network namespace of a process."""

    key: object
    """Equal for processes of one namespace."""
    addresses: tuple[str, ...]
    """Those that other namespaces can reach."""
    primary: str | None


class UnreadableError(Exception):
    """A process is there but does not let itself be read; the message says which file."""


class ProcessTable:
    """One look at the processes under ``root``.

    Args:
        root: where proc is mounted.
        gpu_devices: beginnings of the paths that a process which uses a GPU holds open.
    """

    def __init__(self, root: Path = Path("/proc"), gpu_devices: tuple[str, ...] = GPU_DEVICES) -> None:
        self._root = root
        self._gpu_devices = gpu_devices
        self._processes: dict[int, Process | None] = {}
        self._networks: dict[int, Network] = {}

    # Processes.

    def process(self, pid: int) -> Process | None:
        """A process by its id; ``None`` when there is none.

        Raises:
            UnreadableError: it is there, but this exporter may not look.
        """
        if pid not in self._processes:
            parent = self._parent(pid)
            self._processes[pid] = None if parent is None else Process(pid, parent, self._argv(pid))
        return self._processes[pid]

    def line(self, pid: int) -> list[Process]:
        """The process and its ancestors, as far up as can be read; the process itself is first.

        Raises:
            UnreadableError: the process itself may not be looked at.
        """
        found: list[Process] = []
        seen: set[int] = set()
        while pid and pid not in seen:
            seen.add(pid)
            try:
                process = self.process(pid)
            except UnreadableError:
                if not found:
                    raise
                break
            if process is None:
                break
            found.append(process)
            pid = process.parent
        return found

    def below(self, pid: int) -> list[Process]:
        """Everything that descends from a process and can be read, nearest first."""
        found = []
        waiting = list(self._children.get(pid, ()))
        while waiting:
            child = waiting.pop(0)
            waiting += self._children.get(child, ())
            try:
                process = self.process(child)
            except UnreadableError:
                continue
            if process is not None:
                found.append(process)
        return found

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for pid in (int(entry.name) for entry in self._root.iterdir() if entry.name.isdecimal()):
            try:
                parent = self._parent(pid)
            except UnreadableError:
                continue
            if parent is not None:
                children.setdefault(parent, []).append(pid)
        return {parent: sorted(pids) for parent, pids in children.items()}

    def _parent(self, pid: int) -> int | None:
        # The name in parentheses may itself hold parentheses and spaces.
        stat = self._read(pid, "stat")
        if stat is None:
            return None
        try:
            return int(stat.rpartition(b")")[2].split()[1])
        except (IndexError, ValueError):
            raise UnreadableError(f"/proc/{pid}/stat") from None

    def _argv(self, pid: int) -> tuple[str, ...]:
        words = (self._read(pid, "cmdline") or b"").split(b"\0")
        # A title overwrites the arguments and leaves zeros behind it.
        while words and not words[-1]:
            words.pop()
        return tuple(word.decode("utf-8", "replace") for word in words)

    def environment(self, pid: int, name: str) -> str | None:
        """One variable of a process; ``None`` when it is not set or not to be read."""
        try:
            variables = (self._read(pid, "environ") or b"").split(b"\0")
        except UnreadableError:
            return None
        marked = name.encode() + b"="
        return next((v[len(marked) :].decode("utf-8", "replace") for v in variables if v.startswith(marked)), None)

    def _read(self, pid: int, name: str) -> bytes | None:
        try:
            with (self._root / str(pid) / name).open("rb") as file:
                return file.read(_MOST_ARGUMENT_BYTES)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            return None
        except OSError:
            raise UnreadableError(f"/proc/{pid}/{name}") from None

    def pod(self, pid: int) -> str | None:
        """The UID of the pod that a process belongs to, from the name of its control group; ``None`` when of none."""
        try:
            groups = (self._read(pid, "cgroup") or b"").decode("ascii", "replace")
        except UnreadableError:
            return None
        match = _POD_GROUP.search(groups)
        return match[1].replace("_", "-") if match else None

    def holds_gpu(self, pid: int) -> bool | None:
        """Whether a process has a GPU's device open; ``None`` when its files may not be looked at."""
        links = self._links(pid)
        return None if links is None else any(link.startswith(self._gpu_devices) for link in links)

    def _links(self, pid: int) -> list[str] | None:
        folder = self._root / str(pid) / "fd"
        links = []
        try:
            for entry in folder.iterdir():
                try:
                    links.append(str(entry.readlink()))
                except FileNotFoundError:
                    continue
        except OSError:
            return None
        return links

    @cached_property
    def of_the_host(self) -> bool:
        """Whether these are the ids by which the host, and so NVML, knows its processes."""
        try:
            return str((self._root / "self" / "ns" / "pid").readlink()) == INITIAL_PID_NAMESPACE
        except OSError:
            return False

    @cached_property
    def hides_others(self) -> bool:
        """Whether proc is mounted so that only one's own processes are in it (``hidepid=2``)."""
        return not (self._root / "1").exists()

    # Network.

    def listeners(self, pid: int) -> tuple[Listener, ...] | None:
        """What a process listens on; ``None`` when its files may not be looked at."""
        links = self._links(pid)
        if links is None:
            return None
        inodes = {int(m[1]) for link in links if (m := re.fullmatch(r"socket:\[(\d+)\]", link))}
        return tuple(listener for inode, listener in self._listening(pid).items() if inode in inodes)

    def listening_around(self, pid: int) -> tuple[Listener, ...]:
        """Everything that anybody listens on in the network namespace of a process."""
        return tuple(self._listening(pid).values())

    def _listening(self, pid: int) -> dict[int, Listener]:
        return listeners(self._text(str(pid), "net/tcp")) | listeners(self._text(str(pid), "net/tcp6"))

    def network(self, pid: int) -> Network:
        """The network namespace of a process."""
        if pid not in self._networks:
            self._networks[pid] = self._network(str(pid))
        return self._networks[pid]

    @cached_property
    def own_network(self) -> Network:
        """The network namespace of this exporter."""
        return self._network("self")

    def in_own_network(self, pid: int) -> bool:
        """Whether a process is reached at the loopback addresses."""
        theirs, ours = self.network(pid), self.own_network
        if isinstance(theirs.key, str) and isinstance(ours.key, str):
            return theirs.key == ours.key
        # Not allowed to look: two namespaces do not have the same addresses.
        return theirs.addresses == ours.addresses

    def _network(self, pid: str) -> Network:
        known = addresses(self._text(pid, "net/fib_trie"), self._text(pid, "net/if_inet6"))
        try:
            key: object = str((self._root / pid / "ns" / "net").readlink())
        except OSError:
            key = None
        return Network(key, known, primary(known, self._text(pid, "net/route")))

    def _text(self, pid: str, name: str) -> str:
        try:
            return (self._root / pid / name).read_text("ascii", "replace")
        except OSError:
            return ""
