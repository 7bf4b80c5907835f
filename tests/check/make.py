"""Make the golden outputs anew, to be read before they are kept: ``python -m tests.check.make``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.check.cases import CASES, made
from wattline.check.render import plain
from wattline.check.report import encode

GOLDEN = Path(__file__).parent / "golden"
DIGITS = 6
"""What is kept of a number: the last digits differ between versions of Python."""


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"


def main(cases: list[str]) -> None:
    GOLDEN.mkdir(exist_ok=True)
    if not cases:
        for old in GOLDEN.iterdir():
            old.unlink()
    for case in cases or CASES:
        report = made(case)
        (GOLDEN / f"{case}.txt").write_text(plain(report))
        (GOLDEN / f"{case}.json").write_bytes(pretty(rounded(msgspec.json.decode(encode(report)))))


if __name__ == "__main__":
    main(sys.argv[1:])
