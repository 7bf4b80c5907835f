"""What benchmarks say: tables, for a terminal and for the page of results."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Table:
    """One table with a sentence or two above it."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def show(self) -> None:
        """Print it."""
        table = RichTable(*self.columns, title=self.title, caption=self.note or None, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        Console(width=150).print(table)

    def markdown(self) -> str:
        """The same for the page."""
        lines = [f"**{self.title}**", ""]
        lines += [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])


def number(value: float, digits: int = 3) -> str:
    """A number with as many digits as mean something."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def machine() -> str:
    """Where this was measured, and what else went on there."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "CPU"
    )
    kernel = platform.release().partition("-")[0]
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, Linux {kernel}, Python {platform.python_version()}, load average {load:.1f}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def write(name: str, tables: Sequence[Table], where: str, page: Path = PAGE) -> None:
    """Put tables into their place on the page, between its two comments.

    Raises:
        ValueError: the page has no such place.
    """
    text = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"{page}: expected the comments 'begin {name}' and 'end {name}', found none")
    body = "\n".join(table.markdown() for table in tables)
    new = f"\n{body}\nMeasured on: {where}.\n\n"
    page.write_text(place.sub(lambda match: match[1] + new + match[2], text), encoding="utf-8")
