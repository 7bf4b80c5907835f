"""A thread for calls that may never come back."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TOGETHER = 0.01
"""Seconds. What comes back sooner is told together with what comes after it."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of a call: its value, or the error that it raised; and how many seconds it took."""

    value: T | None
    error: Exception | None
    seconds: float


class Crew:
    """One daemon thread for the calls of several workers, and one more for each call that does not come back.

    To wake a thread costs more than most calls that it makes: what is due at the same moment is done by one of them.

    Args:
        name: of the threads, as a debugger or ``ps -L`` shows it.
        patience: seconds. A call that takes longer keeps its thread for itself; the others go on at a new one.
    """

    def __init__(self, name: str, patience: float = math.inf) -> None:
        self._name = name
        self._patience = patience
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._stint: _Stint | None = None
        self._watch: asyncio.TimerHandle | None = None

    def make(self, call: _Call) -> None:
        """Make a call when those before it have been made. To be asked on an event loop, always the same one."""
        if self._stint is None:
            self._begin()
        self._calls.put(call)
        if self._watch is None and self._patience < math.inf:
            self._watch = call.loop.call_later(self._patience, self._look, call.loop)

    def retire(self) -> None:
        """End the thread once its calls have come back."""
        if self._watch is not None:
            self._watch.cancel()
        self._calls.put(None)

    def _begin(self) -> None:
        self._stint = _Stint()
        threading.Thread(target=self._work, args=(self._stint,), name=self._name, daemon=True).start()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave a call behind that holds up others."""
        self._watch = None
        stint = self._stint
        if stint is None or self._idle(stint):
            return
        if stint.since is not None and time.monotonic() - stint.since >= self._patience:
            self._begin()
            self._tell(stint)
        self._watch = loop.call_later(self._patience, self._look, loop)

    def _idle(self, stint: _Stint) -> bool:
        return stint.since is None and self._calls.empty()

    def _work(self, stint: _Stint) -> None:
        while stint is self._stint:
            call = self._calls.get()
            if call is None:
                if stint is not self._stint:  # It was meant for the thread that has taken over.
                    self._calls.put(None)
                return
            stint.since = time.monotonic()
            call.make()
            lasted, stint.since = time.monotonic() - stint.since, None
            stint.done.append(call.pending)
            if self._calls.empty() or lasted > TOGETHER or stint is not self._stint:
                try:
                    call.loop.call_soon_threadsafe(self._tell, stint)
                except RuntimeError:  # The loop is closed: nobody waits any more.
                    return

    def _tell(self, stint: _Stint) -> None:
        while stint.done:
            stint.done.popleft().set_result(None)
        if self._watch is not None and self._stint is not None and self._idle(self._stint):
            self._watch.cancel()
            self._watch = None


@dataclass(slots=True, eq=False)
class _Stint:
    """The time that one thread works for its crew. It is over when another one has taken over."""

    since: float | None = None
    """When the call began that is being made."""
    done: deque[asyncio.Future[None]] = field(default_factory=deque)
    """Of calls that have come back, to be told on the event loop."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call on its way to a thread and back."""

    make: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    pending: asyncio.Future[None]


class Worker:
    """Makes one call at a time for an event loop, on a thread.

    A call that hangs holds up neither the loop nor the end of the process.

    Args:
        name: of the thread.
        crew: whose thread to use instead of one of its own.
    """

    def __init__(self, name: str, crew: Crew | None = None) -> None:
        self._crew = crew or Crew(name)
        self._shared = crew is not None
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
        outcomes: list[Outcome[T]] = []

        def make() -> None:
            start = time.perf_counter()
            try:
                value, error = call(), None
            except Exception as raised:  # noqa: BLE001 - handed over, whatever it is
                value, error = None, raised
            outcomes.append(Outcome(value, error, time.perf_counter() - start))

        self.pending = loop.create_future()
        self._crew.make(_Call(make, loop, self.pending))
        await asyncio.shield(self.pending)
        return outcomes[0]

    def retire(self) -> None:
        """End a thread of its own once its call has come back."""
        if not self._shared:
            self._crew.retire()


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
