"""Make the recordings in ``data`` anew: ``python -m tests.recording.make``.

They are kept so that a later version still reads what an earlier one wrote: make one anew only when its phase changed.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.recording.simulated import plan, watch
from wattline.recording.writer import RecordingObserver, RecordingWriter
from wattline.simulation.scenario import SCENARIOS, STORY_NAME, timeline

DATA = Path(__file__).parent / "data"
PHASE_WINDOW = 30.0
PHASE_SECONDS = 45.0
"""Of a phase that is held, after what must have been there before it."""
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def path_of(scenario: str) -> Path:
    return DATA / f"{scenario}.jsonl.gz"


def make(scenario: str) -> None:
    """Record one scenario. The buffered power samples are left out: they would be most of the file."""
    line = timeline(scenario)
    judged = plan() if scenario == STORY_NAME else plan(PHASE_WINDOW)
    seconds = line.cycle_seconds if scenario == STORY_NAME else line.lead_seconds + PHASE_SECONDS
    path = path_of(scenario)
    path.unlink(missing_ok=True)
    with RecordingWriter(path, judged, created=WHEN) as writer:
        observer = RecordingObserver(judged, writer)
        for _ in watch(observer, scenario, 0.0, seconds):
            pass


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for name in sys.argv[1:] or SCENARIOS:
        make(name)
