"""The simulated rig put together, running in real time: what ``wattline demo`` reads instead of hardware."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from wattline.simulation.clock import SimClock
from wattline.simulation.fake_sglang import FakeSglangServer, SimulatedSglang
from wattline.simulation.rig import Rig, SimulatedSource
from wattline.simulation.scenario import STORY_NAME, timeline

log = logging.getLogger("wattline.demo")


@dataclass(frozen=True, slots=True)
class PhaseNow:
    """What the rig goes through now, for people."""

    name: str
    title: str
    seconds_left: float | None
    """Real seconds until the next phase; ``None`` when this one is held."""


FLEET = (
    ("glm5", STORY_NAME),
    ("chat", "healthy"),
    ("code", "collectives"),
    ("search", "idle"),
    ("agents", "batch_limited"),
    ("vision", "throttled"),
    ("batch", "power_capped"),
    ("draft", "partial_idle"),
)
"""Deployment and scenario of each host of a demo: the story first, and a healthy one beside it."""


class Demo:
    """A rig and its inference server.

    Args:
        speed: simulated seconds per real second. Intervals and windows are in simulated seconds, too: an exporter that
            watches must wait :meth:`SimClock.real_seconds` of its intervals.
        scenario: one of :data:`wattline.simulation.scenario.SCENARIOS`.
        host: which host of the fleet this is, counted from 1: its noise and its GPUs are its own, and only the first
            tells its phases in the log.

    Raises:
        ValueError: no such scenario, or a speed that is not above 0.
    """

    def __init__(self, speed: float = 1.0, scenario: str = STORY_NAME, host: int = 1) -> None:
        self._tells = host == 1
        self._timeline = timeline(scenario)
        self.clock = SimClock(speed)
        """The clock of all readings: that of the engine's scrapes must be the same one."""
        self.source = SimulatedSource(Rig(self._timeline, host, host), self.clock)
        self._server = FakeSglangServer(SimulatedSglang(self._timeline, host), self.clock)
        self._teller: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Begin to serve and to tell the phases in the log.

        Returns:
            The URL of the simulated server's ``/metrics``.
        """
        url = await self._server.start()
        if self._tells:
            self._teller = asyncio.create_task(self._tell(), name="demo phases")
        return url

    async def close(self) -> None:
        """Stop both; may be called twice."""
        if self._teller is not None:
            self._teller.cancel()
            with suppress(asyncio.CancelledError):
                await self._teller
            self._teller = None
        await self._server.close()

    def phase(self) -> PhaseNow:
        """What goes on now."""
        now = self.clock.now()
        moment = self._timeline.at(now)
        return PhaseNow(
            name=moment.phase.name,
            title=moment.phase.title,
            seconds_left=None if self._holds(now) else self.clock.real_seconds(moment.end - now),
        )

    def _holds(self, t: float) -> bool:
        return self._timeline.held and t >= self._timeline.lead_seconds

    async def _tell(self) -> None:
        """Tell every phase when it begins, also those that are over already when the speed is extreme."""
        for number in count():
            phase, start, end = (
                self._timeline.phase(number),
                self._timeline.start(number),
                self._timeline.start(number + 1),
            )
            held = self._holds(start)
            length = "held" if held else f"{self.clock.real_seconds(end - start):.0f} s"
            log.info("Demo phase %s (%s): %s", phase.name, length, phase.title)
            if held:
                return
            await asyncio.sleep(self.clock.real_seconds(end - self.clock.now()))
