"""Threads for calls that may never come back, and what watches over them."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

AGAIN = 0.05
"""Seconds after which a thread that waits for its turn looks whether it is still that turn."""
TOGETHER = 0.01
"""Seconds. What comes back sooner is told together with what comes after it."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of a call: its value, or the error that it raised; and how many seconds it took."""

    value: T | None
    error: Exception | None
    seconds: float


class Crew:
    """One daemon thread for the calls of several workers, one at a time, and a watchdog for those that hang.

    A call that takes longer than ``patience`` while others wait is left behind: it keeps its thread, and the others
    go on at a new one. If it comes back, it takes turns with them (:func:`take_turn`).

    To wake a thread costs more than most calls that it makes: what is due at the same moment is done by one of them.

    Args:
        name: of the threads, as a debugger or ``ps -L`` shows it.
        patience: seconds that a call may hold up others.
        late: seconds after which a call that has not come back is reported, once.
    """

    def __init__(self, name: str, patience: float = math.inf, late: float = math.inf) -> None:
        self._name = name
        self._patience = patience
        self._late = late
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._out: dict[asyncio.Future[None], _Call] = {}
        """Calls that have not come back, the oldest first."""
        self._stint: _Stint | None = None
        self._left_behind: set[_Stint] = set()
        self._watch: asyncio.TimerHandle | None = None
        self.turn = _Turn()
        """Whoever is left behind keeps it, and the others take a new one."""
        self.waiting: set[_Stint] = set()
        """Threads that wait for their turn."""

    @property
    def hangs(self) -> bool:
        """Whether a call has not come back that is late or was left behind."""
        return bool(self._left_behind) or any(call.reported for call in self._out.values())

    def make(self, call: _Call) -> None:
        """Make a call when those before it have been made. To be asked on an event loop, always the same one."""
        if self._stint is None:
            self._begin()
        self._out[call.pending] = call
        self._calls.put(call)
        self._keep_watch(call.loop)

    def others(self, stint: _Stint) -> bool:
        """Whether another thread than this one's may be at work."""
        return bool(self._left_behind - {stint}) or stint is not self._stint

    async def quiet(self, seconds: float) -> bool:
        """Wait until every call has come back; return whether that is so."""
        if self._out:
            await asyncio.wait(self._out, timeout=seconds)
        return not self._out

    def retire(self) -> None:
        """End the thread once its calls have come back."""
        if self._watch is not None:
            self._watch.cancel()
        self._calls.put(None)

    def _begin(self) -> None:
        self._stint = _Stint(self)
        threading.Thread(target=self._work, args=(self._stint,), name=self._name, daemon=True).start()

    # The watchdog, on the event loop.

    def _keep_watch(self, loop: asyncio.AbstractEventLoop) -> None:
        period = min(self._patience, self._late)
        if self._watch is None and self._out and period < math.inf:
            self._watch = loop.call_later(period, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report what is late, and leave a call behind that holds up others."""
        self._watch = None
        now = time.monotonic()
        for call in list(self._out.values()):
            if now - call.asked_at >= self._late and not call.reported:
                call.reported = True
                call.is_late()
        stint, turn = self._stint, self.turn
        if stint is not None and turn.since is not None and now - turn.since >= self._patience:
            self._tell(stint)  # What came back before.
            if self.waiting or not self._calls.empty():
                self.turn = _Turn()
                if stint.turn is turn:
                    self._left_behind.add(stint)
                    self._begin()
        self._keep_watch(loop)

    def _tell(self, stint: _Stint, *, ended: bool = False) -> None:
        while stint.done:
            call = stint.done.popleft()
            del self._out[call.pending]
            call.pending.set_result(None)
        if ended:
            self._left_behind.discard(stint)
        if self._watch is not None and not self._out:
            self._watch.cancel()
            self._watch = None

    # On the threads.

    def _work(self, stint: _Stint) -> None:
        _here.stint = stint
        while stint is self._stint:
            call = self._calls.get()
            if call is None:
                return
            stint.take_turn()
            began = time.monotonic()
            call.make()
            stint.end_turn()
            stint.done.append(call)
            ended = stint is not self._stint
            if self._calls.empty() or time.monotonic() - began > TOGETHER or ended:
                try:
                    call.loop.call_soon_threadsafe(self._tell_of, stint)
                except RuntimeError:  # The loop is closed: nobody waits any more.
                    return

    def _tell_of(self, stint: _Stint) -> None:
        self._tell(stint, ended=stint is not self._stint)


class _Turn:
    """Held by the one thread of a crew that is at work."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.since: float | None = None
        """When it was taken, unless the others are to wait for its end."""


class _Stint:
    """The time that one thread works for its crew. It is over when another one has taken over."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.done: deque[_Call] = deque()
        """Calls that have come back, to be told on the event loop."""
        self.turn: _Turn | None = None

    def take_turn(self) -> None:
        while self.turn is not self.crew.turn:
            turn = self.crew.turn
            if not turn.lock.acquire(blocking=False):
                self.crew.waiting.add(self)
                # The one whose turn it is may be left behind meanwhile: then there is another turn to take.
                taken = turn.lock.acquire(timeout=AGAIN)
                self.crew.waiting.discard(self)
                if not taken:
                    continue
            self.end_turn()
            self.turn, turn.since = turn, time.monotonic()

    def end_turn(self) -> None:
        if self.turn is not None:
            self.turn.since = None
            self.turn.lock.release()
            self.turn = None


_here = threading.local()


def take_turn() -> None:
    """On a thread that its crew has left behind: wait until no other thread of the crew is at work."""
    stint: _Stint | None = getattr(_here, "stint", None)
    if stint is not None:
        stint.take_turn()


def alone() -> bool:
    """Whether no other call of this thread's crew is on its way: one that was left behind may be."""
    stint: _Stint | None = getattr(_here, "stint", None)
    return stint is None or not stint.crew.others(stint)


@contextmanager
def unhurried() -> Iterator[None]:
    """Let the crew wait for what is done now, however long it takes: nothing can be done before it."""
    stint: _Stint | None = getattr(_here, "stint", None)
    turn = stint.turn if stint is not None else None
    if turn is None:
        yield
        return
    turn.since = None
    try:
        yield
    finally:
        turn.since = time.monotonic()


@dataclass(slots=True)
class _Call:
    """A call on its way to a thread and back."""

    make: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    pending: asyncio.Future[None]
    is_late: Callable[[], None]
    asked_at: float = field(default_factory=time.monotonic)
    reported: bool = False


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

    async def run(self, call: Callable[[], T], is_late: Callable[[], None] = lambda: None) -> Outcome[T]:
        """Make a call on the thread; cancelling this leaves the call running and the worker busy.

        Args:
            call: what to do there.
            is_late: called on the event loop when the call takes longer than the crew calls late.
        """
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
        self._crew.make(_Call(make, loop, self.pending, is_late))
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
