"""Make the golden timelines anew, to be read before they are kept: ``python -m tests.explain.make``."""

from __future__ import annotations

import io
from pathlib import Path

from tests.recording.make import path_of
from wattline.explain.explain import run

GOLDEN = Path(__file__).parent / "golden"
EXPLAINED = ("story", "wedged", "engine_down", "gpu_lost", "limit_lowered")


def explained(scenario: str) -> str:
    """What is said about a recording of the simulated rig."""
    out = io.StringIO()
    assert run(path_of(scenario), out=out) == 0
    return out.getvalue()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for scenario in EXPLAINED:
        (GOLDEN / f"{scenario}.txt").write_text(explained(scenario))
