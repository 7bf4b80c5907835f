"""Wait for what a reader delivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from wattline.gpus.health import SourceHealth
from wattline.gpus.nvml import NvmlSource
from wattline.gpus.reader import GpuReader, Intervals
from wattline.gpus.source import GpuSource
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuSample, Reading

FAST = Intervals(
    sample=0.02, activity=0.16, condition=0.05, discover=0.1, retry=0.02, retry_most=0.1, patience=0.1, stuck=0.4
)
NOWHERE = Path("/nonexistent")


class Clock:
    """Stands still until a test moves it."""

    def __init__(self, now: float = 12.5) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Collector:
    """Keeps what a reader delivers, and lets a test wait until something is so."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.read_seconds: list[tuple[str, float]] = []
        self.reader: GpuReader
        self._news = asyncio.Event()

    def deliver(self, reading: Reading) -> None:
        self.readings.append(reading)
        self._news.set()

    def on_read(self, source: str, seconds: float) -> None:
        self.read_seconds.append((source, seconds))
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds, looking again after every read and now and then without any."""
        async with asyncio.timeout(20):
            while not holds():
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), 0.02)
                except TimeoutError:
                    continue

    async def rounds(self, count: int, uuid: str) -> None:
        """Wait for so many more samples of a GPU."""
        wanted = len(self.samples(uuid)) + count
        await self.until(lambda: len(self.samples(uuid)) >= wanted)

    def identities(self, uuid: str) -> list[GpuIdentity]:
        return [r for r in self.readings if isinstance(r, GpuIdentity) and r.uuid == uuid]

    def samples(self, uuid: str) -> list[GpuSample]:
        return [r for r in self.readings if isinstance(r, GpuSample) and r.uuid == uuid]

    def activities(self, uuid: str) -> list[GpuActivity]:
        return [r for r in self.readings if isinstance(r, GpuActivity) and r.uuid == uuid]

    def conditions(self, uuid: str) -> list[GpuCondition]:
        return [r for r in self.readings if isinstance(r, GpuCondition) and r.uuid == uuid]

    def health(self, source: str) -> SourceHealth:
        return next(h for h in self.reader.health(self.reader._clock()) if h.source == source)

    def is_up(self, source: str) -> bool:
        return any(h.source == source and h.up for h in self.reader.health(self.reader._clock()))


@asynccontextmanager
async def reading(
    source: GpuSource | None = None,
    intervals: Intervals = FAST,
    remembered: Iterable[GpuIdentity] = (),
    expected: int | None = None,
) -> AsyncIterator[Collector]:
    collector = Collector()
    collector.reader = GpuReader(
        source or NvmlSource(inventory=NOWHERE, energy_every=0.0),
        collector.deliver,
        intervals=intervals,
        remembered=remembered,
        expected=expected,
        on_read=collector.on_read,
    )
    await collector.reader.start()
    try:
        yield collector
    finally:
        await collector.reader.stop()
