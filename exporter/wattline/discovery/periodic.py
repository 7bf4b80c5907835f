"""Discovery as one more source that is read in its rhythm, beside the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from wattline.analysis.snapshot import SourceView
from wattline.discovery.resolve import CHOICE, is_optional
from wattline.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from wattline.config import Config
    from wattline.discovery.resolve import Discoverer, Resolution
    from wattline.discovery.servers import Note
    from wattline.readings import GpuCondition

log = logging.getLogger("wattline.discovery")

SOURCE = "discovery"
INTERVAL = 30.0
"""Seconds between two looks; NVML's list of processes is not renewed more often either."""
SOON = 1.0
"""Seconds between two looks while some GPU has not told its processes yet."""
AT_REST = 300.0
"""Seconds between two looks while the same processes hold the same GPUs and nothing is wanting; pods come and go beside
them."""
STUCK = 20.0
"""A look that takes longer hangs."""


def is_open(config: Config) -> bool:
    """Whether there is anything to discover."""
    return any(isinstance(d.engines, str) or d.gpus in ("auto", None) for d in config.deployments)


class Discovery:
    """Looks at the host in its rhythm and hands over the configuration whenever another one comes of it.

    Args:
        discoverer: what looks.
        conditions: gives the last condition of every GPU that can be read now, and whether that is all of them.
        listed: gives the GPUs of the deployments that list them, see :meth:`Discoverer.resolve`.
        deliver: is given the configuration without ``auto``.
        on_read: is told the name of the source and the seconds that a look took.
    """

    def __init__(
        self,
        discoverer: Discoverer,
        *,
        conditions: Callable[[], tuple[Mapping[str, GpuCondition], bool]],
        listed: Callable[[Config], Mapping[str, tuple[str, ...]]],
        deliver: Callable[[Config], Coroutine[None, None, None]],
        on_read: Callable[[str, float], None] | None = None,
    ) -> None:
        self._discoverer = discoverer
        self._conditions = conditions
        self._listed = listed
        self._deliver = deliver
        self._on_read = on_read
        self._worker = Worker(SOURCE)
        self._task: asyncio.Task[None] | None = None
        self._told: frozenset[str] = frozenset()
        self._failure = "waits until the GPUs tell their processes"
        self._seen: dict[str, set[int]] = {}
        self._resolution: Resolution | None = None
        self.unplaced: Mapping[str, tuple[str, ...]] = {}
        """By deployment: processes and pods of its servers whose GPUs are not known."""
        self._looked_at: float | None = None
        self._optional = False
        """Nothing that is configured needs it: without it, all GPUs are taken."""
        self._started_at = 0.0

    def begin(self, config: Config) -> Config:
        """Look for what a configuration means from now on.

        Returns:
            The configuration to go on with until the first look is done.
        """
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._resolution = None
        self._optional = is_optional(config)
        if not is_open(config):
            return self.known(config, {})
        self._task = asyncio.get_running_loop().create_task(self._look_forever(config), name=SOURCE)
        return self.known(config, self._listed(config))

    def known(self, config: Config, listed: Mapping[str, tuple[str, ...]]) -> Config:
        """The configuration without ``auto``, from what was seen before."""
        if not is_open(config):
            self.unplaced = {}
            return config
        known = self._discoverer.known(config, listed)
        self.unplaced = known.unplaced
        return known.config

    async def stop(self) -> None:
        """End it; a look that hangs is left behind."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._worker.retire()

    def source(self) -> tuple[SourceView, ...]:
        """How discovery goes; nothing when there is nothing to discover."""
        if self._task is None or (self._optional and self._looked_at is None):
            return ()
        hangs = self._worker.busy and time.monotonic() - self._started_at > STUCK
        failure = f"a look at the host has not come back for {STUCK:g} s" if hangs else self._failure
        notes = self._resolution.notes if self._resolution is not None else ()
        return (
            SourceView(
                name=SOURCE,
                up=not failure and not any(note.blind for note in notes),
                age_seconds=None if self._looked_at is None else max(0.0, time.monotonic() - self._looked_at),
                detail=failure or "; ".join(note.text for note in sorted(notes, key=lambda n: not n.blind)),
            ),
        )

    async def _look_forever(self, config: Config) -> None:
        began = time.monotonic()
        pods = any(d.engines == "pods" for d in config.deployments)
        while True:
            conditions, complete = self._conditions()
            if conditions and (pods or not self._at_rest(conditions)):
                try:
                    await self._look(config, conditions)
                except Exception as error:
                    # Whoever ends here would leave the last findings standing as if they were new.
                    if not self._failure.startswith("failed"):
                        log.exception("Looking at the processes failed")
                    self._failure = f"failed: {type(error).__name__}"
            soon = not complete and time.monotonic() - began < INTERVAL
            await asyncio.sleep(SOON if soon else INTERVAL)

    def _at_rest(self, conditions: Mapping[str, GpuCondition]) -> bool:
        """Whether another look would find the same: reading every process of a big host has its price."""
        now = {uuid: {p.pid for p in c.processes or ()} for uuid, c in conditions.items()}
        before, self._seen = self._seen, now
        notes = self._resolution.notes if self._resolution is not None else None
        settled = notes is not None and all(note.kind == CHOICE for note in notes) and not self._failure
        fresh = self._looked_at is not None and time.monotonic() - self._looked_at < AT_REST
        return settled and fresh and before == self._seen

    async def _look(self, config: Config, conditions: Mapping[str, GpuCondition]) -> None:
        if self._worker.pending is not None:
            await asyncio.shield(self._worker.pending)
        listed = self._listed(config)
        self._started_at = time.monotonic()
        outcome = await self._worker.run(lambda: self._discoverer.resolve(config, conditions, listed))
        if self._on_read is not None:
            self._on_read(SOURCE, outcome.seconds)
        if outcome.value is None:
            raise outcome.error or RuntimeError("no outcome")
        self._looked_at = time.monotonic()
        self._failure = ""
        before, self._resolution = self._resolution, outcome.value
        self.unplaced = outcome.value.unplaced
        self._tell(outcome.value.notes)
        if before is None or (before.config, before.unplaced) != (outcome.value.config, outcome.value.unplaced):
            _tell_deployments(outcome.value.config)
            # Not to be left half done when another configuration comes in between.
            await asyncio.shield(self._deliver(outcome.value.config))

    def _tell(self, notes: tuple[Note, ...]) -> None:
        """Log what is new, once."""
        for note in notes:
            if note.text not in self._told:
                log.log(logging.WARNING if note.blind else logging.INFO, "Discovery: %s", note.text)
        self._told = frozenset(note.text for note in notes)


def _tell_deployments(config: Config) -> None:
    for deployment in config.deployments:
        # A configured address may hold a key in its query.
        engines = ", ".join(
            f"{e.name} at {e.url.partition('?')[0]}" for e in deployment.engines if not isinstance(e, str)
        )
        listed = deployment.gpus if isinstance(deployment.gpus, tuple) else ("all",)
        gpus = ", ".join(map(str, listed))
        log.info("Deployment %s: %s; GPUs: %s", deployment.name, engines or "no engine", gpus or "none")
