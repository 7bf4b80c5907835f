"""The benchmarks that need no GPU: ``python -m bench.run [NAME ...] [--quick] [--write]``.

Without a name all of them run, which takes half an hour. ``--write`` puts the tables on ``docs/benchmarks.md``,
``--quick`` only shows that everything runs. They need a C compiler, and a machine that does little else.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from bench import peers, pieces, process, recorded_power, scrape, verdicts
from bench.tables import machine, write

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCHMARKS = {
    "scrape": scrape,
    "process": process,
    "peers": peers,
    "pieces": pieces,
    "power": recorded_power,
    "verdicts": verdicts,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and print its tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="with numbers too small to mean anything")
    parser.add_argument("--write", action="store_true", help="put the tables on docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: expected some of {', '.join(BENCHMARKS)}")
    console = Console(stderr=True)
    for name in options.names or BENCHMARKS:
        before = machine()
        console.print(f"{name}: {before}")
        tables = BENCHMARKS[name].measure(quick=options.quick)
        for table in tables:
            table.show()
        if options.write:
            write(name, tables, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
