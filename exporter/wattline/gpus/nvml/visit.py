"""One round of questions to one GPU, and the one place that decides what a failing call means."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.gpus.nvml.calls import CLOSED, LOST, CallFailedError, call
from wattline.gpus.nvml.names import HINTS, LOSSES
from wattline.gpus.source import UNSUPPORTED, GpuLostError, SourceError
from wattline.readings import GpuIdentity, ReadingError

EARLY = 0.4
"""A visit that comes this many seconds before a reading is due is on time: schedules jitter."""
ASK_AGAIN = 600.0
"""Seconds until a call that was refused as not supported is made again: drivers say so too early, or by mistake."""


@dataclass(slots=True)
class Gpu:
    """One GPU while the library is open."""

    handle: Any
    identity: GpuIdentity
    refused: dict[tuple[str, int], float] = field(default_factory=dict)
    """When this GPU refused a call as not supported, by (reading, number of the attempt)."""
    lost: str | None = None
    answered: dict[str, float] = field(default_factory=dict)
    """When a reading that is dear was last obtained."""
    constants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers that never change."""
    power_samples_until: int = 0
    """Stamp of the newest buffered power sample seen, in µs of the driver's wall clock."""
    gpm: Gpm | None = None


@dataclass(slots=True)
class Gpm:
    """Two GPM samples that take turns in being the older one."""

    older: Any
    newer: Any
    taken_at: float | None = None


Attempt = Callable[[Gpu], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """A reading and the calls that can answer it: the next one is tried when one fails, for whatever reason."""

    reading: str
    attempts: tuple[Attempt, ...]
    unsupported: Mapping[str, Any] = field(default_factory=dict)
    """What it tells that the GPU supports none of the calls."""
    constant: bool = False
    """The answer never changes: it is asked for once."""
    every: float = 0.0
    """Seconds from one answer to the next question, for what is dear: visits in between leave the reading out."""


class Visit:
    """One round of questions to one GPU: what was answered and what failed.

    Args:
        gpu: whom to ask.
        reported: readings of this GPU whose lack of support has been told. It is told once: it is no failure.
        now: monotonic seconds.
    """

    def __init__(self, gpu: Gpu, reported: set[str], now: float) -> None:
        self.gpu = gpu
        self.values: dict[str, Any] = {}
        self.errors: list[ReadingError] = []
        self._now = now
        self._reported = reported
        self._answered = 0
        self._failed: Counter[str] = Counter()

    def ask(self, *questions: Question) -> None:
        """Put questions to the GPU.

        Raises:
            GpuLostError: the GPU is gone.
            SourceError: the library is gone.
        """
        for question in questions:
            since = self._now - self.gpu.answered.get(question.reading, -math.inf)
            if since >= question.every - EARLY:
                self._ask(question)
            if question.unsupported and all(self.refused(question.reading, n) for n in range(len(question.attempts))):
                self.values |= question.unsupported

    def refused(self, reading: str, number: int) -> bool:
        """Whether the GPU has refused a call as not supported, not too long ago."""
        return self._now - self.gpu.refused.get((reading, number), -math.inf) < ASK_AGAIN

    def refuse(self, reading: str, number: int) -> None:
        """Note that the GPU does not support a call."""
        self.gpu.refused[reading, number] = self._now

    def _ask(self, question: Question) -> None:
        if question.reading in self.gpu.constants:
            self.values |= self.gpu.constants[question.reading]
            return
        kind: str | None = None
        for number, attempt in enumerate(question.attempts):
            if self.refused(question.reading, number):
                continue
            try:
                answer = self._attempt(attempt)
            except CallFailedError as failed:
                kind = failed.kind
                if kind in UNSUPPORTED:
                    self.refuse(question.reading, number)
            else:
                self.values |= answer
                self._answered += 1
                if question.constant:
                    self.gpu.constants[question.reading] = answer
                if question.every:
                    self.gpu.answered[question.reading] = self._now
                return
        if kind is not None:
            self.failed(question.reading, kind)

    def _attempt(self, attempt: Attempt) -> dict[str, Any]:
        try:
            return attempt(self.gpu)
        except CallFailedError as failed:
            if failed.kind in LOST:
                self.gpu.lost = failed.kind
                raise lost(failed.kind) from None
            if failed.kind in CLOSED:
                raise closed(failed.kind) from None
            raise

    def failed(self, reading: str, kind: str) -> None:
        """Note that one reading was not obtained."""
        if kind in UNSUPPORTED:
            self._answered += 1
            if reading in self._reported:
                return
            self._reported.add(reading)
        else:
            self._failed[kind] += 1
        self.errors.append(ReadingError(reading, kind))

    def end(self) -> None:
        """Raise when nothing at all was answered: then the GPU or the library fails, and not a reading."""
        if self._answered or self._failed.total() < 2:  # noqa: PLR2004 - one failing call proves nothing
            return
        try:
            call("nvmlDeviceGetCount")
        except CallFailedError as failed:
            raise closed(failed.kind) from None
        self.gpu.lost = self._failed.most_common(1)[0][0]
        raise lost(self.gpu.lost)


def lost(kind: str) -> GpuLostError:
    """Say that a GPU is gone."""
    return GpuLostError(kind, LOSSES.get(kind, f"the GPU answers every call with '{kind}'"))


def closed(kind: str) -> SourceError:
    """Say that the library is gone, and what an operator can do."""
    hint = HINTS.get(kind, f"NVML answers '{kind}'")
    if kind == "lib_rm_version_mismatch":
        # NVML tells neither version before it is open: one is in the name of its file, one is the module's.
        library = _find(Path("/proc/self/maps"), r"libnvidia-ml\.so\.(\d+\.[\d.]+)")
        module = _find(Path("/proc/driver/nvidia/version"), r"NVRM version:.*?\s(\d+\.[\d.]+)\s")
        hint += f" (library {library}, kernel module {module})"
    return SourceError(kind, hint)


def _find(path: Path, pattern: str) -> str:
    try:
        found = re.search(pattern, path.read_text(errors="replace"))
    except OSError:
        found = None
    return found.group(1) if found else "unknown"
