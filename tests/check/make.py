"""Make the golden outputs anew, to be read before they are kept: ``python -m tests.check.make``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.check.cases import made
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


PEOPLE = (
    *(f"demo-{name}" for name in ("idle", "climb_1024", "collectives", "healthy", "wedged", "draining")),
    *(f"demo-{name}" for name in ("partial_idle", "throttled", "engine_down", "gpu_lost")),
    *(f"h200-{name}" for name in ("gemm_bf16-busy", "spin_one_thread-busy", "spin_one_thread-idle", "idle_end-idle")),
    *("no-engine", "no-gpu", "no-power-sensor", "metrics-not-enabled"),
)
PROGRAMS = ("demo-collectives", "demo-engine_down", "no-gpu")
"""Cases whose answers differ in more than numbers, as text and as JSON."""


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for case in PEOPLE:
        (GOLDEN / f"{case}.txt").write_text(plain(made(case)))
    for case in PROGRAMS:
        (GOLDEN / f"{case}.json").write_bytes(pretty(rounded(msgspec.json.decode(encode(made(case))))))


if __name__ == "__main__":
    main()
