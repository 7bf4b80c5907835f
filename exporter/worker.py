"""A thread for calls that may never come back."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of a call: its value, or the error that it raised; and how many seconds it took."""

    value: T | None
    error: Exception | None
    seconds: float


class Worker:
    """One daemon thread that makes one call at a time for an event loop.

    A call that hangs holds this thread and nothing else: neither the loop nor the end of the process.

    Args:
        name: of the thread, as a debugger or ``ps -L`` shows it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.pending: asyncio.Future[None] | None = None
        """Done when the call that was made last has come back."""

    @property
    def busy(self) -> bool:
        """Whether a call has not come back yet."""
        return self.pending is not None and not self.pending.done()

    async def run(self, call: Callable[[], T]) -> Outcome[T]:
        """Make a call on the thread; cancelling this leaves the call running and the worker busy."""
        if self.busy:
            raise RuntimeError("a worker makes one call at a time")
        loop = asyncio.get_running_loop()
        pending: asyncio.Future[None] = loop.create_future()
        outcomes: list[Outcome[T]] = []

        def work() -> None:
            start = time.perf_counter()
            try:
                value, error = call(), None
            except Exception as raised:  # noqa: BLE001 - handed over, whatever it is
                value, error = None, raised
            outcomes.append(Outcome(value, error, time.perf_counter() - start))
            loop.call_soon_threadsafe(pending.set_result, None)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self.pending = pending
        self._calls.put(work)
        await asyncio.shield(pending)
        return outcomes[0]

    def retire(self) -> None:
        """End the thread once its call has come back."""
        self._calls.put(None)

    def _work(self) -> None:
        while work := self._calls.get():
            try:
                work()
            except RuntimeError:  # The loop is closed: nobody waits any more.
                return


async def aside(name: str, call: Callable[[], T]) -> T:
    """Make one call on a thread of its own, and give or raise what comes of it.

    Unlike a thread of a pool, one that hangs holds up neither other calls nor the end of the process.

    Args:
        name: of the thread.
        call: what to do there.
    """
    worker = Worker(name)
    try:
        outcome = await worker.run(call)
    finally:
        worker.retire()
    if outcome.error is not None:
        raise outcome.error
    return cast("T", outcome.value)
