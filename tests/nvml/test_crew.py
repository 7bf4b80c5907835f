"""Calls of several workers on one thread: what is quick shares it, and what hangs keeps it for itself."""

from __future__ import annotations

import asyncio
import threading
import time

from wattline.worker import Crew, Worker, take_turn, unhurried


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


async def test_what_came_back_before_a_hang_is_told_though_nobody_waits_behind_it() -> None:
    crew, released = Crew("crew", patience=0.02), threading.Event()
    before = asyncio.ensure_future(Worker("before", crew).run(lambda: "before"))
    hung = asyncio.ensure_future(Worker("hanging", crew).run(released.wait))
    async with asyncio.timeout(20):
        assert (await before).value == "before"
    released.set()
    await hung
    crew.retire()


async def test_a_call_that_comes_back_waits_for_its_turn_and_one_that_hangs_in_it_is_left_behind_again() -> None:
    crew = Crew("crew", patience=0.05)
    first, second, inside = threading.Event(), threading.Event(), threading.Event()

    def hang_twice() -> str:
        first.wait()
        take_turn()
        inside.set()
        second.wait()
        return "came back twice"

    async with asyncio.timeout(20):
        hung = asyncio.ensure_future(Worker("hanging", crew).run(hang_twice))
        await asyncio.sleep(0)
        assert (await Worker("other", crew).run(lambda: 1)).value == 1
        first.set()
        await asyncio.to_thread(inside.wait)
        assert (await Worker("other", crew).run(lambda: 2)).value == 2
        second.set()
        assert (await hung).value == "came back twice"
        assert await crew.quiet(20)
    crew.retire()


async def test_nobody_is_at_work_beside_a_call_that_has_come_back() -> None:
    crew, released = Crew("crew", patience=0.02), threading.Event()
    at_work, counts = set[str](), list[int]()

    def work(name: str) -> None:
        for _ in range(50):
            take_turn()
            at_work.add(name)
            counts.append(len(at_work))
            at_work.discard(name)

    def hang() -> None:
        released.wait()
        work("late")

    async with asyncio.timeout(20):
        hung = asyncio.ensure_future(Worker("hanging", crew).run(hang))
        await asyncio.sleep(0)
        await Worker("0", crew).run(released.set)
        for number in range(20):
            await Worker(str(number), crew).run(lambda: work("others"))
        await hung
    assert set(counts) == {1}
    crew.retire()


async def test_the_others_wait_for_what_must_come_before_them() -> None:
    crew, released = Crew("a patient crew", patience=0.02), threading.Event()

    def must_come_first() -> bool:
        with unhurried():
            return released.wait()

    looks = Worker("looks", crew)
    opening = asyncio.ensure_future(Worker("opening", crew).run(must_come_first))
    await asyncio.sleep(0)
    other = asyncio.ensure_future(looks.run(lambda: 1))
    await asyncio.sleep(0.1)
    assert not other.done()
    assert threads_of("a patient crew") == 1
    released.set()
    assert (await opening).value
    assert (await other).value == 1
    crew.retire()


async def test_a_late_call_is_reported_once() -> None:
    crew, released, late = Crew("crew", patience=0.01, late=0.02), threading.Event(), list[str]()
    hung = asyncio.ensure_future(Worker("hanging", crew).run(released.wait, lambda: late.append("late")))
    await asyncio.sleep(0)
    for _ in range(10):
        await Worker("other", crew).run(lambda: time.sleep(0.01))
    assert late == ["late"]
    assert crew.hangs
    released.set()
    await hung
    assert await crew.quiet(20)
    assert not crew.hangs
    crew.retire()  # type: ignore[unreachable]


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
