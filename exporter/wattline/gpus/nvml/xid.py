"""Xid errors: events that the driver raises when something went wrong on a GPU."""

# ruff: noqa: ANN401 - handles are nobody's business.

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from wattline.gpus.nvml.calls import CLOSED, LOST, CallFailedError, address, call, quietly

if TYPE_CHECKING:
    from wattline.gpus.nvml.visit import Gpu

log = logging.getLogger("wattline.gpus")

XID_EVENTS = 0x8
MAX_CODE, MAX_CODES = 9999, 64
XID_BATCH = 64
"""Events taken from the driver in one visit at most: a storm must not hold up the readings."""


class XidEvents:
    """Counts Xid errors: one event set for all GPUs, emptied without waiting whenever some GPU is visited."""

    def __init__(self) -> None:
        self._set: Any = None
        self._uuids: dict[int | None, str] = {}
        self._deaf: dict[str, str] = {}
        self._counts: dict[str, Counter[int]] = {}

    def open(self) -> None:
        """Begin to listen, once the library is open."""
        self._uuids.clear()
        try:
            self._set = call("nvmlEventSetCreate")
        except CallFailedError as failed:
            log.debug("no Xid events: %s", failed.kind)

    def listen(self, handle: Any, uuid: str) -> None:
        """Listen to a GPU, unless this is done already."""
        place = address(handle)
        if self._uuids.get(place) == uuid:
            return
        self._uuids[place] = uuid
        self._deaf[uuid] = "not_supported"
        if self._set is None:
            return
        try:
            call("nvmlDeviceRegisterEvents", handle, XID_EVENTS, self._set)
        except CallFailedError as failed:
            # Costs one reading, whatever the reason: the other readings tell whether the GPU is lost.
            self._deaf[uuid] = "unknown" if failed.kind in LOST | CLOSED else failed.kind
        else:
            self._counts.setdefault(uuid, Counter())
            del self._deaf[uuid]

    def count(self, gpu: Gpu) -> dict[str, Any]:
        """Take what has come for any GPU, then tell the count of this one since the process began to listen."""
        uuid = gpu.identity.uuid
        deaf = self._deaf.get(uuid, None if uuid in self._counts else "not_ready")
        if deaf:
            raise CallFailedError(deaf)
        self._take()
        counts = self._counts[uuid]
        return {"xid_errors": counts.total(), "xids": tuple(sorted(counts.items()))}

    def _take(self) -> None:
        for _ in range(XID_BATCH):
            try:
                event = call("nvmlEventSetWait_v2", self._set, 0)
            except CallFailedError as failed:
                if failed.kind == "timeout":  # No more events.
                    return
                # The set belongs to all GPUs: this failure says nothing about the one that is visited.
                raise CallFailedError("unknown" if failed.kind in LOST else failed.kind) from None
            if event.eventType & XID_EVENTS:
                counts = self._counts.get(self._uuids.get(address(event.device), ""))
                if counts is not None:
                    # A garbled code must not make a series of its own each time.
                    known = event.eventData in counts or len(counts) < MAX_CODES
                    counts[event.eventData if known and event.eventData <= MAX_CODE else 0] += 1

    def forget(self, uuid: str) -> None:
        """Drop what is known of a GPU."""
        self._uuids = {address: whose for address, whose in self._uuids.items() if whose != uuid}
        self._deaf.pop(uuid, None)
        self._counts.pop(uuid, None)

    def close(self) -> None:
        """End listening, before the library is shut."""
        if self._set is not None:
            quietly("nvmlEventSetFree", self._set)
        self._set = None
