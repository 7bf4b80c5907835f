"""An event loop whose time does not wait: when nothing is left to do now, it is at once the time of what comes next.

Sockets and threads are real. Time stands still while a :class:`wattline.worker.Worker` is at work, but for one that
takes longer than ``PATIENCE``: such a call hangs, and time goes on without it.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import selectors
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from wattline.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from wattline.worker import Outcome

T = TypeVar("T")

PATIENCE = 1.0
"""Real seconds."""
LATE = 1e-6
"""A timer never comes early, as on a real machine."""


class _Selector(selectors.DefaultSelector):
    """Waits for as long as a thread is at work, and otherwise not at all."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        """Give what is ready; if nothing is, let the time pass that was to be waited for."""
        while not (ready := super().select(0)):
            if timeout is not None and timeout <= 0:
                break
            if (real := self._loop.settle()) > 0:
                ready = super().select(real)
                if ready:
                    break
                continue
            if timeout is None:
                return super().select(0.01)
            self._loop.pass_time(timeout)
            break
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop.

    Args:
        settle: real seconds given to the kernel for bytes that are under way, before time passes.
        shown_in: a file that holds the time as a double, for others to map.
    """

    def __init__(self, settle: float = 0.001, shown_in: Path | None = None) -> None:
        self._now = 1000.0
        self._settle = settle
        self._settled = False
        self._at_work: dict[int, float] = {}
        self._shown: mmap.mmap | None = None
        super().__init__(_Selector(self))
        if shown_in is not None:
            shown_in.write_bytes(struct.pack("d", self._now))
            with shown_in.open("r+b") as file:
                self._shown = mmap.mmap(file.fileno(), 8)

    def time(self) -> float:
        """Seconds; stands still while something is done."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self._settled = False
        self._now += max(0.0, seconds) + LATE
        if self._shown is not None:
            struct.pack_into("d", self._shown, 0, self._now)

    def settle(self) -> float:
        """Give the real seconds to wait before time may pass."""
        oldest = max((began for began in self._at_work.values() if time.monotonic() - began < PATIENCE), default=None)
        if oldest is not None:
            return max(0.001, oldest + PATIENCE - time.monotonic())
        if not self._settled:
            self._settled = True
            return self._settle
        return 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it, all workers hold the time while they are at work."""
        original: Any = Worker.run
        numbers = itertools.count()

        async def run(worker: Worker, call: Callable[[], T], *late: Callable[[], None]) -> Outcome[T]:
            number = next(numbers)
            self._at_work[number] = time.monotonic()

            def until_it_comes_back() -> None:
                if worker.pending is not None:
                    worker.pending.add_done_callback(lambda _: self._at_work.pop(number))

            self.call_soon(until_it_comes_back)
            outcome: Outcome[T] = await original(worker, call, *late)
            return outcome

        substitute: Any = run
        Worker.run = substitute  # type: ignore[method-assign]
        try:
            yield
        finally:
            Worker.run = original  # type: ignore[method-assign]


def run(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, settle: float = 0.001, shown_in: Path | None = None
) -> T:
    """Run a coroutine in virtual time, as :func:`asyncio.run` does in real time."""
    loop = VirtualLoop(settle, shown_in)
    with asyncio.Runner(loop_factory=lambda: loop) as runner, loop.watching():
        return runner.run(main(loop))
