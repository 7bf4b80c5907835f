"""Rules that hold for every test."""

from __future__ import annotations

import ipaddress
import logging
import sys
from collections.abc import Iterator

import pytest
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


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The program sets up its log for the whole process; a test that calls it in here must not do so for the others."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [h for h in root.handlers if type(h) is logging.StreamHandler and h not in handlers]:
        root.removeHandler(handler)
