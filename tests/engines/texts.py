"""Texts that engines serve: recorded ones, and small ones written for one question."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.engines.normalise import normalise

if TYPE_CHECKING:
    from wattline.readings import EngineReading

FIXTURES = Path(__file__).parent / "fixtures"


def recorded(name: str) -> bytes:
    """Give the text of a recorded SGLang by release and state, e.g. ``0.5.23_busy_t0``."""
    return gzip.decompress((FIXTURES / "sglang" / f"{name}.prom.gz").read_bytes())


def real(name: str) -> bytes:
    """Give the text of a real server in a known state, e.g. ``sglang_0.5.23_just_after_64``."""
    return gzip.decompress((FIXTURES / "real" / f"{name}.prom.gz").read_bytes())


def text(name: str) -> bytes:
    """Give the text of another engine."""
    return (FIXTURES / name).read_bytes()


def reading(body: bytes | str, kind: str | None = None, content_type: str | None = None) -> EngineReading:
    return normalise(body, engine="engine", t=7.0, kind=kind, content_type=content_type)


def lines(*samples: str) -> str:
    return "".join(f"{sample}\n" for sample in samples)
