"""The GPUs of this host as a source of readings: the library opened and closed, GPUs listed and visited."""

# ruff: noqa: ANN401 - handles are nobody's business.

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattline.gpus.nvml.calls import CLOSED, CallFailedError, address, call, quietly
from wattline.gpus.nvml.gpm import Activities
from wattline.gpus.nvml.identity import Listed, ask_peers, bus_id_of, driver_version, names_of, uuid_of
from wattline.gpus.nvml.questions import CONDITION, ENERGY, IDENTITY, LINK, PCIE, SAMPLE, energy_every
from wattline.gpus.nvml.visit import Gpu, Question, Visit, closed, lost
from wattline.gpus.nvml.xid import XidEvents
from wattline.gpus.source import GpuLostError, SourceError
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuSample
from wattline.worker import alone, unhurried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger("wattline.gpus")

MAX_GPUS = 256
"""More are in no host: such a count is a sentinel."""


class NvmlSource:
    """GPUs through NVML: a :class:`wattline.gpus.source.GpuSource`.

    To be called by one thread at a time, as a :class:`wattline.worker.Crew` does.

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
        self._energy = ENERGY if energy_every is None else replace(ENERGY, every=energy_every)
        self._energy_took: deque[float] | None = deque(maxlen=16) if energy_every is None else None
        """Seconds of the last calls: the shortest of them was not held up by anything."""
        self._opened = False
        self._opened_with: frozenset[str] = frozenset()
        self._why_closed = SourceError("uninitialized", "NVML has not been opened yet")
        self._gpus: dict[str, Gpu] = {}
        self._unlisted: dict[int, str] = {}
        self._peers: frozenset[str] = frozenset()
        """The GPUs that were asked about each other."""
        self._activities = Activities(clock) if gpm else None
        self._events = XidEvents()
        # These outlive the library. Who was met at a bus address is who it was, whatever it answers once.
        self._names: dict[str, str] = {}
        # What is not supported is told once.
        self._reported: dict[str, set[str]] = {}

    def discover(self) -> tuple[GpuIdentity, ...]:
        """Open the library if it is closed, and list the GPUs that are there now.

        Returns:
            Identities in NVML's order, each with a ``uuid`` of its own. A GPU that cannot be identified is left out.

        Raises:
            SourceError: the library cannot be opened, or lists nothing; ``kind`` is NVML's name of the error.
        """
        present = self._present()
        outdated = self._opened and present != self._opened_with and alone()
        try:
            if self._opened and not outdated:
                return self._list()
            with unhurried():  # No GPU can be read before.
                if outdated:
                    log.info("the GPUs of this host have changed: NVML is opened anew")
                    self._shut()
                return self._open(present)
        except CallFailedError as failed:
            error = closed(failed.kind)
            if not self._opened:
                self._why_closed = error
            raise error from None

    def sample(self, uuid: str) -> GpuSample:
        """Read energy, power, utilisation, clock and event reasons of one GPU: 4 ms on an H200, 3 of them energy.

        Raises:
            GpuLostError: this GPU is gone or needs a reset.
            SourceError: the library as a whole is gone.
        """
        visit = self._visit(uuid)
        # Energy first and the time after it: it is the slow one, and its delta is divided by one of time.
        began = time.perf_counter()
        visit.ask(self._energy)
        if "energy_joules" in visit.values and self._energy_took is not None:
            self._energy_took.append(time.perf_counter() - began)
            self._energy = replace(ENERGY, every=energy_every(min(self._energy_took), len(self._gpus)))
        t = self._clock()
        visit.ask(*SAMPLE)
        visit.end()
        return GpuSample(t=t, uuid=uuid, errors=tuple(visit.errors), **visit.values)

    def activity(self, uuid: str) -> GpuActivity:
        """Read PCIe traffic, the link and, on Hopper and newer, activity. Raises as :meth:`sample`.

        With GPM: averages since the last call or the listing. Without: PCIe traffic over 20 ms each way.
        """
        visit = self._visit(uuid)
        if self._activities is not None:
            self._activities.ask(visit)
        t = self._clock()
        told = {error.reading for error in visit.errors}
        told |= {name.removesuffix("_bytes_per_second") for name in visit.values}
        visit.ask(*(question for question in PCIE if question.reading not in told), *LINK)
        visit.end()
        return GpuActivity(t=t, uuid=uuid, errors=tuple(visit.errors), **visit.values)

    def condition(self, uuid: str) -> GpuCondition:
        """Read limits, memory, temperature, processes and Xid errors. Raises as :meth:`sample`."""
        visit = self._visit(uuid)
        t = self._clock()
        visit.ask(*CONDITION, Question("xid_errors", (self._events.count,)))
        visit.end()
        return GpuCondition(t=t, uuid=uuid, errors=tuple(visit.errors), **visit.values)

    @property
    def unidentified(self) -> Mapping[int, str]:
        """The GPUs that the library counts without telling which they are, by index, with the kind of error."""
        return self._unlisted

    def forget(self, uuid: str) -> None:
        """Free what outlives the listing of a GPU."""
        self._reported.pop(uuid, None)
        self._names = {bus_id: name for bus_id, name in self._names.items() if name != uuid}
        self._events.forget(uuid)

    def close(self) -> None:
        """Shut the library down."""
        if self._opened:
            self._why_closed = SourceError("uninitialized", "NVML is closed")
            self._shut()

    def _visit(self, uuid: str) -> Visit:
        if not self._opened:
            raise self._why_closed
        gpu = self._gpus.get(uuid)
        if gpu is None:
            raise lost("gpu_not_found")
        if gpu.lost:
            raise lost(gpu.lost)
        return Visit(gpu, self._reported.setdefault(uuid, set()), self._clock())

    def _open(self, present: frozenset[str]) -> tuple[GpuIdentity, ...]:
        call("nvmlInit")
        self._opened, self._opened_with = True, present
        self._events.open()
        try:
            return self._list()
        except CallFailedError:
            self._shut()
            raise

    def _shut(self) -> None:
        self._opened = False
        self._gpus, self._peers = {}, frozenset()
        self._events.close()
        if self._activities is not None:
            self._activities.close()
        quietly("nvmlShutdown")

    def _present(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in self._inventory.iterdir())
        except OSError:
            return frozenset()

    # Listing.

    def _list(self) -> tuple[GpuIdentity, ...]:
        found: list[Listed] = []
        unlisted: dict[int, str] = {}
        if (there := call("nvmlDeviceGetCount")) > MAX_GPUS:
            raise CallFailedError("malformed")
        for index in range(there):
            try:
                found.append(self._look(index, call("nvmlDeviceGetHandleByIndex", index)))
            except CallFailedError as failed:
                if failed.kind in CLOSED:
                    raise
                unlisted[index] = failed.kind
        self._tell(unlisted)
        if unlisted and not found:
            raise CallFailedError(next(iter(unlisted.values())))

        driver = driver_version()
        names = names_of(found)
        places = {name: bus_id for bus_id, name in self._names.items()}
        gpus: dict[str, Gpu] = {}
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
            self._peers = frozenset(reachable) if ask_peers([*reachable.values()]) else frozenset()
        self._gpus = gpus
        return tuple(gpu.identity for gpu in gpus.values())

    def _look(self, index: int, handle: Any) -> Listed:
        bus_id = bus_id_of(handle)
        place = address(handle)
        here = (name for name, gpu in self._gpus.items() if address(gpu.handle) == place)
        known = self._names.get(bus_id) or next(here, "")
        return Listed(index, handle, uuid_of(handle, known=bool(known)), bus_id, known)

    def _describe(self, identity: GpuIdentity, handle: Any) -> Gpu:
        """Ask a GPU who it is; a GPU that was there before keeps what has been learned about its calls."""
        known = self._gpus.get(identity.uuid)
        gpu = known or Gpu(handle, identity)
        before = gpu.identity
        gpu.identity = replace(before, index=identity.index, pci_bus_id=identity.pci_bus_id, driver=identity.driver)
        gpu.handle, gpu.lost = handle, None
        visit = Visit(gpu, set(), self._clock())
        try:
            visit.ask(*IDENTITY)
        except GpuLostError:
            return gpu  # Listed nevertheless: its readings will say that it is lost.
        gpu.identity = replace(gpu.identity, **visit.values)
        if gpu.identity.nvlink_active is None and gpu.identity.virtualization == "none":
            gpu.identity = replace(gpu.identity, nvlink_active=False)  # A guest, in contrast, may just not be told.
        self._events.listen(handle, identity.uuid)
        if known and gpu.identity.mig != before.mig:
            return Gpu(handle, gpu.identity)  # Another mode supports other calls.
        if self._activities is not None and not known:
            self._activities.begin(gpu)
        return gpu

    def _tell(self, unlisted: dict[int, str]) -> None:
        for index, kind in unlisted.items():
            if self._unlisted.get(index) != kind:
                log.warning("GPU %d cannot be identified and is left out: %s", index, kind)
        self._unlisted = unlisted
