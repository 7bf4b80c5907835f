"""How well each source of GPU readings is read."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattline.gpus.plausibility import IMPLAUSIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wattline.readings import ReadingError

log = logging.getLogger("wattline.gpus")


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How well one source was read until now. The source is a library (``nvml``) or one GPU (its UUID)."""

    source: str
    up: bool
    """Whether it is read now. Lost GPUs stay listed, as not up."""
    reason: str = ""
    """Why it is not up, as a bounded word such as ``gpu_is_lost``, ``timeout``, ``library_not_found``; else empty."""
    detail: str = ""
    """The reason in a sentence."""
    last_success: float | None = None
    """When it was last read, on the reader's monotonic clock in seconds; ``None`` before the first time."""
    age_seconds: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    """Calls and readings that failed, by kind."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Implausible readings that were dropped, by reading."""


class Ledger:
    """Keeps the account of one source. Logs when its state changes, one line each, and at no other time."""

    def __init__(self, source: str, *, noun: str) -> None:
        self.source = source
        self.reason: str | None = "starting"
        """Why it is not read; ``None`` while it is."""
        self._detail = "not read yet"
        self._to_tell = f"{noun} {source} is read"
        self._noun = noun
        self._complaints: set[str] = set()
        self._last_success: float | None = None
        self._errors: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    def succeeded(self, now: float) -> None:
        """Note that the source is read."""
        self.seen(now)
        if self.reason is not None and self._to_tell:
            log.info("%s", self._to_tell)
        self._to_tell = ""
        self.reason, self._detail = None, ""

    def seen(self, now: float) -> None:
        """Note that something was read from it."""
        self._last_success = now

    def failed(self, reason: str, detail: str) -> None:
        """Note that the source is not read any more, and count that."""
        self._errors[reason] += 1
        if self.reason != reason:
            log.warning("%s %s is not read: %s", self._noun, self.source, detail)
            self._to_tell = f"{self._noun} {self.source} is read again"
        self.reason, self._detail = reason, detail
        self._complaints.clear()

    def complain(self, reason: str, detail: str) -> None:
        """Count a failure that does not keep the source from being read; tell each reason once until it fails."""
        self._errors[reason] += 1
        if reason not in self._complaints:
            log.warning("%s %s: %s", self._noun, self.source, detail)
            self._complaints.add(reason)

    def follow(self, reason: str, detail: str) -> None:
        """Note that the source is not read because another one is not, whose ledger counts and tells it."""
        if self.reason is None:
            self.reason, self._detail = reason, detail

    def count(self, errors: Iterable[ReadingError]) -> None:
        """Count readings that were not obtained."""
        for error in errors:
            if error.kind == IMPLAUSIBLE:
                self._rejected[error.reading] += 1
            else:
                self._errors[error.kind] += 1

    def health(self, now: float) -> SourceHealth:
        """Tell how it stands."""
        return SourceHealth(
            source=self.source,
            up=self.reason is None,
            reason=self.reason or "",
            detail=self._detail,
            last_success=self._last_success,
            age_seconds=None if self._last_success is None else now - self._last_success,
            errors=dict(self._errors),
            rejected=dict(self._rejected),
        )
