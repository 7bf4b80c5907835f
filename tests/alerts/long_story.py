"""``wattline demo`` with phases that leave a busy machine some seconds: what is late by one is late by twenty of these.

The pages of the story as it is are looked at without a clock, in ``tests/simulation/test_alerts.py``. This takes the
options of ``wattline demo``. The phases are those of the story; only their order and length are different.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from unittest import mock

from wattline.cli import main
from wattline.simulation.scenario import STORY, Timeline

SECONDS = (
    ("idle", 90),
    ("healthy", 150),
    ("climb_1024", 300),
    ("benchmark_over", 420),
    ("healthy", 120),
    ("wedged", 300),
    ("draining", 30),
    ("healthy", 100_000),
)
"""Phase after phase, in simulated seconds."""


def long_story(_: str) -> Timeline:
    phases = {phase.name: phase for phase in STORY}
    return Timeline(tuple(replace(phases[name], seconds=seconds) for name, seconds in SECONDS))


if __name__ == "__main__":
    with mock.patch("wattline.simulation.demo.timeline", long_story):
        sys.exit(main(["demo", *sys.argv[1:]]))
