"""Reading a recording: any file either reads, or is refused with the line and what was expected there."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from wattline.readings import GpuIdentity, GpuSample
from wattline.recording.layout import (
    FORMAT,
    MAX_BYTES,
    MAX_GPUS,
    MAX_LINE_BYTES,
    MAX_REASONS,
    VERSION,
    Event,
    Header,
    Line,
    RecordingError,
    bad_event,
    bad_plan,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

_CHUNK = 64 * 1024
_GZIP = 31
_GZIP_MAGIC = b"\x1f\x8b"
_SHOWN = 60
_LINE = msgspec.json.Decoder(Line)
_HEADER = msgspec.json.Decoder(Header)


class Recording:
    """A recording whose header is understood. Iterating reads the file anew, with memory for one line at a time.

    Raises (while iterating):
        RecordingError: the rest of the file is not understood.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_short = ""
        """After reading to the end: why that is not the end of the recording; empty when it is."""
        first = next(_lines(self), None)
        if first is None:
            found = "one that was cut short before its first line was whole" if self.cut_short else "an empty file"
            raise RecordingError(path, None, f"expected a recording, found {found}")
        self.header = _header(path, first)

    def __iter__(self) -> Iterator[Event]:
        """Yield all events in their order. A recording that was cut short ends where it was cut."""
        self.cut_short = ""
        lines = _lines(self)
        next(lines, None)
        gpus: set[str] = set()
        reasons: set[str] = set()
        for number, line in enumerate(lines, 2):
            event = _event(self.path, number, line)
            if isinstance(event, GpuIdentity):
                gpus.add(event.uuid)
            elif isinstance(event, GpuSample):
                reasons.update(event.event_reasons or ())
            for what, seen, most in (("GPUs", gpus, MAX_GPUS), ("clocks event reasons", reasons, MAX_REASONS)):
                if len(seen) > most:
                    raise RecordingError(self.path, number, f"expected at most {most} different {what}, found more")
            yield event


def read_recording(path: Path) -> Recording:
    """Open a recording.

    Raises:
        RecordingError: there is no such file, or its beginning is not that of a recording.
    """
    return Recording(path)


def _header(path: Path, line: bytes) -> Header:
    try:
        # The kind of file first: a field that is missing says less than "this is something else".
        kind = msgspec.json.decode(line)
        if not isinstance(kind, dict) or kind.get("format") != FORMAT:
            raise RecordingError(path, 1, f"expected the header of a {FORMAT}, found {_shown(line)}")
        if kind.get("version") != VERSION:
            found = _shown(msgspec.json.encode(kind.get("version")))
            raise RecordingError(path, 1, f"expected version {VERSION} of the format, found {found}")
        header = _HEADER.decode(line)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordingError(path, 1, f"expected the header of a {FORMAT}: {error}") from None
    if problem := bad_plan(header.plan):
        raise RecordingError(path, 1, problem)
    return header


def _event(path: Path, number: int, line: bytes) -> Event:
    try:
        parts = _LINE.decode(line)
    except (ValueError, RecursionError) as error:
        raise RecordingError(path, number, f"expected one event, found {_shown(line)}: {error}") from None
    told: list[Event] = [event for kind in parts.__struct_fields__ if (event := getattr(parts, kind)) is not None]
    if len(told) != 1:
        raise RecordingError(path, number, f"expected one event, found {_shown(line)}")
    if problem := bad_event(told[0]):
        raise RecordingError(path, number, problem)
    return told[0]


def _shown(found: bytes) -> str:
    return repr(found[:_SHOWN].decode("utf-8", "replace")) + (" ..." if len(found) > _SHOWN else "")


def _lines(recording: Recording) -> Iterator[bytes]:
    """The lines of the file, without their ends; the last one only when it is whole."""
    path = recording.path
    rest = b""
    number = 1
    unpacked = 0
    try:
        with path.open("rb") as file:
            for piece in _unpacked(recording, file):
                unpacked += len(piece)
                if unpacked > MAX_BYTES:
                    raise RecordingError(path, number, f"expected at most {MAX_BYTES >> 30} GiB unpacked, found more")
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line
                    number += 1
                if len(rest) > MAX_LINE_BYTES:
                    raise RecordingError(
                        path, number, f"expected a line of at most {MAX_LINE_BYTES} bytes, found a longer one"
                    )
    except OSError as error:
        raise RecordingError(path, None, f"cannot be read: {error.strerror}") from None
    except zlib.error:
        # What came before is whole, and was read: the damage is behind it.
        raise RecordingError(path, number, "expected compressed readings, found damaged ones") from None
    if rest and not recording.cut_short:
        recording.cut_short = "it ends within a line"


def _unpacked(recording: Recording, file: BinaryIO) -> Iterator[bytes]:
    """Pieces of at most ``_CHUNK`` bytes, whatever the file unpacks to."""
    packed = file.read(_CHUNK)
    if packed and not packed.startswith(_GZIP_MAGIC[: len(packed)]):
        raise RecordingError(
            recording.path, None, f"expected a file that 'wattline record' wrote, found {_shown(packed[:8])}"
        )
    unpacker = zlib.decompressobj(_GZIP)
    while packed:
        piece = unpacker.decompress(packed, _CHUNK)
        if piece:
            yield piece
        if unpacker.eof:
            if unpacker.unused_data or file.read(1):
                raise RecordingError(recording.path, None, "expected nothing after its end, found more")
            return
        packed = unpacker.unconsumed_tail or file.read(_CHUNK)
    if file.tell():
        recording.cut_short = "it was not closed: the recording process was ended, or the file was not copied whole"
