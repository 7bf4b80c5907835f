"""A host in a folder: process trees as /proc shows them."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass, field
from pathlib import Path

from wattline.discovery.processes import INITIAL_PID_NAMESPACE
from wattline.readings import GpuCondition, GpuProcess

TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROUTE_HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
HOST_NETWORK = "net:[4026531840]"


def words(address: str) -> str:
    packed = ipaddress.ip_address(address).packed
    return "".join(f"{int.from_bytes(packed[i : i + 4], sys.byteorder):08X}" for i in range(0, len(packed), 4))


@dataclass
class Namespace:
    """A network namespace: its addresses, and what listens in it as (address, port, inode)."""

    key: str
    addresses: dict[str, str] = field(default_factory=dict)
    """Address by interface; eth0 has the default route."""
    sockets: list[tuple[str, int, int]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for name, version in (("tcp", 4), ("tcp6", 6)):
            lines = [
                f"   {n}: {words(a)}:{port:04X} {words('0.0.0.0' if version == 4 else '::')}:0000 0A 00000000:00000000 "  # noqa: S104
                f"00:00000000 00000000     0        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
                for n, (a, port, inode) in enumerate(self.sockets)
                if ipaddress.ip_address(a).version == version
            ]
            # An established connection, which every process holds, is no listener.
            noise = "   9: 0100007F:0050 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 99999 1\n"
            (folder / name).write_text(TCP_HEAD + "".join(lines) + (noise if version == 4 else ""))
        trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
        for address in self.addresses.values():
            trie += f"     |-- {address}\n        /32 host LOCAL\n"
        (folder / "fib_trie").write_text(trie)
        (folder / "if_inet6").write_text("00000000000000000000000000000001 01 80 10 80       lo\n")
        routes = ROUTE_HEAD
        for interface, address in self.addresses.items():
            if interface == "eth0":
                routes += f"{interface}\t00000000\t00000000\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            near = str(ipaddress.ip_network(f"{address}/24", strict=False).network_address)
            routes += f"{interface}\t{words(near)}\t00000000\t0001\t0\t0\t0\t{words('255.255.255.0')}\t0\t0\t0\n"
        (folder / "route").write_text(routes)


class Host:
    """Writes processes under ``root``; a process is removed with :meth:`end`."""

    def __init__(self, root: Path, *, pid_namespace: str = INITIAL_PID_NAMESPACE) -> None:
        self.root = root
        self.network = Namespace(HOST_NETWORK, {"docker0": "172.17.0.1", "eth0": "10.0.0.7"})
        self._inode = 1000
        self.start(1, 0, ["/sbin/init"])
        own = root / "self"
        (own / "ns").mkdir(parents=True)
        (own / "ns" / "pid").symlink_to(pid_namespace)
        (own / "ns" / "net").symlink_to(HOST_NETWORK)
        self.network.write(own / "net")

    def start(
        self,
        pid: int,
        parent: int,
        argv: list[str],
        *,
        listens: list[tuple[str, int]] | None = None,
        gpu: bool = False,
        network: Namespace | None = None,
        environment: dict[str, str] | None = None,
        name: str = "python3",
        group: str = "/system.slice/ssh.service",
    ) -> int:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "ns").mkdir()
        network = network or self.network
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194560 1 1 0 0\n")
        # A title leaves zeros where longer arguments were.
        tail = "\0" * 20 if "::" in argv[0] else "\0"
        (folder / "cmdline").write_text("\0".join(argv) + tail)
        (folder / "environ").write_text("".join(f"{k}={v}\0" for k, v in (environment or {}).items()))
        (folder / "cgroup").write_text(f"0::{group}\n")
        (folder / "ns" / "net").symlink_to(network.key)
        (folder / "fd" / "0").symlink_to("/dev/null")
        (folder / "fd" / "5").symlink_to("socket:[99999]")
        if gpu:
            (folder / "fd" / "7").symlink_to("/dev/nvidiactl")
        for number, (address, port) in enumerate(listens or ()):
            self._inode += 1
            network.sockets.append((address, port, self._inode))
            (folder / "fd" / str(20 + number)).symlink_to(f"socket:[{self._inode}]")
        network.write(folder / "net")
        if network is self.network and (self.root / "self").exists():
            network.write(self.root / "self" / "net")
        return pid

    def end(self, *pids: int) -> None:
        for pid in pids:
            folder = self.root / str(pid)
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            folder.rmdir()

    def forbid(self, pid: int, *names: str) -> None:
        """Make files of a process unreadable, whoever asks: a folder cannot be read as a file, nor a file listed."""
        for name in names:
            path = self.root / str(pid) / name
            if path.is_dir():
                for entry in path.iterdir():
                    entry.unlink()
                path.rmdir()
                path.write_text("")
            else:
                path.unlink()
                path.mkdir()

    # Servers as they really start.

    def sglang(
        self,
        pid: int,
        ranks: list[str],
        *options: str,
        listens: list[tuple[str, int]] | None = None,
        network: Namespace | None = None,
        controller: bool = False,
        command: tuple[str, ...] = ("/opt/venv/bin/python3", "-m", "sglang.launch_server"),
    ) -> list[int]:
        """A launcher, its schedulers of these ranks, and its detokenizer; returns the schedulers' ids."""
        self.start(pid, 1, [*command, *options], listens=listens, network=network)
        parent = pid
        if controller:
            parent = self.start(pid + 90, pid, ["sglang::data_parallel_controller"], network=network)
        self.start(pid + 91, pid, ["sglang::detokenizer"], network=network)
        return [
            self.start(
                pid + 1 + number,
                parent,
                [f"sglang::scheduler{f'_{rank}' if rank else ''}"],
                gpu=True,
                network=network,
                name="sglang::schedul",
            )
            for number, rank in enumerate(ranks)
        ]


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012x}"


def conditions(pids: list[list[int] | None], *, t: float = 100.0, memory: float = 90e9) -> dict[str, GpuCondition]:
    """The processes of each GPU in the order of their index; ``None`` where the driver does not tell."""
    return {
        uuid(index): GpuCondition(
            t=t,
            uuid=uuid(index),
            memory_used_bytes=memory,
            processes=None if of is None else tuple(GpuProcess(pid) for pid in of),
        )
        for index, of in enumerate(pids)
    }
