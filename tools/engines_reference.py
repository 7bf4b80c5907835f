"""The table of evidence in docs/engines.md, from the tables of the engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.engines.tables import BUILT_IN

if TYPE_CHECKING:
    from wattline.engines.kinds import Off

TARGET = Path(__file__).parent.parent / "docs" / "engines.md"
_TABLE = re.compile(r"(<!-- evidence:[^\n]*-->\n).*?(?=<!-- end -->)", re.DOTALL)


def written() -> dict[Path, str]:
    """docs/engines.md with its table."""
    text, count = _TABLE.subn(lambda found: f"{found[1]}\n{table()}\n", TARGET.read_text(encoding="utf-8"))
    if count != 1:
        raise LookupError(f"{TARGET}: expected one table of evidence between its two comments, found {count}")
    return {TARGET: text}


def table() -> str:
    """One row for each engine."""
    heads = ("engine", "compared on", "running + queued", "front", "inside, by summed time", "tokens", "longest pause")
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for kind in BUILT_IN:
        seen = kind.compared
        if seen is None:
            rows.append(f"| {kind.name} | not compared | | | | | |")
            continue
        off = " | ".join(map(_off, (seen.held, seen.front, seen.inside, seen.tokens)))
        pause = "-" if seen.pause_seconds is None else f"{seen.pause_seconds:.1f} s"
        rows.append(f"| {kind.name} | {seen.release} | {off} | {pause} |")
    return "\n".join((*rows, ""))


def _off(off: Off | None) -> str:
    if off is None:
        return "-"
    least, most = (
        f"{100 * share:+.0f} %".replace("+0 %", "0 %").replace("-0 %", "0 %") for share in (off.least, off.most)
    )
    return least if least == most else f"{least} to {most}"
