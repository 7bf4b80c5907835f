"""What survives a restart, in one small JSON file: the learned idle floors, and which GPUs this host has had.

The file is replaced atomically, so a kill at any instant leaves the old or the new one. A file that cannot be
understood is set aside before anything is saved; it is never overwritten and never a reason not to start.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import stat
import tempfile
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

log = logging.getLogger("wattline.state")

MAX_BYTES = 1 << 20
UNFINISHED = ".unfinished"
Watts = Annotated[float, Meta(gt=0.0, le=20_000.0)]


Name = Annotated[str, Meta(max_length=128)]


class KnownGpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU that this host has had, as it was listed last."""

    index: Annotated[int, Meta(ge=0, le=1023)]
    pci_bus_id: Name = ""
    name: Name = ""


class Memory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept. All by GPU UUID."""

    idle_power_watts: dict[Name, Watts] = {}
    gpus: dict[Name, KnownGpu] = {}
    forgotten: tuple[Name, ...] = ()
    """GPUs that somebody has said were taken out; a running exporter has not taken note yet."""

    def find(self, gpu: str) -> str:
        """The UUID of the one GPU that somebody means: by index, bus address, UUID or the beginning of it.

        Raises:
            LookupError: none or several are meant.
        """

        def bare(address: str) -> str:
            return address.lower().lstrip("0:").removesuffix(".0")

        wanted = gpu.lower()
        found = [
            uuid
            for uuid, known in self.gpus.items()
            if wanted == str(known.index)
            or (len(wanted) > 3 and uuid.lower().removeprefix("gpu-").startswith(wanted.removeprefix("gpu-")))  # noqa: PLR2004
            or (":" in wanted and bare(known.pci_bus_id) == bare(wanted))
        ]
        if len(found) == 1:
            return found[0]
        names = "".join(f"\n  {n.index}  {u}  {n.pci_bus_id}  {n.name}" for u, n in sorted(self.gpus.items()))
        raise LookupError(
            f"found {'several GPUs' if found else 'no GPU'} by {gpu[:60]!r}, expected one of:{names or ' none'}"
        )


class _Content(Memory, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file. Version 1 knew idle floors only."""

    format: Literal["wattline-state"]
    version: Literal[1, 2]


class StateFile:
    """The file. Its methods may block for as long as the disk does, and never raise.

    Args:
        path: where it is; a symbolic link stays one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._looked = self._cleared = False
        self._foreign = False
        """What is there is not ours, and is not to be overwritten."""
        self._failed = ""
        self._seen: tuple[int, int] | None = None
        """The file that was read or written last, by inode and time of change."""

    @cached_property
    def _file(self) -> Path:
        # Not before it is asked for: the disk may hang already here.
        return Path(os.path.realpath(self.path))

    def load(self) -> Memory:
        """What was saved; empty when there is no usable file. Changes nothing on the disk."""
        self._looked = True
        self._seen = self._stamp()
        try:
            content = msgspec.json.decode(self._read(), type=_Content)
            return Memory(idle_power_watts=content.idle_power_watts, gpus=content.gpus, forgotten=content.forgotten)
        except FileNotFoundError:
            return Memory()
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            problem = f"is not understood: {error}"
        self._foreign = True
        log.warning("State file %s %s. Starting without it", self.path, problem)
        return Memory()

    def news(self) -> Memory | None:
        """What another process has saved since this one looked last, if any has."""
        return self.load() if self._looked and self._stamp() not in (None, self._seen) else None

    def save(self, memory: Memory) -> bool:
        """Replace the file atomically; false when that cannot be done, which is told once."""
        if not self._looked:
            self.load()
        kept = {name: getattr(memory, name) for name in memory.__struct_fields__}
        content = _Content(format="wattline-state", version=2, **kept)
        try:
            self._make_room()
            self._replace(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        except OSError as error:
            problem = error.strerror or type(error).__name__
            if problem != self._failed:
                log.warning("State file %s cannot be written: %s", self.path, problem)
            self._failed = problem
            return False
        if self._failed:
            log.info("State file %s is written again", self.path)
        self._failed = ""
        self._seen = self._stamp()
        return True

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _read(self) -> bytes:
        # Without waiting: nobody may ever write into a pipe.
        with os.fdopen(os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES} bytes")
        return data

    def _make_room(self) -> None:
        """Set aside what is not ours, and remove what is left of writes that were killed."""
        if self._foreign and self._file.exists():
            if not self._file.is_file():
                raise OSError(errno.EINVAL, "what is there is no regular file")
            aside = self._file.with_name(f"{self._file.name}.unreadable-{time.time_ns()}")
            self._file.rename(aside)
            log.warning("State file %s was set aside as %s", self.path, aside.name)
        self._foreign = False
        if not self._cleared:
            self._cleared = True
            for leftover in self._file.parent.glob(f".{glob.escape(self._file.name)}.*{UNFINISHED}"):
                with suppress(OSError):
                    leftover.unlink()

    def _replace(self, data: bytes) -> None:
        handle, temporary = tempfile.mkstemp(UNFINISHED, f".{self._file.name}.", self._file.parent)
        try:
            with suppress(OSError):
                # Root may say that a GPU was taken out; the exporter must be able to read the file as before.
                before = self._file.stat()
                os.fchown(handle, before.st_uid, before.st_gid)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self._file)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink(missing_ok=True)
            raise
