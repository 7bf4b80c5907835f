"""The command: read a recording, say what it shows, draw it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

from wattline.explain import picture
from wattline.explain.lines import show
from wattline.explain.timeline import timeline
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

    from wattline.analysis.plan import Plan


def run(path: Path, *, plot: Path | None = None, plan: Plan | None = None, out: TextIO | None = None) -> int:
    """Explain a recording.

    Args:
        path: the recording.
        plot: where to draw it, ``.png`` or ``.svg``.
        plan: judge by this instead of the plan in the recording.
        out: for the text; standard output when it is not given.

    Returns:
        The exit code, 0.

    Raises:
        RecordingError: the recording is not understood.
        PictureError: the picture cannot be drawn.
    """
    if plot is not None:
        picture.check(plot)
    recording = read_recording(path)
    found = timeline(replay(recording, plan))
    show(found, recording.header, Console(file=out or sys.stdout, highlight=False), recording.cut_short)
    if plot is not None:
        picture.draw(found, plot, path.name)
    return 0
