"""Writing a recording as it happens, so that a killed process leaves all but the last half minute behind."""

from __future__ import annotations

import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattline import __version__
from wattline.analysis.observer import Observer
from wattline.readings import EngineReading, GpuSample
from wattline.recording.anonymous import Pseudonyms
from wattline.recording.layout import (
    FORMAT,
    MAX_BYTES,
    VERSION,
    Header,
    Judged,
    RecordingError,
    Restored,
    event_line,
    header_line,
    reading_line,
    without_secrets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from wattline.analysis.plan import Plan
    from wattline.analysis.snapshot import Snapshot, SourceView
    from wattline.readings import Reading

FLUSH_SECONDS = 30.0
"""Of the readings' clock. Each flush costs the compression some of what it has learned."""
_GZIP = 31
_LEVEL = 9


class RecordingWriter:
    """Writes one recording. The file must not be there yet: nothing is overwritten.

    Args:
        path: the file.
        plan: what is judged and how.
        anonymous: leave out whose recording it is (see :class:`wattline.recording.anonymous.Pseudonyms`).
        created: the wall clock, asked when it is not given.

    Raises:
        RecordingError: by this and every other method: the file is there, cannot be written, or is full.
    """

    def __init__(
        self,
        path: Path,
        plan: Plan,
        *,
        anonymous: bool = False,
        created: datetime | None = None,
    ) -> None:
        self.path = path
        self.bytes_written = 0
        self.holds_readings = False
        """A GPU's power or an engine's metrics: what is worth to be kept."""
        self._names = Pseudonyms() if anonymous else None
        self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._unpacked = 0
        self._flushed_at: float | None = None
        self._sources: tuple[SourceView, ...] | None = None
        self._closed = False
        try:
            self._file = path.open("xb")
        except FileExistsError:
            raise RecordingError(path, None, "expected a new file, found one with this name") from None
        except OSError as error:
            raise RecordingError(path, None, f"cannot be written: {error.strerror}") from None
        header = Header(
            format=FORMAT,
            version=VERSION,
            created=(created or datetime.now(UTC)).isoformat(timespec="seconds"),
            wattline=__version__,
            anonymous=anonymous,
            plan=self._shown(plan),
        )
        self._put(header_line(header))
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, reading: Reading) -> None:
        """Note a reading."""
        self.holds_readings |= isinstance(reading, GpuSample) or (isinstance(reading, EngineReading) and reading.up)
        self._put(reading_line(self._names.reading(reading) if self._names else reading))

    def replan(self, plan: Plan) -> None:
        """Note that another plan is judged by from now on."""
        self._put(event_line(self._shown(plan)))

    def _shown(self, plan: Plan) -> Plan:
        bare = without_secrets(plan)
        return self._names.plan(bare) if self._names else bare

    def restore_idle(self, uuid: str, watts: float) -> None:
        """Note that an idle floor is known from before."""
        self._put(event_line(Restored(self._names.uuid(uuid) if self._names else uuid, watts)))

    def judge(self, now: float, sources: Iterable[SourceView] = ()) -> None:
        """Note that a verdict was given: a replay gives one at the same moment."""
        kept = tuple(replace(self._names.source(s) if self._names else s, age_seconds=None) for s in sources)
        self._put(event_line(Judged(now, None if kept == self._sources else kept)))
        self._sources = kept
        if self._flushed_at is None:
            self._flushed_at = now
        elif now - self._flushed_at >= FLUSH_SECONDS:
            self.flush()
            self._flushed_at = now

    def flush(self) -> None:
        """Make everything so far readable for whoever opens the file now."""
        self._store(self._packer.flush(zlib.Z_SYNC_FLUSH))

    def close(self) -> None:
        """End the recording; may be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._store(self._packer.flush(zlib.Z_FINISH))
        finally:
            self._file.close()

    def remove(self) -> None:
        """End the recording and leave no file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _put(self, line: bytes) -> None:
        self._unpacked += len(line)
        if self._unpacked > MAX_BYTES:
            raise RecordingError(self.path, None, f"is full: {MAX_BYTES >> 30} GiB of readings are in it")
        if packed := self._packer.compress(line):
            self._store(packed)

    def _store(self, packed: bytes) -> None:
        try:
            self._file.write(packed)
            self._file.flush()
        except OSError as error:
            raise RecordingError(self.path, None, f"cannot be written: {error.strerror}") from None
        self.bytes_written += len(packed)


class RecordingObserver(Observer):
    """An observer that notes everything it is told, and judges as any other does.

    Args:
        plan: what to judge and how.
        writer: where to note it.
    """

    def __init__(self, plan: Plan, writer: RecordingWriter) -> None:
        self._noted = plan
        self._writer = writer
        super().__init__(plan)

    def replan(self, plan: Plan) -> None:
        """Note another plan, and judge by it."""
        if plan != self._noted:
            self._writer.replan(plan)
        self._noted = plan
        super().replan(plan)

    def observe(self, reading: Reading) -> None:
        """Note and take one reading."""
        self._writer.write(reading)
        super().observe(reading)

    def restore_idle(self, uuid: str, watts: float) -> None:
        """Note an idle floor from before, and begin from it."""
        self._writer.restore_idle(uuid, watts)
        super().restore_idle(uuid, watts)

    def judge(self, now: float, sources: Iterable[SourceView] = ()) -> Snapshot:
        """Note the moment and judge."""
        sources = tuple(sources)
        self._writer.judge(now, sources)
        return super().judge(now, sources)
