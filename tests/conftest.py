"""Rules that hold for every test."""

from __future__ import annotations

import ipaddress
import sys

from hypothesis import settings

# A machine with other work must not make a test fail: none of them measures time.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def loopback_only(event: str, arguments: tuple[object, ...]) -> None:
    """A test neither listens nor calls beyond this machine."""
    if event not in {"socket.bind", "socket.connect"}:
        return
    address = arguments[1]
    # Unix sockets have paths, netlink has numbers.
    if not isinstance(address, tuple) or not address or not isinstance(address[0], str):
        return
    host = address[0].partition("%")[0]
    try:
        allowed = ipaddress.ip_address(host).is_loopback
    except ValueError:
        allowed = host == "localhost"
    if not allowed:
        raise PermissionError(f"a test wants to reach beyond loopback: {event} {host!r}")


sys.addaudithook(loopback_only)
