"""A check of a recorded phase whose clock does not wait: ``python -m tests.check.on_a_terminal PHASE [--watch]``."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import TYPE_CHECKING

from tests.recording.make import path_of
from wattline.check.watch import judged, run
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.analysis.snapshot import Snapshot


class Rig:
    """Verdicts of a phase, over and over."""

    def __init__(self, phase: str) -> None:
        recording = read_recording(path_of(phase))
        self.plan = recording.header.plan
        self._verdicts: Iterator[Snapshot] = itertools.cycle(replay(recording))

    def judge(self) -> Snapshot:
        return next(self._verdicts)

    def beat(self) -> float:
        return 0.0


def main(phase: str, *flags: str) -> int:
    rig = Rig(phase)
    seconds = None if "--watch" in flags else 30.0
    return asyncio.run(
        run(judged(rig, seconds), rig.plan, seconds=seconds, live="--watch" in flags, as_json="--json" in flags)
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
