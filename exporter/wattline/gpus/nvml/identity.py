"""Which GPUs are there, what they are called, and which can read each other."""

# ruff: noqa: ANN401 - handles are nobody's business.

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from wattline.gpus.nvml.calls import CLOSED, LOST, CallFailedError, call
from wattline.gpus.source import UNSUPPORTED

if TYPE_CHECKING:
    from wattline.gpus.nvml.visit import Gpu

P2P_READ = 0  # nvidia-ml-py's constant of that name is the tuple (0,).
P2P_OK, P2P_UNKNOWN = 0, 6
UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listed:
    """What one place of a listing tells of the GPU in it; empty is not told."""

    index: int
    handle: Any
    uuid: str
    bus_id: str
    known: str
    """The name of the GPU that was met there before."""


def driver_version() -> str:
    """Return the version of the driver; empty when it does not tell."""
    try:
        return str(call("nvmlSystemGetDriverVersion"))
    except CallFailedError:
        return ""


def uuid_of(handle: Any, *, known: bool) -> str:
    """Return the UUID of a GPU; empty when it does not tell. Raises :class:`CallFailedError` when it is gone."""
    try:
        return str(call("nvmlDeviceGetUUID", handle))
    except CallFailedError as failed:
        # One that is known goes on under its name: one failing call does not make it another GPU, nor a lost one.
        if failed.kind in UNSUPPORTED | {"malformed"} or (known and failed.kind not in LOST | CLOSED):
            return ""
        raise


def bus_id_of(handle: Any) -> str:
    """Return the PCI address of a GPU; empty when it does not tell. Raises as :func:`uuid_of`."""
    try:
        return str(call("nvmlDeviceGetPciInfo", handle).busId)
    except CallFailedError as failed:
        if failed.kind in LOST | CLOSED:
            raise
        return ""


def names_of(found: list[Listed]) -> dict[int, str]:
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


def ask_peers(gpus: list[Gpu]) -> bool:
    """Ask each GPU which others it can read peer to peer; return whether all gave answers that last."""
    lasting = True
    for gpu in gpus:
        others = [other for other in gpus if other is not gpu]
        try:
            statuses = [call("nvmlDeviceGetP2PStatus", gpu.handle, other.handle, P2P_READ) for other in others]
        except CallFailedError as failed:
            statuses = [P2P_UNKNOWN]
            lasting = lasting and failed.kind in UNSUPPORTED
        visible = P2P_UNKNOWN not in statuses
        gpu.identity = replace(
            gpu.identity,
            p2p_peers=statuses.count(P2P_OK) if visible else None,
            p2p_peers_possible=len(others) if visible else None,
        )
    return lasting
