"""The table of thresholds in docs/configuration.md, from the structure that judging compares with."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from wattline.analysis.causes import Cause
from wattline.analysis.thresholds import Thresholds

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"
_TABLE = re.compile(r"(<!-- thresholds:[^\n]*-->\n).*?(?=<!-- end -->)", re.DOTALL)


def written() -> dict[Path, str]:
    """docs/configuration.md with its table."""
    text, count = _TABLE.subn(lambda found: f"{found[1]}\n{table()}\n", TARGET.read_text(encoding="utf-8"))
    if count != 1:
        raise LookupError(f"{TARGET}: expected one table of thresholds between its two comments, found {count}")
    return {TARGET: text}


def table() -> str:
    """One row for each threshold, with the causes that compare with it."""
    meanings = msgspec.json.schema(Thresholds)["$defs"]["Thresholds"]["properties"]
    rows = ["| key | default | cause | meaning and evidence |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(Thresholds):
        causes = ", ".join(f"`{cause}`" for cause in Cause if field.name in cause.record.thresholds)
        rows.append(f"| `{field.name}` | {field.default:.10g} | {causes} | {meanings[field.name]['description']} |")
    return "\n".join((*rows, ""))
