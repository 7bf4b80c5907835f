"""The calls into NVIDIA's management library, and what their failures are called: the only file that knows pynvml."""

# ruff: noqa: ANN401 - nvidia-ml-py has no types, and its handles are nobody's business.

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any

import pynvml

from wattline.gpus.nvml.names import VALUE_TYPES
from wattline.worker import take_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
UNKNOWN_CODE = "unknown_code"
"""One word for all codes that have no name: a garbled one must not make a series of its own each time."""
MAX_CODES_TOLD = 16
SCOPE_GPU = 0  # Scope 1 is the whole module, the CPU included: never comparable with the GPU's limit.
MEMORY_V2 = pynvml.nvmlMemory_v2
SAMPLES_ROOM = 256
"""More than the 120 of the driver's buffer."""

_told: set[int] = set()


class CallFailedError(Exception):
    """A call gave nothing; ``kind`` says why. Never leaves this package."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def call(function: str, *arguments: Any) -> Any:
    """Make one call of nvidia-ml-py; a failure becomes its kind.

    Calls take turns: NVML is said to be thread-safe, but that of driver 580 has crashed the process
    (nvmlGpmMetricsGet, two H200s) when several threads were inside.

    Raises:
        CallFailedError: it gave nothing.
    """
    found = _OWN.get(function) or getattr(pynvml, function, None)
    if found is None:  # An older nvidia-ml-py.
        raise CallFailedError("function_not_found")
    take_turn()
    try:
        return found(*arguments)
    except pynvml.NVMLError as error:
        raise CallFailedError(kind_of(error.value)) from None
    except pynvml.NVMLLibraryMismatchError:
        raise CallFailedError("function_not_found") from None
    except (AttributeError, TypeError, ValueError, MemoryError, OverflowError, ctypes.ArgumentError) as error:
        # The driver answered what nvidia-ml-py cannot take apart: a name that is no text, a list without end.
        raise CallFailedError("malformed") from error


def quietly(function: str, *arguments: Any) -> None:
    """Make a call whose failure costs nothing."""
    try:
        call(function, *arguments)
    except CallFailedError as failed:
        log.debug("%s: %s", function, failed.kind)


def kind_of(code: int) -> str:
    """Name a return code; one without a name is logged, a few times."""
    kind = ERROR_KINDS.get(code)
    if kind is None and code not in _told and len(_told) < MAX_CODES_TOLD:
        _told.add(code)
        log.warning("NVML answers %d, a code that has no name here: counted as %s", code, UNKNOWN_CODE)
    return kind or UNKNOWN_CODE


def address(handle: Any) -> int | None:
    """Where a handle points: equal for handles of one GPU while the library stays open."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def field(handle: Any, number: int) -> float:
    """Read one field of the GPU's own scope."""
    answer = call("nvmlDeviceGetFieldValues", handle, [(number, SCOPE_GPU)])[0]
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        kind = kind_of(answer.nvmlReturn)
        # A driver calls a field that is newer than itself an invalid argument.
        raise CallFailedError("not_supported" if kind == "invalid_argument" else kind)
    return _value(answer.valueType, answer.value)


def samples(handle: Any, kind: int, since: int) -> list[tuple[int, float]]:
    """Read the samples of a buffer that are newer than a stamp, as (stamp in µs of wall time, value)."""
    value_type, found = call("nvmlDeviceGetSamples", handle, kind, since)
    return [(sample.timeStamp, _value(value_type, sample.sampleValue)) for sample in found]


def gpm(older: Any, newer: Any, metrics: Sequence[int]) -> tuple[tuple[int, str, float], ...]:
    """Compute GPM metrics between two samples, as (metric, kind of its error or nothing, value)."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(metrics)
    request.sample1, request.sample2 = older, newer
    for slot, metric in enumerate(metrics):
        request.metrics[slot].metricId = metric
    call("nvmlGpmMetricsGet", request)
    answers = [request.metrics[slot] for slot in range(len(metrics))]
    return tuple((a.metricId, kind_of(a.nvmlReturn) if a.nvmlReturn else "", a.value) for a in answers)


def _get_samples(handle: Any, kind: int, since: int) -> Any:
    """Get samples with one call: nvidia-ml-py makes two, the first only for their number."""
    value_type, count = ctypes.c_uint(), ctypes.c_uint(SAMPLES_ROOM)
    found = (pynvml.c_nvmlSample_t * SAMPLES_ROOM)()
    code = pynvml.nvmlLib.nvmlDeviceGetSamples(
        handle, ctypes.c_uint(kind), ctypes.c_ulonglong(since), ctypes.byref(value_type), ctypes.byref(count), found
    )
    if code == pynvml.NVML_ERROR_NOT_FOUND:
        raise pynvml.NVMLError(code)
    if code != pynvml.NVML_SUCCESS or count.value > SAMPLES_ROOM:
        return pynvml.nvmlDeviceGetSamples(handle, kind, since)
    return value_type.value, found[: count.value]


_OWN: Mapping[str, Callable[..., Any]] = {"nvmlDeviceGetSamples": _get_samples}


def _value(value_type: int, union: Any) -> float:
    member = VALUE_TYPES[value_type] if value_type in range(len(VALUE_TYPES)) else ""
    if not hasattr(union, member):  # An older nvidia-ml-py knows fewer.
        raise CallFailedError("unknown_value_type")
    return float(getattr(union, member))
