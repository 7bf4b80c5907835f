"""When something fails that nobody foresaw: what is still served, and how often it is told."""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import replace

import pytest

from tests.analysis.build import Bench
from wattline import logs
from wattline.analysis.snapshot import Snapshot
from wattline.app import Exporter as App
from wattline.publish import limits
from wattline.publish.server import Publication


def publication() -> Publication:
    published = Publication()
    published.publish(Bench(gpus=1).run(10))
    return published


@pytest.mark.parametrize(
    "fault", [KeyError("x"), ValueError(), RecursionError(), UnicodeDecodeError("utf-8", b"", 0, 1, "")]
)
def test_metrics_that_cannot_be_written_leave_those_about_the_exporter(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    published = publication()
    assert b"wattline_gpu_up{" in published.render("", compressed=False)[0]
    published.publish(published.snapshot)

    def fails(_: object) -> float:
        raise fault

    family = published.registry.collector
    monkeypatch.setattr(type(family), "collect", lambda self: [fails(self)] if self.snapshot.gpus else [])
    body, content_type = published.render("", compressed=False)
    assert b"wattline_gpu_up" not in body
    assert b"wattline_build_info{" in body
    assert content_type.startswith("text/plain")
    assert not published.ready
    assert [record.name for record in caplog.records] == ["wattline.web"]
    monkeypatch.undo()
    published.publish(Bench(gpus=1).run(10))
    assert b"wattline_gpu_up{" in published.render("", compressed=False)[0]


def test_a_label_that_is_no_text_costs_no_scrape() -> None:
    published = publication()
    gpu = published.snapshot.gpus[0]
    half = replace(gpu, identity=replace(gpu.identity, name="half a character: \ud800"))
    published.publish(replace(published.snapshot, gpus=(half,)))
    assert b"wattline_build_info{" in published.render("", compressed=False)[0]


def test_what_was_rendered_is_kept_for_the_few_forms_that_there_are() -> None:
    published = publication()
    for number in range(100):
        published.render(f"application/openmetrics-text;version=1.0.{number}", compressed=False)
        published.render(f"text/plain;version=1.0.0;escaping=e{number}", compressed=True)
    assert len(published._rendered) <= 4


def failing(kind: type[Exception]) -> logging.LogRecord:
    try:
        raise kind("told at every scrape")  # noqa: TRY301 - to have a trace
    except Exception as error:  # noqa: BLE001
        trace = (type(error), error, error.__traceback__)
    return logging.LogRecord("wattline", logging.ERROR, __file__, 1, "failed for %s", ("anybody",), trace)


def test_the_trace_of_one_fault_is_told_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("wattline.logs.time.monotonic", lambda: clock[0])
    repeated = logs.Repeated()

    def told(kind: type[Exception]) -> bool:
        return repeated.filter(failing(kind))

    assert told(ValueError)
    assert not told(ValueError)
    assert told(KeyError)
    clock[0] += 3599
    assert not told(ValueError)
    clock[0] += 1
    assert told(ValueError)
    assert repeated.filter(logging.LogRecord("wattline", logging.INFO, "", 1, "no fault", (), None))
    assert repeated.filter(logging.LogRecord("wattline", logging.INFO, "", 1, "no fault", (), None))


@pytest.mark.parametrize(
    ("soft", "hard", "becomes"),
    [
        (1024, 524_288, 16_384),
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 16_384),
        (65_536, 65_536, 65_536),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_as_many_files_may_be_open_as_the_system_allows_up_to_what_is_wanted(
    soft: int, hard: int, becomes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: held[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: held.__setitem__(0, limit))
    limits.raise_file_limit()
    assert held == [(becomes, hard)]


class Judging:
    """A session whose judging fails for a while."""

    def __init__(self) -> None:
        self.bench = Bench(gpus=1)
        self.fails = False
        self.judged = 0
        self.news = asyncio.Event()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def beat(self) -> float:
        return 0.001

    def judge(self) -> Snapshot:
        self.judged += 1
        self.news.set()
        if self.fails:
            raise KeyError("nobody foresaw this")
        return self.bench.run(1)

    async def more(self, times: int = 3) -> None:
        """Wait for so many more verdicts."""
        wanted = self.judged + times
        while self.judged < wanted:
            self.news.clear()
            await self.news.wait()


async def test_while_judging_fails_no_old_verdict_is_shown_as_if_it_were_new(caplog: pytest.LogCaptureFixture) -> None:
    session, publication = Judging(), Publication()
    app = App(session, publication, listen=("127.0.0.1", 0))
    running = asyncio.create_task(app.run())
    try:
        await session.more()
        assert b"wattline_gpu_up{" in publication.render("", compressed=False)[0]
        session.fails = True
        await session.more()
        body, _ = publication.render("", compressed=False)
        assert b"wattline_gpu_up" not in body
        assert b"wattline_build_info{" in body
        assert (publication.ready, publication.why_not_ready) == (False, "judging failed")
        assert len([record for record in caplog.records if record.exc_info]) == 1
        session.fails = False
        await session.more()
        assert b"wattline_gpu_up{" in publication.render("", compressed=False)[0]
        assert publication.ready
    finally:
        app._stopping.set()
        await running
