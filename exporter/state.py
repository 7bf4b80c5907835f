"""What survives a restart: the learned idle floors, in one small JSON file.

The file is replaced atomically, so a kill at any instant leaves the old or the new one. A file that cannot be
understood is set aside, never overwritten and never a reason not to start.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

log = logging.getLogger("wattline.state")

FORMAT = "wattline-state"
MAX_BYTES = 1 << 20
Watts = Annotated[float, Meta(gt=0.0, le=20_000.0)]


class StateFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    format: str = FORMAT
    version: int = 1
    idle_power_watts: dict[Annotated[str, Meta(max_length=128)], Watts] = field(default_factory=dict)
    """By GPU UUID."""


def load(path: Path) -> dict[str, float]:
    """The idle floors in watts by UUID; empty when there is no usable file. Never raises."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("State file %s cannot be read, starting without it: %s", path, error.strerror)
        return {}
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        aside = path.with_name(f"{path.name}.unreadable-{time.time_ns()}")
        try:
            path.rename(aside)
        except OSError as failure:
            log.warning("State file %s is not understood (%s) and stays: %s", path, error, failure.strerror)
        else:
            log.warning("State file %s is not understood (%s), set aside as %s", path, error, aside.name)
        return {}


def _decode(data: bytes) -> dict[str, float]:
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    state = msgspec.json.decode(data, type=StateFile)
    if (state.format, state.version) != (FORMAT, 1):
        raise ValueError(f"format {state.format!r} version {state.version}, expected {FORMAT!r} version 1")
    return dict(state.idle_power_watts)


def save(path: Path, idle_power_watts: dict[str, float]) -> bool:
    """Replace the file atomically; false, with a line in the log, when that cannot be done."""
    data = msgspec.json.format(msgspec.json.encode(StateFile(idle_power_watts=idle_power_watts)))
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        log.warning("State file %s cannot be written: %s", path, error.strerror)
        return False
    return True
