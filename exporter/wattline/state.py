"""What survives a restart: the learned idle floors, in one small JSON file.

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


class Content(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file. Nothing in it has a default: a file that says less is somebody else's."""

    format: Literal["wattline-state"]
    version: Literal[1]
    idle_power_watts: dict[Annotated[str, Meta(max_length=128)], Watts]
    """By GPU UUID."""


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

    @cached_property
    def _file(self) -> Path:
        # Not before it is asked for: the disk may hang already here.
        return Path(os.path.realpath(self.path))

    def load(self) -> dict[str, float]:
        """The idle floors in watts by UUID; empty when there is no usable file. Changes nothing on the disk."""
        self._looked = True
        try:
            return dict(msgspec.json.decode(self._read(), type=Content).idle_power_watts)
        except FileNotFoundError:
            return {}
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            problem = f"is not understood: {error}"
        self._foreign = True
        log.warning("State file %s %s. Starting without it", self.path, problem)
        return {}

    def save(self, idle_power_watts: dict[str, float]) -> bool:
        """Replace the file atomically; false when that cannot be done, which is told once."""
        if not self._looked:
            self.load()
        content = Content(format="wattline-state", version=1, idle_power_watts=idle_power_watts)
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
        return True

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
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self._file)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink(missing_ok=True)
            raise
