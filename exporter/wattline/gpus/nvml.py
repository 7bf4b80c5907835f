"""The GPUs of this host, read through NVIDIA's management library: the only file that knows pynvml.

Every question is one row of a table: a reading, the calls that can answer it (best first), and what each answer fills.
What a failing call means is decided in one place, :class:`_Visit`. Facts and costs: ``docs/nvml.md``.
"""

# ruff: noqa: ANN401 - nvidia-ml-py has no types, and its handles are nobody's business.

from __future__ import annotations

import ctypes
import logging
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import pynvml

from wattline.gpus.nvml_names import ARCHITECTURES, HINTS, LOSSES, VALUE_TYPES, VIRTUALIZATION, reason_names
from wattline.gpus.source import UNSUPPORTED, GpuLostError, SourceError
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuProcess, GpuSample, ReadingError

log = logging.getLogger("wattline.gpus")


ERROR_KINDS: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
"""NVML's return codes by their names in lower case: the ``kind`` of every error."""

LOST = frozenset({"gpu_is_lost", "reset_required", "gpu_not_found"})
"""This GPU is gone. Calls into a lost GPU have crashed their callers, so nothing more is asked of it."""
CLOSED = frozenset({"uninitialized", "driver_not_loaded", "lib_rm_version_mismatch"})
"""The library as a whole is gone."""

FIELD_POWER_INSTANT = 186
SCOPE_GPU = 0  # Scope 1 is the whole module, the CPU included: never comparable with the GPU's limit.
POWER_SAMPLES = 0  # NVML_TOTAL_POWER_SAMPLES
CLOCK_SM = 1
SENSOR_GPU = 0
PCIE_TRANSMIT, PCIE_RECEIVE = 0, 1
P2P_READ = 0  # nvidia-ml-py's constant of that name is the tuple (0,).
P2P_OK, P2P_UNKNOWN = 0, 6
NVLINK_MAX_LINKS = 36
MAX_GPUS = 256
"""More are in no host: such a count is a sentinel."""
XID_EVENTS = 0x8
XID_BATCH = 64
"""Events taken from the driver in one visit at most: a storm must not hold up the readings."""


# Units. Divisions, since 35 * 0.01 is not 0.35.


def from_milli(value: float) -> float:
    """From mW, mJ."""
    return value / 1000


def from_kilo(value: float) -> float:
    """From kB, which are 1000 bytes: at 59 GB/s this agrees with the MiB of GPM."""
    return value * 1000.0


def from_mega(value: float) -> float:
    """From MHz."""
    return value * 1e6


def from_mebi(value: float) -> float:
    """From MiB."""
    return value * 2.0**20


def from_percent(value: float) -> float:
    """From per cent."""
    return value / 100


EARLY = 0.4
"""A visit that comes this many seconds before a reading is due is on time: schedules jitter."""
GPM_MIN_SPAN = 0.15
"""Seconds between the two samples behind a GPM metric; NVML wants more than 0.1."""
GPM_MAX_SPAN = 90.0
"""An older sample is from before a pause, and no end of an average."""
GPM_METRICS: dict[int, tuple[str, str, Callable[[float], float]]] = {
    # nvmlGpmMetricId_t: reading, field, unit
    2: ("sm_active", "sm_active_ratio", from_percent),
    5: ("tensor_active", "tensor_active_ratio", from_percent),
    10: ("dram_active", "dram_active_ratio", from_percent),
    20: ("pcie_transmit", "pcie_transmit_bytes_per_second", from_mebi),
    21: ("pcie_receive", "pcie_receive_bytes_per_second", from_mebi),
}


# Calls.


class _Turn:
    """Lets one thread at a time into the library; one that does not come back is left behind after a while.

    NVML is said to be thread-safe, but that of driver 580 has crashed the process (nvmlGpmMetricsGet, two H200s) when
    several threads were inside. Calls wait for each other in the driver anyway.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._kept = threading.local()

    def take(self) -> threading.Lock | None:
        """Wait for the turn; it ends when what is returned is released. Nothing is returned to whoever has it."""
        # One that was left behind may come back while others take turns at a new lock.
        if getattr(self._kept, "lock", None) is self._lock:
            return None
        while not (lock := self._lock).acquire(timeout=self._patience):
            if lock is self._lock:  # Whoever holds it hangs in the driver. The others take turns at a new one.
                self._lock = threading.Lock()
        return lock

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the turn over several quick calls: to hand it on after each costs more than they do."""
        lock = self.take()
        self._kept.lock = lock
        try:
            yield
        finally:
            self._kept.lock = None
            if lock is not None:
                lock.release()


TURN = _Turn(patience=0.5)
UNHURRIED = frozenset({"nvmlDeviceGetPcieThroughput"})
"""Sleeps for 20 ms in the library: with eight GPUs this would hold up everything for a third of a second."""


class _CallFailed(Exception):  # noqa: N818 - never leaves this file
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def _call(function: str, *arguments: Any) -> Any:
    """Make one call of nvidia-ml-py; a failure becomes its kind."""
    call = OWN_CALLS.get(function) or getattr(pynvml, function, None)
    if call is None:  # An older nvidia-ml-py.
        raise _CallFailed("function_not_found")
    turn = None if function in UNHURRIED else TURN.take()
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise _CallFailed(_kind(error.value)) from None
    except pynvml.NVMLLibraryMismatchError:
        raise _CallFailed("function_not_found") from None
    except (AttributeError, TypeError, ValueError, MemoryError, OverflowError, ctypes.ArgumentError) as error:
        # The driver answered what nvidia-ml-py cannot take apart: a name that is no text, a list without end.
        raise _CallFailed("malformed") from error
    finally:
        if turn is not None:
            turn.release()


def _get_samples(handle: Any, kind: int, since: int) -> Any:
    """Get samples with one call: nvidia-ml-py makes two, the first only for their number."""
    value_type, count = ctypes.c_uint(), ctypes.c_uint(SAMPLES_ROOM)
    samples = (pynvml.c_nvmlSample_t * SAMPLES_ROOM)()
    code = pynvml.nvmlLib.nvmlDeviceGetSamples(
        handle, ctypes.c_uint(kind), ctypes.c_ulonglong(since), ctypes.byref(value_type), ctypes.byref(count), samples
    )
    if code == pynvml.NVML_ERROR_NOT_FOUND:
        raise pynvml.NVMLError(code)
    if code != pynvml.NVML_SUCCESS or count.value > SAMPLES_ROOM:
        return pynvml.nvmlDeviceGetSamples(handle, kind, since)
    return value_type.value, samples[: count.value]


SAMPLES_ROOM = 256
"""More than the 120 of the driver's buffer."""
OWN_CALLS: Mapping[str, Callable[..., Any]] = {"nvmlDeviceGetSamples": _get_samples}


UNKNOWN_CODE = "unknown_code"
"""One word for all codes that have no name: a garbled one must not make a series of its own each time."""
MAX_CODES_TOLD = 16
_told: set[int] = set()


def _kind(code: int) -> str:
    kind = ERROR_KINDS.get(code)
    if kind is None and code not in _told and len(_told) < MAX_CODES_TOLD:
        _told.add(code)
        log.warning("NVML answers %d, a code that has no name here: counted as %s", code, UNKNOWN_CODE)
    return kind or UNKNOWN_CODE


def _quietly(function: str, *arguments: Any) -> None:
    try:
        _call(function, *arguments)
    except _CallFailed as failed:
        log.debug("%s: %s", function, failed.kind)


def _value(value_type: int, union: Any) -> float:
    member = VALUE_TYPES[value_type] if value_type in range(len(VALUE_TYPES)) else ""
    if not hasattr(union, member):  # An older nvidia-ml-py knows fewer.
        raise _CallFailed("unknown_value_type")
    return float(getattr(union, member))


# GPUs and questions.


@dataclass(slots=True)
class _Gpm:
    """Two samples that take turns in being the older one."""

    older: Any
    newer: Any
    taken_at: float | None = None


@dataclass(slots=True)
class _Gpu:
    """One GPU while the library is open."""

    handle: Any
    identity: GpuIdentity
    refused: set[tuple[str, int]] = field(default_factory=set)
    """Calls that this GPU does not support, as (reading, number of the attempt)."""
    lost: str | None = None
    answered: dict[str, float] = field(default_factory=dict)
    """When a reading that is dear was last obtained."""
    constants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers that never change."""
    power_samples_until: int = 0
    """Stamp of the newest buffered power sample seen, in µs of the driver's wall clock."""
    gpm: _Gpm | None = None


@dataclass(frozen=True, slots=True)
class _Listed:
    """What one place of a listing tells of the GPU in it; empty is not told."""

    index: int
    handle: Any
    uuid: str
    bus_id: str
    known: str
    """The name of the GPU that was met there before."""


Attempt = Callable[[_Gpu], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Question:
    """A reading and the calls that can answer it: the next one is tried when one fails, for whatever reason."""

    reading: str
    attempts: tuple[Attempt, ...]
    unsupported: Mapping[str, Any] = field(default_factory=dict)
    """What it tells that the GPU supports none of the calls."""
    constant: bool = False
    """The answer never changes: it is asked for once."""
    every: float = 0.0
    """Seconds from one answer to the next question, for what is dear: visits in between leave the reading out."""

    def refused_by(self, gpu: _Gpu) -> bool:
        return all((self.reading, number) in gpu.refused for number in range(len(self.attempts)))


def _simple(function: str, name: str, unit: Callable[[float], float], *arguments: Any) -> Attempt:
    return lambda gpu: {name: unit(_call(function, gpu.handle, *arguments))}


def _power_instant(gpu: _Gpu) -> dict[str, Any]:
    answer = _call("nvmlDeviceGetFieldValues", gpu.handle, [(FIELD_POWER_INSTANT, SCOPE_GPU)])[0]
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        kind = _kind(answer.nvmlReturn)
        # A driver calls a field that is newer than itself an invalid argument.
        raise _CallFailed("not_supported" if kind == "invalid_argument" else kind)
    return {"power_instant_watts": _value(answer.valueType, answer.value) / 1000}


def _power_samples(gpu: _Gpu) -> dict[str, Any]:
    # The stamps are wall time. Once the clock was set back, asking for "newer than" the old stamp would give nothing
    # for as long as it was set back by.
    now = time.time_ns() // 1000
    since = gpu.power_samples_until if gpu.power_samples_until < now + 5_000_000 else now
    try:
        value_type, samples = _call("nvmlDeviceGetSamples", gpu.handle, POWER_SAMPLES, since)
    except _CallFailed as failed:
        if failed.kind not in {"not_found", "insufficient_size"}:
            raise
        # Nothing new, or the buffer grew between the calls for its size and its content: the next visit has it.
        return {}
    values = [(s.timeStamp, _value(value_type, s.sampleValue)) for s in samples]
    gpu.power_samples_until = max((stamp for stamp, _ in values), default=since)
    return {"power_samples_watts": tuple(value / 1000 for _, value in values)}


def _utilization(gpu: _Gpu) -> dict[str, Any]:
    rates = _call("nvmlDeviceGetUtilizationRates", gpu.handle)
    return {"utilization_ratio": from_percent(rates.gpu), "memory_busy_ratio": from_percent(rates.memory)}


def _event_reasons(function: str) -> Attempt:
    return lambda gpu: {"event_reasons": reason_names(_call(function, gpu.handle))}


def _limit_range(gpu: _Gpu) -> dict[str, Any]:
    least, most = _call("nvmlDeviceGetPowerManagementLimitConstraints", gpu.handle)
    return {"limit_min_watts": least / 1000, "limit_max_watts": most / 1000}


def _memory(*version: Any) -> Attempt:
    def ask(gpu: _Gpu) -> dict[str, Any]:
        memory = _call("nvmlDeviceGetMemoryInfo", gpu.handle, *version)
        return {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}

    return ask


def _processes(function: str) -> Attempt:
    def ask(gpu: _Gpu) -> dict[str, Any]:
        running = _call(function, gpu.handle)
        # nvidia-ml-py turns "not available" (2^64-1 bytes) into None. PID 0 is no process.
        return {"processes": tuple(GpuProcess(p.pid, p.usedGpuMemory) for p in running if p.pid)}

    return ask


def _named(function: str, name: str, words: Mapping[int, str]) -> Attempt:
    def ask(gpu: _Gpu) -> dict[str, Any]:
        number = _call(function, gpu.handle)
        return {name: words.get(number, f"unknown_{number}")}

    return ask


def _nvlink(gpu: _Gpu) -> dict[str, Any]:
    for link in range(NVLINK_MAX_LINKS):
        try:
            if _call("nvmlDeviceGetNvLinkState", gpu.handle, link):
                return {"nvlink_active": True}
        except _CallFailed as failed:
            if link == 0 or failed.kind in LOST | CLOSED:
                raise
            break  # Past the last link of this GPU.
    return {"nvlink_active": False}


def _answers(attempt: Attempt, **values: Any) -> Attempt:
    """Ask only to know that there is an answer."""
    return lambda gpu: values if attempt(gpu) else {}


ENERGY = _Question(
    "energy",
    (_simple("nvmlDeviceGetTotalEnergyConsumption", "energy_joules", from_milli),),
    # At the least. See energy_every().
    every=10.0,
)
ENERGY_SHARE = 0.0022
"""Of one CPU, for the energy of all GPUs."""


def energy_every(seconds: float, gpus: int) -> float:
    """How often to read energy: where a call is dear, and there are many GPUs, less often.

    On an H200 the driver spins for 3 to 4 ms until the GPU's own processor has answered: every second for one, every
    10 s for eight.

    Args:
        seconds: that one call takes.
        gpus: how many there are.
    """
    return min(ENERGY.every, float(math.floor(seconds * gpus / ENERGY_SHARE)))


SAMPLE = (
    _Question("power", (_simple("nvmlDeviceGetPowerUsage", "power_watts", from_milli),)),
    _Question("power_instant", (_power_instant,)),
    # 0.35 ms of a CPU. The buffer holds the last 2.4 s.
    _Question("power_samples", (_power_samples,), every=2.0),
    _Question("utilization", (_utilization,)),
    _Question("sm_clock", (_simple("nvmlDeviceGetClockInfo", "sm_clock_hertz", from_mega, CLOCK_SM),)),
    _Question(
        "event_reasons",
        (
            _event_reasons("nvmlDeviceGetCurrentClocksEventReasons"),
            _event_reasons("nvmlDeviceGetCurrentClocksThrottleReasons"),  # Drivers before R535.
        ),
    ),
)

PCIE = tuple(
    # An average over 20 ms, in a call that blocks for as long.
    _Question(reading, (_simple("nvmlDeviceGetPcieThroughput", name, from_kilo, direction),))
    for reading, name, direction in (
        ("pcie_transmit", "pcie_transmit_bytes_per_second", PCIE_TRANSMIT),
        ("pcie_receive", "pcie_receive_bytes_per_second", PCIE_RECEIVE),
    )
)
LINK = tuple(
    _Question(reading, (_simple(function, f"pcie_{reading}", int),))
    for reading, function in (
        ("link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        ("link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    )
)

MEMORY = _Question(
    "memory",
    (
        _memory(pynvml.nvmlMemory_v2),
        _memory(),  # Counts what the driver keeps for itself as used.
    ),
)
CONDITION = (
    _Question("limit_enforced", (_simple("nvmlDeviceGetEnforcedPowerLimit", "limit_enforced_watts", from_milli),)),
    _Question(
        "limit_default", (_simple("nvmlDeviceGetPowerManagementDefaultLimit", "limit_default_watts", from_milli),)
    ),
    _Question("limit_requested", (_simple("nvmlDeviceGetPowerManagementLimit", "limit_requested_watts", from_milli),)),
    _Question("limit_range", (_limit_range,)),
    MEMORY,
    _Question(
        # 1.4 ms of a CPU.
        "sm_clock_max",
        (_simple("nvmlDeviceGetMaxClockInfo", "sm_clock_max_hertz", from_mega, CLOCK_SM),),
        constant=True,
    ),
    _Question(
        "temperature",
        (
            _simple("nvmlDeviceGetTemperatureV", "temperature_celsius", float, SENSOR_GPU),
            _simple("nvmlDeviceGetTemperature", "temperature_celsius", float, SENSOR_GPU),
        ),
    ),
    _Question(
        "processes",
        (
            _processes("nvmlDeviceGetComputeRunningProcesses"),
            _processes("nvmlDeviceGetComputeRunningProcesses_v2"),
        ),
    ),
)

IDENTITY = (
    _Question("name", (lambda gpu: {"name": _call("nvmlDeviceGetName", gpu.handle)},)),
    _Question("architecture", (_named("nvmlDeviceGetArchitecture", "architecture", ARCHITECTURES),)),
    _Question("virtualization", (_named("nvmlDeviceGetVirtualizationMode", "virtualization", VIRTUALIZATION),)),
    _Question("mig", (lambda gpu: {"mig": bool(_call("nvmlDeviceGetMigMode", gpu.handle)[0])},), {"mig": False}),
    _Question(
        "energy_counter",
        tuple(_answers(attempt, has_energy_counter=True) for attempt in ENERGY.attempts),
        {"has_energy_counter": False},
        every=math.inf,
    ),
    _Question(
        "own_memory",
        tuple(_answers(attempt, unified_memory=False) for attempt in MEMORY.attempts),
        {"unified_memory": True},
        every=math.inf,
    ),
    _Question("nvlink", (_nvlink,), every=600.0),
)


class _Visit:
    """One round of questions to one GPU: what was answered, what failed, and what a failure means.

    Args:
        gpu: whom to ask.
        reported: readings of this GPU whose lack of support has been told. It is told once: it is no failure.
        now: monotonic seconds.
    """

    def __init__(self, gpu: _Gpu, reported: set[str], now: float) -> None:
        self.gpu = gpu
        self._now = now
        self.values: dict[str, Any] = {}
        self.errors: list[ReadingError] = []
        self._reported = reported
        self._answered = 0
        self._failed: Counter[str] = Counter()

    def ask(self, *questions: _Question) -> None:
        """Put questions to the GPU.

        Raises:
            GpuLostError: the GPU is gone.
            SourceError: the library is gone.
        """
        for question in questions:
            since = self._now - self.gpu.answered.get(question.reading, -math.inf)
            if since >= question.every - EARLY:
                self._ask(question)
            if question.unsupported and question.refused_by(self.gpu):
                self.values |= question.unsupported

    def _ask(self, question: _Question) -> None:
        if question.reading in self.gpu.constants:
            self.values |= self.gpu.constants[question.reading]
            return
        kind: str | None = None
        for number, attempt in enumerate(question.attempts):
            call = (question.reading, number)
            if call in self.gpu.refused:
                continue
            try:
                answer = self._attempt(attempt)
            except _CallFailed as failed:
                kind = failed.kind
                if kind in UNSUPPORTED:
                    self.gpu.refused.add(call)
            else:
                self.values |= answer
                self._answered += 1
                if question.constant:
                    self.gpu.constants[question.reading] = answer
                if question.every:
                    self.gpu.answered[question.reading] = self._now
                return
        if kind is not None:
            self.failed(question.reading, kind)

    def _attempt(self, attempt: Attempt) -> dict[str, Any]:
        if self.gpu.lost:  # Found by the other thread that visits this GPU, perhaps just now.
            raise _lost(self.gpu.lost)
        try:
            return attempt(self.gpu)
        except _CallFailed as failed:
            if failed.kind in LOST:
                self.gpu.lost = failed.kind
                raise _lost(failed.kind) from None
            if failed.kind in CLOSED:
                raise _closed(failed.kind) from None
            raise

    def failed(self, reading: str, kind: str) -> None:
        """Note that one reading was not obtained."""
        if kind in UNSUPPORTED:
            self._answered += 1
            if reading in self._reported:
                return
            self._reported.add(reading)
        else:
            self._failed[kind] += 1
        self.errors.append(ReadingError(reading, kind))

    def end(self) -> None:
        """Raise when nothing at all was answered: then the GPU or the library fails, and not a reading."""
        if self._answered or self._failed.total() < 2:  # noqa: PLR2004 - one failing call proves nothing
            return
        try:
            _call("nvmlDeviceGetCount")
        except _CallFailed as failed:
            raise _closed(failed.kind) from None
        self.gpu.lost = self._failed.most_common(1)[0][0]
        raise _lost(self.gpu.lost)


def _lost(kind: str) -> GpuLostError:
    return GpuLostError(kind, LOSSES.get(kind, f"the GPU answers every call with '{kind}'"))


def _closed(kind: str) -> SourceError:
    hint = HINTS.get(kind, f"NVML answers '{kind}'")
    if kind == "lib_rm_version_mismatch":
        # NVML tells neither version before it is open: one is in the name of its file, one is the module's.
        library = _find(Path("/proc/self/maps"), r"libnvidia-ml\.so\.(\d+\.[\d.]+)")
        module = _find(Path("/proc/driver/nvidia/version"), r"NVRM version:.*?\s(\d+\.[\d.]+)\s")
        hint += f" (library {library}, kernel module {module})"
    return SourceError(kind, hint)


def _find(path: Path, pattern: str) -> str:
    try:
        found = re.search(pattern, path.read_text(errors="replace"))
    except OSError:
        found = None
    return found.group(1) if found else "unknown"


class _XidEvents:
    """Counts Xid errors: one event set for all GPUs, emptied without waiting whenever some GPU is visited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: Any = None
        self._uuids: dict[int | None, str] = {}
        self._deaf: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def open(self) -> None:
        self._uuids.clear()
        try:
            self._set = _call("nvmlEventSetCreate")
        except _CallFailed as failed:
            log.debug("no Xid events: %s", failed.kind)

    def listen(self, handle: Any, uuid: str) -> None:
        """Listen to a GPU, unless this is done already."""
        address = _address(handle)
        if self._uuids.get(address) == uuid:
            return
        self._uuids[address] = uuid
        self._deaf[uuid] = "not_supported"
        if self._set is None:
            return
        try:
            _call("nvmlDeviceRegisterEvents", handle, XID_EVENTS, self._set)
        except _CallFailed as failed:
            # Costs one reading, whatever the reason: the other readings tell whether the GPU is lost.
            self._deaf[uuid] = "unknown" if failed.kind in LOST | CLOSED else failed.kind
        else:
            self._counts[uuid] += 0
            del self._deaf[uuid]

    def count(self, gpu: _Gpu) -> dict[str, Any]:
        """Take what has come for any GPU, then tell the count of this one since the process began to listen."""
        uuid = gpu.identity.uuid
        deaf = self._deaf.get(uuid, None if uuid in self._counts else "not_ready")
        if deaf:
            raise _CallFailed(deaf)
        # Whoever finds the lock taken need not wait, perhaps for a call that hangs: the other one takes all events.
        if self._lock.acquire(blocking=False):
            try:
                self._take()
            finally:
                self._lock.release()
        return {"xid_errors": self._counts[uuid]}

    def _take(self) -> None:
        for _ in range(XID_BATCH):
            try:
                event = _call("nvmlEventSetWait_v2", self._set, 0)
            except _CallFailed as failed:
                if failed.kind == "timeout":  # No more events.
                    return
                # The set belongs to all GPUs: this failure says nothing about the one that is visited.
                raise _CallFailed("unknown" if failed.kind in LOST else failed.kind) from None
            if event.eventType & XID_EVENTS:
                self._counts[self._uuids.get(_address(event.device), "")] += 1

    def forget(self, uuid: str) -> None:
        self._uuids = {address: whose for address, whose in self._uuids.items() if whose != uuid}
        self._deaf.pop(uuid, None)
        self._counts.pop(uuid, None)

    def close(self) -> None:
        if self._set is not None:
            _quietly("nvmlEventSetFree", self._set)
        self._set = None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class NvmlSource:
    """GPUs through NVML: a :class:`wattline.gpus.source.GpuSource`.

    Thread-safe. The library is shut down as often as it is initialised, and never while a call is inside the driver.

    Args:
        clock: monotonic seconds, for the ``t`` of readings.
        gpm: whether to read activity, where the GPU has it (Hopper and newer).
        energy_every: seconds from one reading of the energy counter to the next, instead of what
            :func:`energy_every` makes of the time that it takes. Samples in between have no energy.
        inventory: folder with an entry for each GPU that the kernel driver holds. NVML may list only those that were
            there when it was opened: a change here opens it anew.
    """

    name = "nvml"

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        inventory: Path = Path("/proc/driver/nvidia/gpus"),
        energy_every: float | None = None,
        gpm: bool = True,
    ) -> None:
        self._clock = clock
        self._inventory = inventory
        self._gpm = gpm
        self._energy = ENERGY if energy_every is None else replace(ENERGY, every=energy_every)
        self._energy_took: deque[float] | None = deque(maxlen=16) if energy_every is None else None
        """Seconds of the last calls: the shortest of them was not held up by anything."""
        self._gate = threading.Lock()
        """Held while the library is opened or closed, and for an instant on the way into and out of the driver."""
        self._inside = 0
        self._opened = False
        self._leaving = False
        self._why_closed = SourceError("uninitialized", "NVML has not been opened yet")
        self._opened_with: frozenset[str] = frozenset()
        self._gpus: dict[str, _Gpu] = {}
        self._unlisted: dict[int, str] = {}
        self._peers: frozenset[str] = frozenset()
        """The GPUs that were asked about each other."""
        self._gpm_samples: list[Any] = []
        self._events = _XidEvents()
        # These outlive the library. Who was met at a bus address is who it was, whatever it answers once.
        self._names: dict[str, str] = {}
        # What is not supported stays so, and is told once.
        self._reported: dict[str, set[str]] = {}

    def discover(self) -> tuple[GpuIdentity, ...]:
        """Open the library if it is closed, and list the GPUs that are there now.

        Returns:
            Identities in NVML's order, each with a ``uuid`` of its own. A GPU that cannot be identified is left out.

        Raises:
            SourceError: the library cannot be opened, or lists nothing; ``kind`` is NVML's name of the error.
        """
        with self._gate:
            if self._open():
                # Visits wait at the gate until the handles they need are new too.
                try:
                    return self._list()
                except _CallFailed as failed:
                    self._why_closed = _closed(failed.kind)
                    self._shut()
                    raise self._why_closed from None
            self._inside += 1
        try:
            return self._list()
        except _CallFailed as failed:
            raise _closed(failed.kind) from None
        finally:
            self._leave()

    def sample(self, uuid: str) -> GpuSample:
        """Read energy, power, utilisation, clock and event reasons of one GPU: 4 ms on an H200, 3 of them energy.

        Raises:
            GpuLostError: this GPU is gone or needs a reset.
            SourceError: the library as a whole is gone.
        """
        with self._visit(uuid) as visit, TURN.kept():
            # Energy first and the time after it: it is the slow one, and its delta is divided by one of time.
            began = time.perf_counter()
            visit.ask(self._energy)
            if "energy_joules" in visit.values and self._energy_took is not None:
                self._energy_took.append(time.perf_counter() - began)
                every = energy_every(min(self._energy_took), len(self._gpus))
                self._energy = replace(ENERGY, every=every)
            t = self._clock()
            visit.ask(*SAMPLE)
            visit.end()
            return GpuSample(t=t, uuid=uuid, errors=tuple(visit.errors), **visit.values)

    def activity(self, uuid: str) -> GpuActivity:
        """Read PCIe traffic, the link and, on Hopper and newer, activity. Raises as :meth:`sample`.

        With GPM: averages since the last call, over 0.15 s in the first one. Without: PCIe traffic over 20 ms each way.
        """
        with self._visit(uuid) as visit:
            if self._gpm:
                self._ask_gpm(visit)
            t = self._clock()
            told = {error.reading for error in visit.errors}
            told |= {name.removesuffix("_bytes_per_second") for name in visit.values}
            visit.ask(*(question for question in PCIE if question.reading not in told))
            with TURN.kept():
                visit.ask(*LINK)
            visit.end()
            return GpuActivity(t=t, uuid=uuid, errors=tuple(visit.errors), **visit.values)

    def condition(self, uuid: str) -> GpuCondition:
        """Read limits, memory, temperature, processes and Xid errors. Raises as :meth:`sample`."""
        with self._visit(uuid) as visit, TURN.kept():
            t = self._clock()
            visit.ask(*CONDITION, _Question("xid_errors", (self._events.count,)))
            visit.end()
            return GpuCondition(t=t, uuid=uuid, errors=tuple(visit.errors), **visit.values)

    @property
    def unidentified(self) -> int:
        """How many GPUs the library counts without telling which they are."""
        return len(self._unlisted)

    def forget(self, uuid: str) -> None:
        """Free what outlives the listing of a GPU."""
        self._reported.pop(uuid, None)
        self._names = {bus_id: name for bus_id, name in self._names.items() if name != uuid}
        self._events.forget(uuid)

    def close(self) -> None:
        """Shut the library down: now, or when the last call comes back from the driver."""
        with self._gate:
            if self._opened:
                self._why_closed = SourceError("uninitialized", "NVML is closed")
                self._shut()

    # Into the driver and out of it. The gate is held by the callers of _open, _shut and _shut_if_empty.

    @contextmanager
    def _visit(self, uuid: str) -> Iterator[_Visit]:
        with self._gate:
            if not self._opened:
                raise self._why_closed
            gpu = self._gpus.get(uuid)
            if gpu is None:
                raise _lost("gpu_not_found")
            self._inside += 1
        try:
            yield _Visit(gpu, self._reported.setdefault(uuid, set()), self._clock())
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._gate:
            self._inside -= 1
            self._shut_if_empty()

    def _open(self) -> bool:
        """Open the library if it is closed or out of date; return whether it was."""
        present = self._present()
        if self._opened and present != self._opened_with and not self._inside:
            log.info("the GPUs of this host have changed: NVML is opened anew")
            self._shut()
        if self._opened:
            return False
        if self._leaving:
            raise _closed("busy")
        try:
            _call("nvmlInit")
        except _CallFailed as failed:
            self._why_closed = _closed(failed.kind)
            raise self._why_closed from None
        self._opened, self._opened_with = True, present
        self._events.open()
        return True

    def _shut(self) -> None:
        self._opened, self._leaving = False, True
        self._shut_if_empty()

    def _shut_if_empty(self) -> None:
        if not self._leaving or self._inside:
            return
        self._leaving = False
        self._gpus, self._peers = {}, frozenset()
        self._events.close()
        for sample in self._gpm_samples:
            _quietly("nvmlGpmSampleFree", sample)
        self._gpm_samples = []
        _quietly("nvmlShutdown")

    def _present(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in self._inventory.iterdir())
        except OSError:
            return frozenset()

    # Listing.

    def _list(self) -> tuple[GpuIdentity, ...]:
        found: list[_Listed] = []
        unlisted: dict[int, str] = {}
        if (there := _call("nvmlDeviceGetCount")) > MAX_GPUS:
            raise _CallFailed("malformed")
        for index in range(there):
            try:
                found.append(self._look(index, _call("nvmlDeviceGetHandleByIndex", index)))
            except _CallFailed as failed:
                if failed.kind in CLOSED:
                    raise
                unlisted[index] = failed.kind
        self._tell(unlisted)
        if unlisted and not found:
            raise _CallFailed(next(iter(unlisted.values())))

        driver = _driver_version()
        names = _names(found)
        places = {name: bus_id for bus_id, name in self._names.items()}
        gpus: dict[str, _Gpu] = {}
        for listed in found:
            name = names[listed.index]
            bus_id = listed.bus_id or places.get(name, "")
            identity = GpuIdentity(name, listed.index, pci_bus_id=bus_id, driver=driver)
            gpus[name] = self._describe(identity, listed.handle)
        self._names = {bus_id: name for bus_id, name in self._names.items() if name not in gpus}
        self._names |= {gpu.identity.pci_bus_id: name for name, gpu in gpus.items() if gpu.identity.pci_bus_id}
        reachable = {uuid: gpu for uuid, gpu in gpus.items() if not gpu.lost}
        # 1.6 ms a pair on an H200: only when there is somebody new to ask about.
        if reachable.keys() != self._peers:
            self._peers = frozenset(reachable) if _ask_peers([*reachable.values()]) else frozenset()
        self._gpus = gpus
        return tuple(gpu.identity for gpu in gpus.values())

    def _look(self, index: int, handle: Any) -> _Listed:
        bus_id = _bus_id(handle)
        address = _address(handle)
        here = (name for name, gpu in self._gpus.items() if _address(gpu.handle) == address)
        known = self._names.get(bus_id) or next(here, "")
        return _Listed(index, handle, _uuid(handle, known=bool(known)), bus_id, known)

    def _describe(self, identity: GpuIdentity, handle: Any) -> _Gpu:
        """Ask a GPU who it is; a GPU that was there before keeps what has been learned about its calls."""
        known = self._gpus.get(identity.uuid)
        gpu = known or _Gpu(handle, identity)
        before = gpu.identity
        gpu.identity = replace(before, index=identity.index, pci_bus_id=identity.pci_bus_id, driver=identity.driver)
        gpu.handle, gpu.lost = handle, None
        visit = _Visit(gpu, set(), self._clock())
        try:
            visit.ask(*IDENTITY)
        except GpuLostError:
            return gpu  # Listed nevertheless: its readings will say that it is lost.
        gpu.identity = replace(gpu.identity, **visit.values)
        if gpu.identity.nvlink_active is None and gpu.identity.virtualization == "none":
            gpu.identity = replace(gpu.identity, nvlink_active=False)  # A guest, in contrast, may just not be told.
        self._events.listen(handle, identity.uuid)
        if known and gpu.identity.mig != before.mig:
            return _Gpu(handle, gpu.identity)  # Another mode supports other calls.
        return gpu

    def _tell(self, unlisted: dict[int, str]) -> None:
        for index, kind in unlisted.items():
            if self._unlisted.get(index) != kind:
                log.warning("GPU %d cannot be identified and is left out: %s", index, kind)
        self._unlisted = unlisted

    # Activity.

    def _ask_gpm(self, visit: _Visit) -> None:
        visit.ask(_Question("gpm", (self._measure,)))
        for metric, code, value in visit.values.pop("gpm_metrics", ()):
            reading, name, unit = GPM_METRICS[metric]
            if code == pynvml.NVML_SUCCESS and math.isfinite(value):
                visit.values[name] = unit(value)
            elif code == pynvml.NVML_SUCCESS:
                visit.failed(reading, "not_a_number")
            else:
                if _kind(code) in UNSUPPORTED:
                    visit.gpu.refused.add(("gpm", metric))
                if reading not in {question.reading for question in PCIE}:  # Those have a second source.
                    visit.failed(reading, _kind(code))

    def _allocate(self) -> Any:
        sample = _call("nvmlGpmSampleAlloc")
        self._gpm_samples.append(sample)
        return sample

    def _measure(self, gpu: _Gpu) -> dict[str, Any]:
        """Measure activity since the last time, as (metric, return code, value)."""
        if gpu.gpm is None:
            if not _call("nvmlGpmQueryDeviceSupport", gpu.handle).isSupportedDevice:
                raise _CallFailed("not_supported")
            gpu.gpm = _Gpm(self._allocate(), self._allocate())
        gpm = gpu.gpm
        if gpm.taken_at is None or self._clock() - gpm.taken_at > GPM_MAX_SPAN:
            _call("nvmlGpmSampleGet", gpu.handle, gpm.older)
            gpm.taken_at = self._clock()
        time.sleep(max(0.0, gpm.taken_at + GPM_MIN_SPAN - self._clock()))
        _call("nvmlGpmSampleGet", gpu.handle, gpm.newer)
        metrics = [metric for metric in GPM_METRICS if ("gpm", metric) not in gpu.refused]
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = gpm.older, gpm.newer
        for slot, metric in enumerate(metrics):
            request.metrics[slot].metricId = metric
        gpm.older, gpm.newer, gpm.taken_at = gpm.newer, gpm.older, self._clock()
        _call("nvmlGpmMetricsGet", request)
        answers = (request.metrics[slot] for slot in range(len(metrics)))
        return {"gpm_metrics": tuple((answer.metricId, answer.nvmlReturn, answer.value) for answer in answers)}


def _driver_version() -> str:
    try:
        return str(_call("nvmlSystemGetDriverVersion"))
    except _CallFailed:
        return ""


def _uuid(handle: Any, *, known: bool) -> str:
    try:
        return str(_call("nvmlDeviceGetUUID", handle))
    except _CallFailed as failed:
        # One that is known goes on under its name: one failing call does not make it another GPU, nor a lost one.
        if failed.kind in UNSUPPORTED | {"malformed"} or (known and failed.kind not in LOST | CLOSED):
            return ""
        raise


def _bus_id(handle: Any) -> str:
    try:
        return str(_call("nvmlDeviceGetPciInfo", handle).busId)
    except _CallFailed as failed:
        if failed.kind in LOST | CLOSED:
            raise
        return ""


UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def _names(found: list[_Listed]) -> dict[int, str]:
    """Return by index a name that no other GPU has: two series of the same labels would fail a whole scrape.

    It is the UUID. A GPU that was met before and tells none now is who it was. Only one that nobody has met is named
    by its place.
    """
    uses = Counter(gpu.uuid for gpu in found)
    own = {gpu.index: gpu.uuid for gpu in found if uses[gpu.uuid] == 1 and not _blank(gpu.uuid)}
    plain = {index: uuid for index, uuid in own.items() if UUID.fullmatch(uuid)}
    names: dict[int, str] = {}
    # A UUID that is told plainly belongs to who tells it: that card was moved here, or has replaced another one.
    for gpu in sorted(found, key=lambda gpu: (gpu.index not in plain, not gpu.known)):
        told = (plain.get(gpu.index), gpu.known, own.get(gpu.index), gpu.bus_id)
        words = chain(told, (f"index-{number}" for number in count(gpu.index)))
        names[gpu.index] = next(word for word in words if word and word not in names.values())
    return names


def _blank(uuid: str) -> bool:
    """Whether all digits are the same, as with a UUID of zeros, or there are none."""
    return len(set(uuid.removeprefix("GPU-")) - {"-"}) < 2  # noqa: PLR2004 - two digits differ


def _ask_peers(gpus: list[_Gpu]) -> bool:
    """Ask each GPU which others it can read peer to peer; return whether all gave answers that last."""
    lasting = True
    for gpu in gpus:
        others = [other for other in gpus if other is not gpu]
        try:
            statuses = [_call("nvmlDeviceGetP2PStatus", gpu.handle, other.handle, P2P_READ) for other in others]
        except _CallFailed as failed:
            statuses = [P2P_UNKNOWN]
            lasting = lasting and failed.kind in UNSUPPORTED
        visible = P2P_UNKNOWN not in statuses
        gpu.identity = replace(
            gpu.identity,
            p2p_peers=statuses.count(P2P_OK) if visible else None,
            p2p_peers_possible=len(others) if visible else None,
        )
    return lasting
