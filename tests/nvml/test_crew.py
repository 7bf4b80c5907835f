"""Calls of several workers on one thread: what is quick shares it, and what hangs keeps it for itself."""

from __future__ import annotations

import asyncio
import threading

from wattline.worker import Crew, Worker


async def test_calls_that_come_back_share_one_thread() -> None:
    crew = Crew("crew", patience=60.0)
    threads = [
        await asyncio.gather(*(Worker(str(n), crew).run(threading.get_ident) for n in range(8))) for _ in range(3)
    ]
    assert len({outcome.value for each in threads for outcome in each}) == 1
    crew.retire()


async def test_calls_are_made_in_the_order_in_which_they_are_asked_for() -> None:
    crew, made = Crew("crew", patience=60.0), list[int]()
    await asyncio.gather(*(Worker(str(n), crew).run(lambda n=n: made.append(n)) for n in range(20)))  # type: ignore[misc]
    assert made == list(range(20))
    crew.retire()


async def test_a_call_that_hangs_holds_up_the_others_no_longer_than_patience() -> None:
    crew, released = Crew("crew", patience=0.02), threading.Event()
    before = asyncio.ensure_future(Worker("before", crew).run(lambda: "before"))
    hanging = Worker("hanging", crew)
    hung = asyncio.ensure_future(hanging.run(released.wait))
    await asyncio.sleep(0)
    after = [asyncio.ensure_future(Worker(str(n), crew).run(lambda n=n: n)) for n in range(4)]  # type: ignore[misc]
    async with asyncio.timeout(20):
        assert [(await call).value for call in after] == [0, 1, 2, 3]
        assert (await before).value == "before", "what came back before is told"
    assert hanging.busy
    assert not hung.done()
    released.set()
    assert (await hung).value is True
    crew.retire()


def threads_of(name: str) -> int:
    """Those of other tests may end meanwhile."""
    return sum(thread.name == name for thread in threading.enumerate())


async def test_each_call_that_hangs_keeps_one_thread_which_ends_with_it() -> None:
    crew, released = Crew("a crew of its own", patience=0.2), threading.Event()
    hung = [asyncio.ensure_future(Worker(str(n), crew).run(released.wait)) for n in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert (await Worker("last", crew).run(lambda: 7)).value == 7
    assert threads_of("a crew of its own") == 4
    released.set()
    await asyncio.gather(*hung)
    crew.retire()
    async with asyncio.timeout(20):
        while threads_of("a crew of its own"):  # noqa: ASYNC110 - a thread sets no event when it has ended
            await asyncio.sleep(0.01)


async def test_an_error_comes_back_and_the_thread_goes_on() -> None:
    crew = Crew("crew", patience=60.0)

    def fail() -> None:
        raise ValueError("no")

    failed, fine = await asyncio.gather(Worker("a", crew).run(fail), Worker("b", crew).run(lambda: 1))
    assert isinstance(failed.error, ValueError)
    assert fine.value == 1
    crew.retire()


async def test_a_crew_that_nobody_needs_has_no_thread() -> None:
    threads = threading.active_count()
    crew = Crew("crew", patience=1.0)
    assert threading.active_count() == threads
    crew.retire()
