"""How long does a scrape take, by the number of GPUs and engines? As Prometheus asks: compressed, on a kept connection.

A cold scrape is the first one after a verdict, which comes every second: it renders everything. That is what each
scrape of one Prometheus is. Then fifty scrapers ask at the same moment.
"""

from __future__ import annotations

import contextlib
import gzip
import time

from bench.host import Host
from bench.scraping import Connection, at_once, percentiles
from bench.tables import Table, number

SIZES = tuple((gpus, engines) for gpus in (1, 8, 16) for engines in (1, 4, 16))
SCRAPERS = 50
BEAT = 1.1
"""Seconds from one cold scrape to the next: a little more than from one verdict to the next."""
SETTLE = 8.0
"""Seconds until every series is there."""


def measure_one(gpus: int, engines: int, scrapes: int, settle: float) -> list[str]:
    """One row."""
    with Host(gpus, engines) as host:
        program, address = host.serve()
        with program, contextlib.ExitStack() as stack:
            program.wait_for(f"{address}/-/ready")
            time.sleep(settle)
            url = f"{address}/metrics"
            one = stack.enter_context(Connection(url))
            cold, body = [], b""
            for _ in range(scrapes):
                time.sleep(BEAT)
                seconds, body = one.scrape()
                cold.append(seconds)
            many = [stack.enter_context(Connection(url)) for _ in range(SCRAPERS)]
            crowd = []
            for _ in range(max(1, scrapes // 5)):
                time.sleep(BEAT)
                crowd += at_once(many)
    text = gzip.decompress(body)
    series = sum(1 for line in text.splitlines() if not line.startswith(b"#"))
    return [
        str(gpus),
        str(engines),
        number(series),
        f"{len(text) / 1e3:.1f}",
        f"{len(body) / 1e3:.1f}",
        *(f"{ms:.1f}" for ms in (*percentiles(cold), *percentiles(crowd))),
    ]


def measure(*, quick: bool = False) -> list[Table]:
    """The table."""
    scrapes, settle = (1, 0.0) if quick else (40, SETTLE)
    columns = ("GPUs", "engines", "series", "KB", "KB sent", "p50 ms", "p99 ms", "50 at once: p50 ms", "p99 ms")
    rows = [measure_one(gpus, engines, scrapes, settle) for gpus, engines in (SIZES[:1] if quick else SIZES)]
    note = (
        f"{scrapes} cold scrapes a row, so that their p99 is the slowest. Of fifty scrapers at once the first "
        "one's answer is rendered and all get the same bytes; the last one waits for 49 answers to be sent."
    )
    return [Table("Scrape latency", columns, rows, note)]
