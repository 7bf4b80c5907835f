"""What does the whole process cost? CPU time and memory of ``wattline serve`` on a host of eight GPUs and one engine.

The process runs in real time with its default schedule and is scraped every 15 s. CPU time is the kernel's account of
all threads; the calls into NVIDIA's library are counted, so that the driver's share can be told from ours.
"""

from __future__ import annotations

import time

from bench.host import EIGHT_RANKS, ONE_RANK, Host, driver_seconds
from bench.scraping import Connection
from bench.tables import Table, number

WARM_UP = 65.0
"""Seconds: a verdict's window is full then, and costs what it always will."""
SCRAPE_EVERY = 15.0
GPUS = 8


def measure(*, quick: bool = False) -> list[Table]:
    """The table."""
    seconds, warm_up = (0.5, 0.0) if quick else (120.0, WARM_UP)
    rows = []
    for name, engines, text in (("none", 0, ONE_RANK), ("148 KB", 1, ONE_RANK), ("231 KB", 1, EIGHT_RANKS)):
        with Host(GPUS, engines, text=text) as host:
            library = host.library()
            program, address = host.serve(library)
            with program:
                program.wait_for(f"{address}/-/ready")
                time.sleep(warm_up)
                with Connection(f"{address}/metrics") as prometheus:
                    calls, cpu, start = library.counts(), program.cpu_seconds(), time.monotonic()
                    while (left := start + seconds - time.monotonic()) > 0:
                        time.sleep(min(SCRAPE_EVERY, left))
                        prometheus.scrape()
                    took = time.monotonic() - start
                    cpu = program.cpu_seconds() - cpu
                    driver = driver_seconds(calls, library.counts())
                memory = program.memory()
        rows.append(
            [
                name,
                f"{100 * cpu / took:.2f}",
                f"{100 * driver / took:.2f}",
                f"{100 * (cpu - driver) / took:.2f}",
                number(3600 * cpu / took),
                f"{memory.resident:.0f}",
                f"{memory.own:.0f}",
            ]
        )
        if quick:
            break
    columns = ("engine", "% of a core", "in the driver", "in Wattline", "CPU s an hour", "memory MiB", "not shared MiB")
    note = (
        f"{GPUS} GPUs, {seconds:.0f} s a row after {warm_up:.0f} s of warming up, scraped every {SCRAPE_EVERY:.0f} s; "
        "an hour is the same times 3600."
    )
    return [Table("The whole process", columns, rows, note)]
