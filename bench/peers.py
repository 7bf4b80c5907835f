"""Wattline beside its peers: all at the same time, on the same host of eight GPUs, each over a library of its own.

Peers: nvitop-exporter (when it is installed: dependency group ``bench``), and the loop over nvidia-ml-py that one
writes in an afternoon. All read the GPUs every second. ``nvidia-smi`` needs a real driver and is not among them.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.acceptance import free_port
from bench.host import Host, Program, driver_seconds
from bench.scraping import Connection, percentiles
from bench.tables import Table, number

if TYPE_CHECKING:
    from tests.nvml.standin import StandIn

GPUS = 8
WARM_UP = 65.0
SCRAPE_EVERY = 15.0
BEAT = 1.1
GZIP = b"\x1f\x8b"
ALONE = "Wattline, GPUs alone"
COLUMNS = (
    "",
    "series",
    "% of a core",
    "in the driver",
    "own",
    "µs a series and second",
    "scrape p50 ms",
    "p99 ms",
    "memory MiB",
)
RATIOS = ("CPU", "CPU a series", "scrape p50", "scrape p99", "memory")


@dataclass(frozen=True, slots=True)
class Peer:
    """One that runs, and what it cost while it was measured."""

    name: str
    program: Program
    library: StandIn
    url: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one peer."""

    series: int
    cpu: float
    """Share of a core."""
    driver: float
    p50: float
    p99: float
    memory: float

    @property
    def own(self) -> float:
        """Share of a core outside the driver."""
        return self.cpu - self.driver

    @property
    def each(self) -> float:
        """Microseconds of CPU a second and series."""
        return 1e6 * self.cpu / self.series


def start(stack: contextlib.ExitStack) -> list[Peer]:
    """All that can be run here."""
    peers = []
    for name, engines in (("Wattline, with an engine", 1), (ALONE, 0)):
        host = stack.enter_context(Host(GPUS, engines))
        library = host.library()
        program, address = host.serve(library)
        peers.append(Peer(name, stack.enter_context(program), library, f"{address}/metrics"))
    host = stack.enter_context(Host(GPUS, 0))
    others = {"loop over nvidia-ml-py": ("bench.naive_exporter", ["{port}"])}
    if importlib.util.find_spec("nvitop_exporter"):
        others["nvitop-exporter"] = ("nvitop_exporter", ["--bind-address", "127.0.0.1", "--port", "{port}"])
    for name, (module, arguments) in others.items():
        port, library = free_port(), host.library()
        command = (sys.executable, "-m", module, *(a.format(port=port) for a in arguments))
        program = stack.enter_context(Program(*command, environment=library.environment))
        peers.append(Peer(name, program, library, f"http://127.0.0.1:{port}/metrics"))
    for peer in peers:
        peer.program.wait_for(peer.url)
    return peers


def costs(peers: list[Peer], seconds: float, scrapes: int) -> dict[str, Cost]:
    """What each cost in the same stretch of time, and then how long scrapes took."""
    calls = {p.name: p.library.counts() for p in peers}
    cpu = {p.name: p.program.cpu_seconds() for p in peers}
    begun = time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        time.sleep(min(SCRAPE_EVERY, left))
        for peer in peers:
            scrape(peer)
    lasted = time.monotonic() - begun
    cpu = {p.name: (p.program.cpu_seconds() - cpu[p.name]) / lasted for p in peers}
    driver = {p.name: driver_seconds(calls[p.name], p.library.counts()) / lasted for p in peers}
    waited: dict[str, list[float]] = {p.name: [] for p in peers}
    bodies: dict[str, bytes] = {}
    for _ in range(scrapes):
        time.sleep(BEAT)
        for peer in peers:
            took, bodies[peer.name] = scrape(peer)
            waited[peer.name].append(took)
    found = {}
    for peer in peers:
        text = gzip.decompress(body) if (body := bodies[peer.name]).startswith(GZIP) else body
        p50, p99 = percentiles(waited[peer.name])
        found[peer.name] = Cost(
            series=sum(1 for line in text.splitlines() if line and not line.startswith(b"#")),
            cpu=cpu[peer.name],
            driver=driver[peer.name],
            p50=p50,
            p99=p99,
            memory=peer.program.memory().resident,
        )
    return found


def scrape(peer: Peer) -> tuple[float, bytes]:
    """One scrape on a connection of its own: not all of them keep one."""
    with Connection(peer.url) as connection:
        return connection.scrape()


def ratio(theirs: float, ours: float) -> str:
    """How many times as much; a dash where ours is too little to be seen."""
    return f"{theirs / ours:.1f}" if ours else "-"


BETTER = (
    "Where a peer is better: both hold less, since neither keeps the window of every reading, nor has an HTTP client "
    "for engines (aiohttp is 17 MiB of ours). The loop answers sooner, having a seventh of the series to write. A loop "
    "of `nvidia-smi` needs a real driver, and has not been measured."
)


def measure(*, quick: bool = False) -> list[Table]:
    """What each costs, and the ratios to Wattline over the same GPUs."""
    with contextlib.ExitStack() as stack:
        peers = start(stack)
        time.sleep(0.0 if quick else WARM_UP)
        found = costs(peers, 0.5, 1) if quick else costs(peers, 120.0, 60)
    rows = [
        [
            name,
            number(c.series),
            *(f"{100 * share:.2f}" for share in (c.cpu, c.driver, c.own)),
            number(c.each),
            f"{c.p50:.1f}",
            f"{c.p99:.1f}",
            f"{c.memory:.0f}",
        ]
        for name, c in found.items()
    ]
    ours = found[ALONE]
    ratios = [
        [
            name,
            ratio(c.cpu, ours.cpu),
            ratio(c.each, ours.each),
            ratio(c.p50, ours.p50),
            ratio(c.p99, ours.p99),
            ratio(c.memory, ours.memory),
        ]
        for name, c in found.items()
        if not name.startswith("Wattline")
    ]
    note = (
        f"{GPUS} GPUs read every second, all peers at once; CPU while each is scraped every {SCRAPE_EVERY:.0f} s, then "
        "the latency of scrapes a second apart, each on a new connection."
    )
    return [
        Table("Beside its peers", COLUMNS, rows, note),
        Table("A peer's cost over Wattline's on the same GPUs", ("", *RATIOS), ratios, BETTER),
    ]
