"""The rig without waiting: its readings in the order of time, as fast as they can be computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wattline.gpus.source import GpuLostError
from wattline.simulation.fake_sglang import SimulatedSglang
from wattline.simulation.rig import Rig
from wattline.simulation.scenario import STORY_NAME, timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.readings import GpuReading

SAMPLE_SECONDS = 1
ACTIVITY_SECONDS = 5
CONDITION_SECONDS = 30
ENGINE_SECONDS = 5


class EngineText(NamedTuple):
    """One scrape of the simulated server."""

    t: float
    text: str | None
    """The whole ``/metrics``; ``None`` when nobody answered."""


def simulate(seconds: float, seed: int = 1, scenario: str = STORY_NAME) -> Iterator[GpuReading | EngineText]:
    """Yield all that an exporter reads of the rig in the first ``seconds``, both ends included.

    GPUs come before the engine where both are read at one moment. A GPU that is lost yields nothing.

    Args:
        seconds: length, simulated seconds.
        seed: of the noise; one seed always gives the same readings.
        scenario: what happens.

    Raises:
        ValueError: there is no such scenario.
    """
    line = timeline(scenario)
    gpus = Rig(line, seed).gpus
    engine = SimulatedSglang(line, seed)
    for second in range(0, int(seconds) + 1, SAMPLE_SECONDS):
        t = float(second)
        for gpu in gpus:
            try:
                yield gpu.sample(t, t - SAMPLE_SECONDS)
                if second % ACTIVITY_SECONDS == 0:
                    yield gpu.activity(t)
                if second % CONDITION_SECONDS == 0:
                    yield gpu.condition(t)
            except GpuLostError:
                continue
        if second % ENGINE_SECONDS == 0:
            yield EngineText(t, engine.text(t))
