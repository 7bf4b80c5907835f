"""Eight simulated GPUs, and the source that reads them like real ones.

The model of a GPU is a pure function of the seed and of time: its true power is constant within cells of 20 ms, and
every power that is read (average, instantaneous, buffered samples, energy counter) is a mean or an integral of that one
truth, over the same spans as the driver's.
"""

from __future__ import annotations

from math import floor
from threading import Lock
from typing import TYPE_CHECKING

from wattline.gpus.source import GpuLostError
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuProcess, GpuSample
from wattline.simulation.noise import CELL_SECONDS, Noise, seeded
from wattline.simulation.scenario import (
    CLOCK_MAX_HERTZ,
    GPU_COUNT,
    LIMIT_MIN_WATTS,
    LIMIT_WATTS,
    LINK_GENERATION,
    LINK_WIDTH,
)

if TYPE_CHECKING:
    from wattline.simulation.clock import SimClock
    from wattline.simulation.scenario import Load, Moment, Timeline

GPU_NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"

_BOARD_SPREAD = 0.015
"""Boards of one kind differ by this much in power at the same work."""
_UPDATE_SECONDS = 0.1
"""The driver renews power and energy at this pace; in between it repeats them."""
_AVERAGE_SECONDS = 1.0
_INSTANT_SECONDS = 0.025
_BUFFERED_SAMPLES = 119
"""The driver keeps this many of its power samples: a reader who comes later has missed some."""
_THERMAL_SECONDS = 20.0
_CELSIUS_PER_WATT = 0.085
_MEMORY_BYTES = 97_887 * 2.0**20
_MEMORY_SHARE_USED = 0.93
_BOOT_ENERGY_JOULES = 2.75e6
"""The counter runs since the driver was loaded, long before the simulation began."""
_FIRST_PID = 2**22 + 1
"""Above the highest process id that Linux gives: no simulated process is taken for a real one."""
_LINE_RATE_MARGIN = 0.02


class SimulatedGpu:
    """One GPU of the rig. Every method may be called from any thread, for any moment, in any order."""

    def __init__(self, timeline: Timeline, index: int, seed: int, host: int = 1) -> None:
        self._timeline = timeline
        self._index = index
        self._noise = Noise(seeded(seed, "gpu", index))
        # Pairs of boards lie equally far above and below: the rig as a whole draws what the phase says.
        pair = seeded(seed, "boards", index // 2).uniform(0.2, 1.0) * _BOARD_SPREAD
        self._gain = 1.0 + (pair if index % 2 else -pair)
        self._lock = Lock()
        self._energy_at_start = [0.0]
        self.uuid = f"GPU-51a0ded0-{host - 1:04x}-4000-8000-{index:012x}"

    def identity(self) -> GpuIdentity:
        """What never changes: eight boards passed through to a guest, without peer to peer and NVLink."""
        return GpuIdentity(
            uuid=self.uuid,
            index=self._index,
            name=GPU_NAME,
            pci_bus_id=f"00000000:{self._index + 1:02X}:00.0",
            architecture="blackwell",
            driver="580.95.05",
            virtualization="passthrough",
            mig=False,
            has_energy_counter=True,
            p2p_peers=0,
            p2p_peers_possible=GPU_COUNT - 1,
            nvlink_active=False,
        )

    def sample(self, t: float, since: float | None = None) -> GpuSample:
        """What is read every second, at ``t``.

        Args:
            t: now, in simulated seconds.
            since: when the buffered power samples were last fetched; ``None`` for never.

        Raises:
            GpuLostError: the GPU is off the bus at ``t``.
        """
        load = self._load(t)
        updated = floor(t / _UPDATE_SECONDS + 1e-6) * _UPDATE_SECONDS
        return GpuSample(
            t=t,
            uuid=self.uuid,
            power_watts=round(self._mean_power(updated, _AVERAGE_SECONDS), 3),
            power_instant_watts=round(self._mean_power(updated, _INSTANT_SECONDS), 3),
            energy_joules=round(_BOOT_ENERGY_JOULES + self.energy(updated), 3),
            power_samples_watts=self._buffered(t, since),
            utilization_ratio=self._percent(t, load.utilization, 0.04 if load.utilization < 1.0 else 0.004),
            memory_busy_ratio=self._percent(t, min(1.2 * load.dram_active, 1.0), 0.01),
            sm_clock_hertz=self._clock(t, load),
            event_reasons=load.event_reasons,
        )

    def activity(self, t: float) -> GpuActivity:
        """PCIe and activity at ``t``. Raises as :meth:`sample`."""
        load = self._load(t)
        return GpuActivity(
            t=t,
            uuid=self.uuid,
            pcie_transmit_bytes_per_second=self._wobble(t + 1, load.pcie_transmit, 0.03),
            pcie_receive_bytes_per_second=self._wobble(t + 2, load.pcie_receive, 0.03),
            pcie_link_generation=LINK_GENERATION,
            pcie_link_generation_max=LINK_GENERATION,
            pcie_link_width=load.link_width,
            pcie_link_width_max=LINK_WIDTH,
            sm_active_ratio=self._wobble(t + 3, load.sm_active, _LINE_RATE_MARGIN),
            tensor_active_ratio=self._wobble(t + 4, load.tensor_active, _LINE_RATE_MARGIN),
            dram_active_ratio=self._wobble(t + 5, load.dram_active, _LINE_RATE_MARGIN),
        )

    def condition(self, t: float) -> GpuCondition:
        """Limits, memory, temperature and processes at ``t``. Raises as :meth:`sample`."""
        load = self._load(t)
        used = _MEMORY_SHARE_USED * _MEMORY_BYTES
        warmth = _CELSIUS_PER_WATT * self._mean_power(t, _THERMAL_SECONDS)
        return GpuCondition(
            t=t,
            uuid=self.uuid,
            limit_enforced_watts=load.limit_watts,
            limit_default_watts=LIMIT_WATTS,
            limit_requested_watts=load.limit_watts,
            limit_min_watts=LIMIT_MIN_WATTS,
            limit_max_watts=LIMIT_WATTS,
            memory_used_bytes=used,
            memory_total_bytes=_MEMORY_BYTES,
            sm_clock_max_hertz=CLOCK_MAX_HERTZ,
            temperature_celsius=float(round(load.inlet_celsius + warmth)),
            processes=(GpuProcess(pid=_FIRST_PID + self._index, memory_bytes=int(used) - 600 * 2**20),),
            xid_errors=0,
        )

    def energy(self, t: float) -> float:
        """Joules drawn since the simulation began: the exact integral of the true power. Below 0 before it."""
        moment = self._timeline.at(t)
        with self._lock:
            known = self._energy_at_start
            while len(known) <= moment.number:
                number = len(known) - 1
                start, end = self._timeline.start(number), self._timeline.start(number + 1)
                known.append(known[number] + self._drawn(self._timeline.phase(number).load_of(self._index), start, end))
            before = known[moment.number]
        return before + self._drawn(moment.phase.load_of(self._index), moment.start, t)

    def _drawn(self, load: Load, start: float, end: float) -> float:
        swing = load.swing * (self._noise.integral(end) - self._noise.integral(start))
        return self._gain * load.power_watts * (end - start + swing)

    def _mean_power(self, t: float, seconds: float) -> float:
        return (self.energy(t) - self.energy(t - seconds)) / seconds

    def _buffered(self, t: float, since: float | None) -> tuple[float, ...]:
        """The mean power of every cell that ended after ``since`` and not after ``t``, oldest first."""
        end = floor(t / CELL_SECONDS + 1e-6)
        first = end - _BUFFERED_SAMPLES
        if since is not None:
            first = max(first, floor(since / CELL_SECONDS + 1e-6))
        watts = []
        moment: Moment | None = None
        mean = swing = 0.0
        for cell in range(first, end):
            middle = (cell + 0.5) * CELL_SECONDS
            if moment is None or middle >= moment.end:
                moment = self._timeline.at(middle)
                load = moment.phase.load_of(self._index)
                mean, swing = self._gain * load.power_watts, load.swing
            watts.append(round(mean * (1.0 + swing * self._noise.cell(cell)), 3))
        return tuple(watts)

    def _load(self, t: float) -> Load:
        phase = self._timeline.at(t).phase
        if self._index in phase.lost_gpus:
            raise GpuLostError("gpu_is_lost", f"GPU {self._index} has fallen off the bus")
        return phase.load_of(self._index)

    def _percent(self, t: float, ratio: float, swing: float) -> float:
        """Whole percents, as the driver tells them; what is 0 stays 0."""
        if ratio == 0.0:
            return 0.0
        return min(max(round(ratio + swing * self._noise.at(t), 2), 0.0), 1.0)

    def _wobble(self, t: float, value: float, swing: float) -> float:
        return value * (1.0 + swing * self._noise.at(t))

    def _clock(self, t: float, load: Load) -> float:
        """A clock that something holds down moves in steps of 15 MHz; one at its maximum stands still."""
        if load.clock_hertz >= CLOCK_MAX_HERTZ:
            return CLOCK_MAX_HERTZ
        return round(self._wobble(t, load.clock_hertz, 0.012) / 15e6) * 15e6


class Rig:
    """All GPUs of a simulated host; no two hosts of a fleet have a GPU of the same UUID."""

    def __init__(self, timeline: Timeline, seed: int, host: int = 1) -> None:
        self.gpus = tuple(SimulatedGpu(timeline, index, seed, host) for index in range(GPU_COUNT))


class SimulatedSource:
    """The rig as a :class:`wattline.gpus.source.GpuSource`; its readings carry simulated time."""

    name = "simulated"

    def __init__(self, rig: Rig, clock: SimClock) -> None:
        self._clock = clock
        self._gpus = {gpu.uuid: gpu for gpu in rig.gpus}
        self._fetched: dict[str, float] = {}
        self.unidentified: dict[int, str] = {}
        """GPUs that are in the host and do not answer."""

    def discover(self) -> tuple[GpuIdentity, ...]:
        """The GPUs that answer now."""
        now = self._clock.now()
        there = []
        for gpu in self._gpus.values():
            try:
                gpu.condition(now)
            except GpuLostError:
                continue
            there.append(gpu.identity())
        answering = {identity.index for identity in there}
        self.unidentified = {n: "gpu_is_lost" for n in range(len(self._gpus)) if n not in answering}
        return tuple(there)

    def sample(self, uuid: str) -> GpuSample:
        """See :meth:`SimulatedGpu.sample`."""
        now = self._clock.now()
        reading = self._gpu(uuid).sample(now, self._fetched.get(uuid))
        self._fetched[uuid] = now
        return reading

    def activity(self, uuid: str) -> GpuActivity:
        """See :meth:`SimulatedGpu.activity`."""
        return self._gpu(uuid).activity(self._clock.now())

    def condition(self, uuid: str) -> GpuCondition:
        """See :meth:`SimulatedGpu.condition`."""
        return self._gpu(uuid).condition(self._clock.now())

    def forget(self, uuid: str) -> None:
        """No GPU is ever taken out of the rig."""

    def close(self) -> None:
        """Nothing is held open."""

    def _gpu(self, uuid: str) -> SimulatedGpu:
        try:
            return self._gpus[uuid]
        except KeyError:
            raise GpuLostError("not_found", f"there is no GPU {uuid}") from None
