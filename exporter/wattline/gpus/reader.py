"""Reads the GPUs of one source on a schedule, without ever making the event loop wait for a driver."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from wattline.gpus.health import Ledger, SourceHealth
from wattline.gpus.plausibility import EnergyMark, check_activity, check_condition, check_sample
from wattline.gpus.source import UNSUPPORTED, GpuLostError, SourceError
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuSample, ReadingError
from wattline.worker import Crew, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from wattline.gpus.source import GpuSource
    from wattline.readings import GpuReading, Reading
    from wattline.worker import Outcome

log = logging.getLogger("wattline.gpus")

STOP_CALLS_SECONDS = 0.8
STOP_CLOSE_SECONDS = 0.4
MOST_DOUBLINGS = 16
LASTING = UNSUPPORTED | {"no_permission", "malformed"}
"""Kinds of errors that say something about the GPU and its driver, and not about one moment."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often to read, in seconds."""

    sample: float = 1.0
    activity: float = 5.0
    condition: float = 30.0
    discover: float = 30.0
    """How often to look for GPUs that have come or gone."""
    retry: float = 1.0
    """After a failure of the source or the loss of a GPU; doubled each time, up to ``retry_most``."""
    retry_most: float = 60.0
    patience: float = 0.5
    """Seconds that a call may hold up those for other GPUs."""
    stuck: float = 5.0
    """A call that takes longer is stuck: what it reads is not up, and it is left alone."""

    def retry_after(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row before this one."""
        return min(self.retry * 2.0 ** min(failures, MOST_DOUBLINGS), self.retry_most)


@dataclass(slots=True)
class _Gpu:
    """What the reader knows of one GPU. It is kept after the GPU is lost, until somebody says that it was taken out."""

    identity: GpuIdentity
    ledger: Ledger
    worker: Worker
    readable: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    nameless: bool = False
    """It stands for a GPU of which nothing is known but that it is missing."""
    limit_watts: float | None = None
    energy: EnergyMark | None = None
    doubted: EnergyMark | None = None
    """A reading of energy since then that could not be."""
    unvisited: set[str] = field(default_factory=lambda: {"sample", "activity", "condition"})
    missing: dict[str, str] = field(default_factory=dict)
    """Readings that the first visits did not obtain, with the kind of error."""

    @property
    def uuid(self) -> str:
        return self.identity.uuid


@dataclass(slots=True, eq=False)
class _Visit:
    """One of the source's calls for one GPU, and when it is due on the event loop's clock."""

    name: str
    """Also of its interval in :class:`Intervals`."""
    call: Callable[[], GpuReading]
    due: float = 0.0


class GpuReader:
    """Reads a source and hands over what it reads.

    One thread makes all calls. One that hangs keeps it, and another thread takes over: it holds up no other GPU, not
    the event loop, not the end of the process.
    Nothing but this schedule calls the source, however many there are who look at the results.

    Args:
        source: where to read.
        deliver: takes each reading, on the event loop and in the order of arrival; identities at every listing.
            Implausible values are ``None`` by then.
        intervals: how often.
        remembered: GPUs that this host had in an earlier run: those that are not here are missing.
        expected: how many GPUs there are to be, if somebody has said so.
        on_read: takes the name of a source (the library's or a GPU's UUID) and the seconds that one read took.
        clock: monotonic seconds; the clock of the source's readings.
    """

    def __init__(
        self,
        source: GpuSource,
        deliver: Callable[[Reading], None],
        *,
        intervals: Intervals | None = None,
        remembered: Iterable[GpuIdentity] = (),
        expected: int | None = None,
        on_read: Callable[[str, float], None] = lambda _source, _seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._deliver = deliver
        self._intervals = intervals or Intervals()
        self._remembered = tuple(remembered)
        self._expected = expected
        self._on_read = on_read
        self._clock = clock
        self._ledger = Ledger(source.name, noun="source")
        self._gpus: dict[str, _Gpu] = {}
        self._listed: tuple[GpuIdentity, ...] = ()
        self._opened = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._surprises: set[tuple[str, type[Exception]]] = set()
        self._started_at = 0.0
        self._trouble = asyncio.Event()
        self._crew = Crew(source.name, self._intervals.patience, self._intervals.stuck)
        self._lister = Worker("lister", self._crew)

    async def start(self) -> None:
        """Begin to read; returns at once. Needs a running event loop, and is called once."""
        self._started_at = asyncio.get_running_loop().time()
        self._spawn(self._supervise())

    def pace(self, intervals: Intervals, expected: int | None = None) -> None:
        """Read at other intervals, and expect so many GPUs, from now on; each reading once more at its old one."""
        self._intervals, self._expected = intervals, expected
        if self._opened:
            self._miss()

    def forget(self, uuid: str) -> bool:
        """Miss a GPU no longer, because it was taken out; return whether it was missed."""
        gpu = self._gpus.get(uuid)
        if gpu is None or gpu.readable.is_set():
            return False
        self._forget(gpu, "it was taken out, somebody says")
        return True

    async def stop(self) -> None:
        """End reading and let go of the driver, within 2 s: a call that does not come back is left behind."""
        if self._stopped:
            return
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Not pulled away from under a call: the end of the process closes it as well.
        if await self._crew.quiet(STOP_CALLS_SECONDS):
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_CLOSE_SECONDS):
                    await self._lister.run(self._source.close)
        self._crew.retire()

    @property
    def identities(self) -> tuple[GpuIdentity, ...]:
        """The GPUs of the last listing, in the source's order."""
        return self._listed

    @property
    def known(self) -> tuple[GpuIdentity, ...]:
        """The GPUs that this host has had, whether they are listed now or not."""
        return tuple(gpu.identity for gpu in self._gpus.values() if not gpu.nameless) or self._remembered

    def health(self, now: float) -> list[SourceHealth]:
        """Tell how the source as a whole and each GPU that is not forgotten is read, the source first.

        Args:
            now: on the reader's clock.
        """
        gpus = [gpu.ledger.health(now) for gpu in self._gpus.values()]
        whole = self._ledger.health(now)
        if whole.up and gpus and not any(gpu.up or gpu.reason == "starting" for gpu in gpus):
            whole = replace(whole, up=False, reason="no_gpu", detail="no GPU answers")
        return [whole, *gpus]

    # Listing and recovering.

    async def _supervise(self) -> None:
        failures = 0
        troubled = False
        while True:
            self._trouble.clear()
            # Listing asks every GPU, and would get stuck where a reading is: not without need.
            if troubled or not self._crew.hangs:
                await self._list()
            try:
                async with asyncio.timeout(self._intervals.discover):
                    await self._trouble.wait()
            except TimeoutError:
                troubled, failures = False, 0
                continue
            await asyncio.sleep(self._intervals.retry_after(failures))
            troubled, failures = True, failures + 1

    async def _list(self) -> None:
        """List the GPUs; open the source anew when it has failed or no GPU is left, so that no reading is disturbed."""
        readable = any(gpu.readable.is_set() for gpu in self._gpus.values())
        if not readable and await self._crew.quiet(self._intervals.stuck):
            await self._call(self._ledger, self._lister, self._source.close, "closing the source")
        outcome = await self._call(self._ledger, self._lister, self._source.discover, "listing the GPUs")
        if outcome.error is not None:
            self._not_listed(outcome.error)
            return
        self._opened = True
        self._ledger.succeeded(self._clock())
        self._listed = outcome.value or ()
        self._recall()
        met = set(self._gpus)
        for identity in self._listed:
            if identity.uuid in self._gpus:
                self._hand_over(identity)
            self._follow(identity)
        taken = {identity.pci_bus_id for identity in self._listed if identity.uuid not in met}
        for gpu in self._unlisted():
            if any(identity.pci_bus_id == gpu.uuid for identity in self._listed):
                self._forget(gpu, "it has told its UUID")
            elif gpu.identity.pci_bus_id in taken:
                # One that is new here: a known one may have been given another address by a reboot.
                self._forget(gpu, "another GPU is in its place")
        self._miss()

    def _unlisted(self) -> list[_Gpu]:
        """The GPUs that this host has had and that are not listed now."""
        listed = {identity.uuid for identity in self._listed}
        return [gpu for uuid, gpu in self._gpus.items() if uuid not in listed and not gpu.nameless]

    def _recall(self) -> None:
        """Know the GPUs of an earlier run, once it has been tried to list those of this one."""
        remembered, self._remembered = self._remembered, ()
        for identity in remembered:
            self._meet(identity)

    def _meet(self, identity: GpuIdentity, *, nameless: bool = False) -> _Gpu:
        gpu = _Gpu(identity, Ledger(identity.uuid, noun="GPU"), Worker(identity.uuid, self._crew), nameless=nameless)
        self._gpus[identity.uuid] = gpu
        self._hand_over(identity)
        return gpu

    def _miss(self) -> None:
        """Take note of every GPU that should be here: those that were, and those that are counted or expected."""
        unlisted = self._unlisted()
        for gpu in unlisted:
            self._lose(gpu, GpuLostError("gpu_not_found", "the GPU was in this host and is not listed"))
        nameless = self._nameless({gpu.identity.index for gpu in unlisted}, len(unlisted))
        for gpu in [gpu for gpu in self._gpus.values() if gpu.nameless and gpu.uuid not in nameless]:
            self._forget(gpu, "all GPUs that are missing are known")
        for uuid, (index, kind, why) in nameless.items():
            gpu = self._gpus.get(uuid) or self._meet(GpuIdentity(uuid, index), nameless=True)
            if gpu.ledger.reason != kind:
                gpu.ledger.failed(kind, why)

    def _nameless(self, missed: set[int], count: int) -> dict[str, tuple[int, str, str]]:
        """GPUs that are missing without being known, as index, kind and sentence.

        One that was not given to this container (``no_permission``) is not missing.
        """
        unopened = {index: kind for index, kind in self._source.unidentified.items() if kind != "no_permission"}
        # A known GPU that is not listed is one of them: rather the one that had this index.
        order = sorted(unopened, key=lambda index: (index in missed, -index))
        found = {
            f"unopened-{index}": (
                index,
                unopened[index],
                f"GPU {index} is listed and cannot be opened: {unopened[index]}",
            )
            for index in order[: max(0, len(unopened) - count)]
        }
        known = len(self._listed) + count + len(found)
        for number in range(known, self._expected or 0):
            why = f"{self._expected} GPUs are expected, {len(self._listed)} are there"
            found[f"expected-{number + 1}"] = number, "gpu_not_found", why
        return found

    def _forget(self, gpu: _Gpu, why: str) -> None:
        log.info("GPU %s is forgotten: %s", gpu.uuid, why)
        del self._gpus[gpu.uuid]
        if gpu.task is not None:
            gpu.task.cancel()
        self._source.forget(gpu.uuid)

    def _not_listed(self, error: Exception) -> None:
        self._recall()
        kind = error.kind if isinstance(error, SourceError) else self._surprise("discover", error)
        if any(gpu.readable.is_set() for gpu in self._gpus.values()):
            # Those that are there are read as before.
            self._ledger.complain(kind, f"the GPUs cannot be listed: {error}")
        else:
            self._opened = False
            self._ledger.failed(kind, str(error))
        self._trouble.set()

    def _follow(self, identity: GpuIdentity) -> None:
        """Read a GPU from now on."""
        uuid = identity.uuid
        gpu = self._gpus.get(uuid) or self._meet(identity)
        gpu.identity = identity
        if gpu.task is None:
            # Conditions before samples: the limit tells which power is plausible. Activities last: they may take 40 ms,
            # and no GPU's comes before the others' samples.
            visits = (
                _Visit("condition", partial(self._source.condition, uuid)),
                _Visit("sample", partial(self._source.sample, uuid)),
                _Visit("activity", partial(self._source.activity, uuid)),
            )
            gpu.task = self._spawn(self._read(gpu, visits))
        if not gpu.readable.is_set():
            gpu.energy = gpu.doubted = None
            gpu.readable.set()

    def _lose(self, gpu: _Gpu, error: GpuLostError) -> None:
        if gpu.readable.is_set() or gpu.task is None:
            gpu.readable.clear()
            if gpu.ledger.reason != error.kind:
                gpu.ledger.failed(error.kind, str(error))

    def _fail(self, error: SourceError) -> None:
        """Stop reading until the source is open again."""
        if not self._opened:
            return
        self._opened = False
        self._ledger.failed(error.kind, str(error))
        for gpu in self._gpus.values():
            gpu.readable.clear()
            gpu.ledger.follow(error.kind, str(error))

    # Reading.

    async def _read(self, gpu: _Gpu, visits: tuple[_Visit, ...]) -> None:
        """Make the visits of one GPU, each when it is due."""
        loop = asyncio.get_running_loop()
        while True:
            await gpu.readable.wait()
            visit = min(visits, key=lambda v: v.due)
            if (wait := visit.due - loop.time()) > 0:
                await asyncio.sleep(wait)
                if not gpu.readable.is_set():
                    continue
            outcome = await self._call(gpu.ledger, gpu.worker, visit.call, f"reading its {visit.name}")
            # On a common grid, so that all GPUs are read at the same moments; what was missed is left out.
            interval: float = getattr(self._intervals, visit.name)
            rounds = math.floor((loop.time() - self._started_at) / interval) + 1
            visit.due = self._started_at + rounds * interval
            match outcome.error:
                case None if outcome.value is not None:
                    self._take(gpu, visit.name, outcome.value)
                case GpuLostError() as error:
                    self._lose(gpu, error)
                    self._trouble.set()
                case SourceError() as error:
                    self._fail(error)
                    self._trouble.set()
                case Exception() as error:
                    kind = self._surprise(visit.name, error)
                    tell = gpu.ledger.complain if visit.name == "activity" else gpu.ledger.failed
                    tell(kind, f"{visit.name}: {error!r}")

    def _take(self, gpu: _Gpu, visit: str, reading: GpuReading) -> None:
        match reading:
            case GpuSample():
                reading = self._check_sample(gpu, reading)
                if gpu.readable.is_set():  # Not lost in the meantime.
                    gpu.ledger.succeeded(self._clock())
                    self._ledger.seen(self._clock())
            case GpuActivity():
                reading = check_activity(reading)
            case GpuCondition():
                reading = check_condition(reading)
                limits = (reading.limit_enforced_watts, reading.limit_requested_watts, reading.limit_default_watts)
                # A limit that no range confirms may be what is wrong when the power is far above it.
                if reading.limit_max_watts is not None:
                    gpu.limit_watts = next((limit for limit in limits if limit is not None), gpu.limit_watts)
        gpu.ledger.count(reading.errors)
        self._tell_missing(gpu, visit, reading.errors)
        self._hand_over(reading)

    @staticmethod
    def _check_sample(gpu: _Gpu, sample: GpuSample) -> GpuSample:
        checked = check_sample(sample, gpu.limit_watts, gpu.energy)
        if sample.energy_joules is not None and checked.energy_joules is None:
            # Once is garbage. If the counter goes on from there, it has leapt: while a guest was paused, for instance.
            if gpu.doubted is not None:
                checked = check_sample(sample, gpu.limit_watts, gpu.doubted)
            gpu.doubted = EnergyMark(sample.t, sample.energy_joules)
        if checked.energy_joules is not None:
            gpu.energy, gpu.doubted = EnergyMark(checked.t, checked.energy_joules), None
        return checked

    async def _call(self, ledger: Ledger, worker: Worker, call: Callable[[], T], what: str) -> Outcome[T]:
        outcome = await worker.run(call, partial(self._is_late, ledger, worker, what))
        self._on_read(ledger.source, outcome.seconds)
        return outcome

    def _is_late(self, ledger: Ledger, worker: Worker, what: str) -> None:
        detail = f"{what} has not come back from the driver for {self._intervals.stuck:g} s"
        costs_nothing = worker is self._lister and self._opened
        self._recall()
        (ledger.complain if costs_nothing else ledger.failed)("timeout", detail)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_tell_defect)
        return task

    # Telling.

    def _hand_over(self, reading: Reading) -> None:
        try:
            self._deliver(reading)
        except Exception as error:  # noqa: BLE001 - who looks at readings must not end them
            self._surprise("deliver", error)

    def _surprise(self, where: str, error: Exception) -> str:
        """Log an error that nobody foresaw, once for its place and kind; return its kind."""
        if (where, type(error)) not in self._surprises:
            self._surprises.add((where, type(error)))
            log.error("unexpected error in %s", where, exc_info=error)
        return "unexpected"

    def _tell_missing(self, gpu: _Gpu, visit: str, errors: tuple[ReadingError, ...]) -> None:
        """Tell once, in one line, what a GPU did not give in its first visits."""
        if gpu.unvisited:
            gpu.missing |= {e.reading: e.kind for e in errors if visit in gpu.unvisited and e.kind in LASTING}
            gpu.unvisited.discard(visit)
            if gpu.missing and not gpu.unvisited:
                listed = ", ".join(f"{reading} ({kind})" for reading, kind in gpu.missing.items())
                log.info("GPU %s does not tell: %s", gpu.uuid, listed)


def _tell_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.critical("reading GPUs has ended by a defect", exc_info=error)
