"""The contract of anything that can be read like the GPUs of one host: NVML, the simulated rig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuSample

UNSUPPORTED = frozenset({"not_supported", "function_not_found", "argument_version_mismatch"})
"""Kinds of errors of what a GPU does not have: the answer will not change while the source stays open."""


class SourceError(Exception):
    """The source as a whole cannot be read: no library, no driver, version mismatch.

    Args:
        kind: a bounded word for ``source_errors_total{kind}``, e.g. ``library_not_found``, ``unknown``.
        message: what an operator can do about it; free of secrets.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class GpuLostError(SourceError):
    """One GPU cannot be read any more (lost, reset required): the others can."""


class GpuSource(Protocol):
    """GPUs of one host. Every method blocks and may block for long: call it on a thread that may be lost.

    A call that fails for one field costs that field (``None`` and an entry in ``errors``). The methods that read one
    GPU may run in parallel for different GPUs; ``sample`` and ``activity`` may run in parallel for the same GPU.
    """

    name: str
    """``nvml``, ``simulated``: the value of the ``source`` label for the source as a whole."""

    @property
    def unidentified(self) -> Mapping[int, str]:
        """The GPUs that the last listing counted and could not identify, by index, with the kind of error."""
        ...

    def discover(self) -> tuple[GpuIdentity, ...]:
        """Open the source if it is closed, and list the GPUs that are there now.

        Raises:
            SourceError: the source cannot be opened or listed.
        """
        ...

    def sample(self, uuid: str) -> GpuSample:
        """Read what changes within a second.

        Raises:
            GpuLostError: this GPU is gone or needs a reset.
            SourceError: the whole source is gone.
        """
        ...

    def activity(self, uuid: str) -> GpuActivity:
        """Read PCIe traffic, link and activity; may take 50 ms and more. Raises as :meth:`sample`."""
        ...

    def condition(self, uuid: str) -> GpuCondition:
        """Read limits, memory, temperature and processes. Raises as :meth:`sample`."""
        ...

    def forget(self, uuid: str) -> None:
        """Free what is kept of a GPU that is not there any more. Does not block; not while listing."""
        ...

    def close(self) -> None:
        """Let go of the driver; may be called twice, and never raises."""
        ...
