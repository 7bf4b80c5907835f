"""Listening sockets and addresses of a network namespace, from the texts under ``/proc/PID/net``.

The formats are described in proc(5) and in the kernel's ``Documentation/networking/proc_net_tcp.rst``.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTEN = "0A"
_IPV4_HEX = 8
_ROUTE_UP = 0x1


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP socket that waits for connections."""

    address: str
    """As :mod:`ipaddress` writes it; an IPv4 address that is mapped into IPv6 is written as IPv4."""
    port: int

    @property
    def everywhere(self) -> bool:
        """Whether it listens on every address of its network namespace."""
        return ipaddress.ip_address(self.address).is_unspecified

    @property
    def loopback(self) -> bool:
        """Whether only its own network namespace reaches it."""
        return ipaddress.ip_address(self.address).is_loopback


def listeners(table: str) -> dict[int, Listener]:
    """The listening sockets of ``/proc/PID/net/tcp`` or ``tcp6``, by inode. Lines that cannot be read are skipped."""
    found = {}
    for line in table.splitlines()[1:]:
        words = line.split()
        try:
            local, state, inode = words[1], words[3], int(words[9])
            if state == _LISTEN:
                address, port = local.split(":")
                found[inode] = Listener(_address(address), int(port, 16))
        except (IndexError, ValueError):
            continue
    return found


def _address(text: str) -> str:
    """The kernel writes 32-bit words of network order as numbers of this machine."""
    packed = b"".join(
        int(text[i : i + _IPV4_HEX], 16).to_bytes(4, sys.byteorder) for i in range(0, len(text), _IPV4_HEX)
    )
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def addresses(fib_trie: str, if_inet6: str = "") -> tuple[str, ...]:
    """The addresses of a network namespace that others can reach, from ``fib_trie`` and ``if_inet6``; IPv4 first."""
    found: dict[str, None] = {}
    last = ""
    for line in fib_trie.splitlines():
        if match := re.search(r"\|--\s+(\S+)", line):
            last = match[1]
        elif "/32 host LOCAL" in line:
            found[last] = None
    for line in if_inet6.splitlines():
        words = line.split()
        if words and len(words[0]) == 2 * 16:
            found[str(ipaddress.IPv6Address(bytes.fromhex(words[0])))] = None
    return tuple(a for a in found if _reachable(a))


def _reachable(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def primary(known: tuple[str, ...], route: str) -> str | None:
    """The address that faces the outside: that in the network of the default route, else the first."""
    default = next((name for name, network in _routes(route) if network.prefixlen == 0), None)
    near = [network for name, network in _routes(route) if name == default and network.prefixlen]
    for text in known:
        if any(ipaddress.ip_address(text) in network for network in near):
            return text
    return known[0] if known else None


def _routes(text: str) -> Iterator[tuple[str, ipaddress.IPv4Network]]:
    for line in text.splitlines()[1:]:
        words = line.split()
        try:
            name, destination, flags, mask = words[0], words[1], int(words[3], 16), words[7]
            if flags & _ROUTE_UP:
                yield name, ipaddress.IPv4Network(f"{_address(destination)}/{_address(mask)}")
        except (IndexError, ValueError):
            continue


def host_and_port(address: str, port: int) -> str:
    """As a URL wants them: IPv6 in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
