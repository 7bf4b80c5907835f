"""Measured activity of Hopper and newer (GPM): averages between two samples of the GPU's counters."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wattline.gpus.nvml import calls
from wattline.gpus.nvml.calls import CallFailedError, call, quietly
from wattline.gpus.nvml.questions import PCIE, from_mebi, from_percent
from wattline.gpus.nvml.visit import Gpm, Gpu, Question, Visit
from wattline.gpus.source import UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_SPAN = 0.15
"""Seconds between the two samples behind a metric; NVML wants more than 0.1."""
MAX_SPAN = 90.0
"""An older sample is from before a pause, and no end of an average."""
METRICS: dict[int, tuple[str, str, Callable[[float], float]]] = {
    # nvmlGpmMetricId_t: reading, field, unit
    2: ("sm_active", "sm_active_ratio", from_percent),
    5: ("tensor_active", "tensor_active_ratio", from_percent),
    10: ("dram_active", "dram_active_ratio", from_percent),
    20: ("pcie_transmit", "pcie_transmit_bytes_per_second", from_mebi),
    21: ("pcie_receive", "pcie_receive_bytes_per_second", from_mebi),
}
_SECOND_SOURCE = frozenset(question.reading for question in PCIE)


class Activities:
    """Measures activity, and frees what that needs.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allocated: list[Any] = []

    def begin(self, gpu: Gpu) -> None:
        """Take the first sample of a GPU: the average begins here, and the first visit need not wait for its span."""
        with suppress(CallFailedError):  # The first visit says why.
            self._begin(gpu)

    def ask(self, visit: Visit) -> None:
        """Measure activity since the last time. Raises as :meth:`Visit.ask`."""
        metrics = [metric for metric in METRICS if not visit.refused("gpm", metric)]
        visit.ask(Question("gpm", (lambda gpu: self._measure(gpu, metrics),)))
        for metric, kind, value in visit.values.pop("gpm_metrics", ()):
            reading, name, unit = METRICS[metric]
            if not kind and math.isfinite(value):
                visit.values[name] = unit(value)
            elif not kind:
                visit.failed(reading, "not_a_number")
            else:
                if kind in UNSUPPORTED:
                    visit.refuse("gpm", metric)
                if reading not in _SECOND_SOURCE:
                    visit.failed(reading, kind)

    def close(self) -> None:
        """Free the samples, before the library is shut."""
        for sample in self._allocated:
            quietly("nvmlGpmSampleFree", sample)
        self._allocated.clear()

    def _begin(self, gpu: Gpu) -> Gpm:
        if gpu.gpm is None:
            if not call("nvmlGpmQueryDeviceSupport", gpu.handle).isSupportedDevice:
                raise CallFailedError("not_supported")
            gpu.gpm = Gpm(self._allocate(), self._allocate())
        gpm = gpu.gpm
        if gpm.taken_at is None or self._clock() - gpm.taken_at > MAX_SPAN:
            call("nvmlGpmSampleGet", gpu.handle, gpm.older)
            gpm.taken_at = self._clock()
        return gpm

    def _allocate(self) -> Any:  # noqa: ANN401 - nvidia-ml-py has no types
        sample = call("nvmlGpmSampleAlloc")
        self._allocated.append(sample)
        return sample

    def _measure(self, gpu: Gpu, metrics: list[int]) -> dict[str, Any]:
        gpm = self._begin(gpu)
        time.sleep(max(0.0, (gpm.taken_at or 0.0) + MIN_SPAN - self._clock()))
        call("nvmlGpmSampleGet", gpu.handle, gpm.newer)
        gpm.older, gpm.newer, gpm.taken_at = gpm.newer, gpm.older, self._clock()
        return {"gpm_metrics": calls.gpm(gpm.newer, gpm.older, metrics)}
