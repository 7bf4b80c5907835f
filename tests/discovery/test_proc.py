"""What the texts under /proc say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.discovery.host import Host, words
from wattline.discovery.processes import Process, ProcessTable, UnreadableError
from wattline.discovery.sockets import Listener, addresses, listeners, primary

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.0
           /24 link UNICAST
        |-- 192.0.2.2
           /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
     |-- 169.254.1.1
        /32 host LOCAL
"""
IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000002 04 40 00 82     eth0
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 00:0 00:0 0 0 0 4711 1 0 100
   1: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A 00:0 00:0 0 0 0 4712 1 0 100
   2: garbage
"""


def test_addresses_are_those_that_others_can_reach() -> None:
    assert addresses(FIB_TRIE, IF_INET6) == ("192.0.2.2", "fd00::2")


def test_the_primary_address_is_in_the_network_of_the_default_route() -> None:
    def route(interface: str, network: str, mask: str) -> str:
        return f"{interface}\t{words(network)}\t00000000\t0001\t0\t0\t0\t{words(mask)}\t0\t0\t0\n"

    table = (
        "Iface ...\n"
        + route("cni0", "10.244.0.0", "255.255.0.0")
        + route("eth1", "0.0.0.0", "0.0.0.0")  # noqa: S104
        + route("eth1", "10.1.2.0", "255.255.255.0")
    )
    assert primary(("10.244.0.1", "10.1.2.3"), table) == "10.1.2.3"
    assert primary(("10.244.0.1", "10.9.9.9"), table) == "10.244.0.1"
    assert primary((), table) is None


def test_an_address_of_ipv4_within_ipv6_is_one_of_ipv4() -> None:
    """The kernel writes words as this machine's numbers; the table is that of a little-endian one."""
    assert listeners(TCP6) == {4711: Listener("::", 30000), 4712: Listener("127.0.0.1", 80)}


def test_a_title_is_one_word_whatever_it_has_overwritten(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.start(7, 1, ["sglang::scheduler_TP0"], name="a (strange) name")
    assert ProcessTable(host.root).process(7) == Process(7, 1, ("sglang::scheduler_TP0",))


def test_a_process_whose_parent_cannot_be_read_is_unreadable(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.start(7, 1, ["x"])
    (tmp_path / "7" / "stat").write_text("7 (x")
    with pytest.raises(UnreadableError, match=r"^/proc/7/stat$"):
        ProcessTable(host.root).process(7)


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    """Cannot be, but nothing here hangs on it."""
    host = Host(tmp_path)
    host.start(7, 8, ["x"])
    host.start(8, 7, ["y"])
    assert [p.pid for p in ProcessTable(host.root).line(7)] == [7, 8]


def test_this_very_process_is_found_with_its_parents() -> None:
    line = ProcessTable().line(os.getpid())
    assert [p.pid for p in line[:2]] == [os.getpid(), os.getppid()]
    assert os.getpid() in [p.pid for p in ProcessTable().below(os.getppid())]
