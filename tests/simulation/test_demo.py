import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from wattline.simulation.demo import FLEET, Demo, log
from wattline.simulation.rig import Rig
from wattline.simulation.scenario import EXTRAS, STORY, timeline

DOCUMENT = Path(__file__).parents[2] / "docs" / "demo.md"


class Lines(logging.Handler):
    """Log lines as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.queue.put_nowait(record.getMessage())

    async def next(self) -> str:
        return await asyncio.wait_for(self.queue.get(), 60)


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    handler = Lines()
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    yield handler
    log.setLevel(level)
    log.removeHandler(handler)


async def test_the_demo_serves_both_sides_and_says_what_goes_on(lines: Lines) -> None:
    demo = Demo()
    url = await demo.start()
    try:
        assert await lines.next() == "Demo phase idle (75 s): The model is loaded and nobody asks"
        now = demo.phase()
        assert (now.name, now.title) == ("idle", "The model is loaded and nobody asks")
        assert 0 < (now.seconds_left or 0) <= 75
        assert len(demo.source.discover()) == 8
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert "sglang:num_running_reqs{" in await response.text()
    finally:
        await demo.close()
        await demo.close()


def test_hosts_of_a_fleet_have_stories_and_gpus_of_their_own_and_one_is_healthy() -> None:
    assert len({name for name, _ in FLEET}) == len({scenario for _, scenario in FLEET}) == len(FLEET)
    assert "healthy" in {scenario for _, scenario in FLEET[:2]}
    uuids = [gpu.uuid for number in range(1, 9) for gpu in Rig(timeline("healthy"), number, number).gpus]
    assert len(set(uuids)) == len(uuids) == 64


async def test_each_change_of_phase_is_told_in_the_log(lines: Lines) -> None:
    demo = Demo(speed=2000.0)
    await demo.start()
    try:
        told = [await lines.next() for _ in STORY]
    finally:
        await demo.close()
    names = [re.fullmatch(r"Demo phase (\w+) \(0 s\): .+", line) for line in told]
    assert [match and match[1] for match in names] == [each.name for each in STORY]


async def test_a_held_phase_has_no_end(lines: Lines) -> None:
    demo = Demo(scenario="healthy")
    await demo.start()
    try:
        assert (await lines.next()).startswith("Demo phase healthy (held): ")
        assert demo.phase().seconds_left is None
    finally:
        await demo.close()


async def test_what_leads_into_a_held_phase_ends(lines: Lines) -> None:
    demo = Demo(speed=1000.0, scenario="engine_down")
    await demo.start()
    try:
        told = [(await lines.next()).split(":")[0] for _ in range(2)]
    finally:
        await demo.close()
    assert told == ["Demo phase healthy (0 s)", "Demo phase engine_down (held)"]


def test_a_speed_or_a_scenario_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="speed is 0"):
        Demo(speed=0)
    with pytest.raises(ValueError, match="unknown scenario 'x'"):
        Demo(scenario="x")


def test_the_document_lists_every_phase_as_it_is_played() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:(\d+) s )?\|.*\| (\w+) \| ([\w, ]*) ?\|$", DOCUMENT.read_text(), re.MULTILINE)
    played = [
        (each.name, str(each.seconds) if each in STORY else "", each.state.value, ", ".join(sorted(each.causes)))
        for each in (*STORY, *EXTRAS)
    ]
    assert [(name, seconds, state, causes.strip()) for name, seconds, state, causes in rows] == played
