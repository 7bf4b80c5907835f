"""The page in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]
from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from tests.recording.simulated import plan, watch
from wattline.analysis.observer import Observer
from wattline.analysis.snapshot import GpuView, IdleFloor, Snapshot, State
from wattline.publish.colours import STATE_COLOURS
from wattline.publish.server import Publication
from wattline.simulation.scenario import timeline

from .conftest import Exporter
from .snapshots import several, snapshot
from .test_status import Now

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
DESK = {"viewport": {"width": 1440, "height": 900}}
SCREENS = pytest.mark.parametrize("screen", [PHONE, DESK], ids=["phone", "desk"])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
HOSTILE = "<img src=x onerror=\"document.title='owned'\">" + "A" * 300


@dataclass
class Visit:
    """A page and everything that went on in it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Awaitable[Visit]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    # Not a measurement: a busy machine may take its time.
    expect.set_options(timeout=20_000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def serve() -> AsyncIterator[Callable[..., Awaitable[Exporter]]]:
    async with AsyncExitStack() as stack:

        async def start(*snapshots: Snapshot, **more: Any) -> Exporter:
            exporter = Exporter(**more)
            for shown in snapshots:
                exporter.publication.publish(shown)
            await exporter.start()
            stack.push_async_callback(exporter.stop)
            return exporter

        yield start


@pytest_asyncio.fixture(loop_scope="module")
async def visit(browser: Browser) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def open_page(exporter: Exporter, **options: Any) -> Visit:
            context = await browser.new_context(**{**DESK, **options})
            stack.push_async_callback(context.close)
            seen = Visit(await context.new_page())
            seen.page.on("console", lambda m: seen.errors.append(m.text) if m.type in ("error", "warning") else None)
            seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
            seen.page.on("request", lambda request: seen.requests.append(request.url))
            await seen.page.goto(exporter.url)
            await expect(seen.page.locator("body")).to_have_attribute("data-contact", "live")
            return seen

        yield open_page


async def violations(page: Page) -> list[str]:
    """What axe finds to be serious, and where."""
    await page.evaluate(AXE_SCRIPT)
    found: dict[str, Any] = await page.evaluate("axe.run({resultTypes: ['violations']})")
    assert found["passes"], "axe has looked at something"
    return [
        f"{v['id']}: {node['html'][:120]} {node['failureSummary']}"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]


async def end(bar: Locator, part: str) -> float:
    """Where a part of a bar ends, as a share of the bar."""
    whole, box = await bar.bounding_box(), await bar.locator(part).bounding_box()
    assert whole is not None
    assert box is not None
    return (box["x"] + box["width"] - whole["x"]) / whole["width"]


async def sticking_out(page: Page) -> list[str]:
    """What reaches beyond the screen, but for what can be scrolled there."""
    found: list[str] = await page.evaluate(
        """[...document.querySelectorAll("body *")]
        .filter((e) => !e.closest(".scroll, pre, .hidden, .skip") && e.getBoundingClientRect().right > innerWidth + 1)
        .map((e) => e.outerHTML.slice(0, 100))"""
    )
    return found


def through_all_states() -> list[Snapshot]:
    return [snapshot(state, 100.0 + 5 * i) for i, state in enumerate(list(State) * 6)]


@pytest.mark.parametrize("state", State)
async def test_each_state_is_shown_in_words_and_in_its_colour(serve: Any, visit: Open, state: State) -> None:
    seen = await visit(await serve(snapshot(state, 1000.0, since=880.0)))
    card = seen.page.locator("article.deployment")
    await expect(card).to_have_attribute("data-state", state.value)
    await expect(card.locator("h2 .state")).to_have_text(state.record.title)
    await expect(card.locator("h2 .since")).to_have_text("for 2\u202fmin")
    red, green, blue = (int(STATE_COLOURS[state][i : i + 2], 16) for i in (1, 3, 5))
    await expect(card.locator(".tile")).to_have_css("background-color", f"rgb({red}, {green}, {blue})")
    await expect(seen.page).to_have_title(f"{state.record.title}: glm5 · Wattline")
    assert seen.errors == []


async def test_nothing_is_asked_of_another_origin(serve: Any, visit: Open) -> None:
    exporter = await serve(*through_all_states())
    seen = await visit(exporter)
    asked = sum(url.endswith("/status") for url in seen.requests)
    async with seen.page.expect_response("**/api/v1/status"):
        pass
    assert asked >= 1
    assert all(url.startswith(exporter.url) for url in seen.requests), seen.requests
    assert seen.errors == []


async def test_the_verdict_the_evidence_and_what_cannot_be_seen_are_there(serve: Any, visit: Open) -> None:
    page = (await visit(await serve(snapshot(State.IDLE_WHILE_BUSY)))).page
    await expect(page.locator(".summary")).to_have_text("1,024 requests are held, GPUs draw 14.5 % of their limit.")
    why = page.locator(".why")
    await expect(why).to_contain_text("Not fed: at least 1024 requests are held")
    await expect(why).to_contain_text("peer-to-peer topology (not visible here)")
    await expect(why.get_by_role("link", name="Runbook for Not fed")).to_have_attribute(
        "href", "runbooks/GpuIdleWhileBusy"
    )
    figures = page.locator(".figures .value")
    await expect(figures).to_have_text(["14.5\u202f%", "0.6\u202f%", "3,740", "5.37", "1,024"])


async def test_each_gpu_has_a_bar_with_its_limit_and_idle_floor(serve: Any, visit: Open) -> None:
    page = (await visit(await serve(snapshot(State.LOW_POWER)))).page
    bars = page.locator("table svg.bar")
    await expect(bars).to_have_count(8)
    bar = bars.first
    await expect(bar).to_have_attribute("aria-label", "248\u202fW of 600\u202fW; idle floor 84\u202fW, learned")
    ends = [await end(bar, part) for part in (".floor", ".work-part", ".limit")]
    assert ends == pytest.approx([84 / 600, 247.8 / 600, 1.0], abs=0.01)


async def test_power_above_the_limit_stays_within_the_bar(serve: Any, visit: Open) -> None:
    whole = snapshot(State.SATURATED)
    view = whole.gpus[0]
    lowered = replace(view, limit_watts=300.0, idle_floor=IdleFloor(90.0, "assumed"))
    page = (await visit(await serve(replace(whole, gpus=(lowered,))))).page
    bar = page.locator("table svg.bar")
    assert await end(bar, ".work-part") == pytest.approx(1.0, abs=0.01)
    assert await end(bar, ".limit") == pytest.approx(300 / 576.9, abs=0.01)
    await expect(page.get_by_role("table").first).to_contain_text("300\u202fW (default 600\u202fW)")


async def test_what_was_not_obtained_is_a_dash_and_a_column_without_any_is_left_out(serve: Any, visit: Open) -> None:
    whole = snapshot(State.IDLE_WHILE_BUSY)
    lost = GpuView(whole.gpus[3].identity, "glm5", up=False)
    page = (await visit(await serve(replace(whole, gpus=(*whole.gpus[:3], lost, *whole.gpus[4:]))))).page
    table = page.get_by_role("table", name="GPUs of glm5")
    await expect(table.get_by_role("columnheader", name="PCIe out")).to_have_count(1)
    await expect(table.get_by_role("columnheader", name="Tensor")).to_have_count(0)
    row = table.get_by_role("row").nth(4)
    await expect(row).to_contain_text("Does not answer")
    assert not re.search(r"\d", (await row.inner_text()).replace("GPU 3", "")), "no number of a lost GPU"


async def test_the_chart_breaks_where_data_is_absent(serve: Any, visit: Open) -> None:
    seconds = [*range(0, 100, 5), *range(100, 160, 5), *range(160, 200, 5), *range(300, 400, 5)]
    shown = [snapshot(State.UNKNOWN if 100 <= t < 160 else State.WORKING, float(t)) for t in seconds]
    page = (await visit(await serve(*shown))).page
    line = await page.locator(".plot.power .line").get_attribute("d")
    assert line is not None
    assert line.count("M") == 3, "a gap for what was unknown, and one for the time in which nobody looked"
    ribbon = page.locator(".ribbon rect")
    assert await ribbon.evaluate_all("all => all.map(r => r.dataset.state)") == [
        "working",
        "unknown",
        "working",
        "working",
    ]


async def test_the_chart_is_read_with_the_keyboard(serve: Any, visit: Open) -> None:
    shown = [snapshot(State.IDLE if t < 850 else State.WORKING, float(t)) for t in range(0, 901, 5)]
    page = (await visit(await serve(*shown))).page
    slider = page.get_by_role("slider")
    await slider.focus()
    await expect(page.locator(".readout")).to_have_text(
        re.compile("^Now: Working, 86.7\u202f% of the limit, 9,400 tokens/s")
    )
    for _ in range(4):
        await page.keyboard.press("ArrowLeft")
    await expect(slider).to_have_attribute("aria-valuenow", "-60")
    await expect(slider).to_have_attribute(
        "aria-valuetext", re.compile("^1\u202fmin ago: Idle, 14.5\u202f% of the limit, 0")
    )
    await expect(slider).to_be_focused()
    await page.keyboard.press("Home")
    await expect(slider).to_have_attribute("aria-valuenow", "-900")
    await page.keyboard.press("Escape")
    await expect(slider).to_have_attribute("aria-valuenow", "0")


async def test_it_follows_the_exporter_and_keeps_focus_and_open_parts(serve: Any, visit: Open) -> None:
    exporter = await serve(snapshot(State.WORKING, 100.0), configuration=lambda: {"window": "60s"})
    seen = await visit(exporter)
    summary = seen.page.get_by_text("Configuration in force").first
    await summary.focus()
    await seen.page.keyboard.press("Enter")
    await expect(seen.page.locator("pre")).to_be_visible()
    await expect(seen.page.locator("pre")).to_have_text('window: "60s"')
    exporter.publication.publish(snapshot(State.STALLED, 105.0))
    await expect(seen.page.locator("h2 .state")).to_have_text("Stalled")
    await expect(seen.page.locator("pre")).to_be_visible()
    await expect(seen.page.locator("summary:focus")).to_have_text("Configuration in force")
    await expect(seen.page.locator("#announce")).to_have_text("Stalled: glm5")
    assert seen.errors == []


async def test_a_killed_exporter_is_noticed_and_its_return_too(serve: Any, visit: Open) -> None:
    exporter = await serve(snapshot(State.WORKING))
    seen = await visit(exporter)
    heard = (await seen.page.locator("#contact").inner_text()).removeprefix("Live, ")
    await exporter.stop()
    body, alarm = seen.page.locator("body"), seen.page.get_by_role("alert")
    await expect(body).to_have_attribute("data-contact", "lost")
    await expect(alarm).to_have_text(re.compile(r"^Lost contact since \d\d:\d\d:\d\d: it does not answer"))
    since = re.findall(r"\d\d:\d\d:\d\d", await alarm.inner_text())[0]
    assert since >= heard or heard.startswith("23")
    await expect(seen.page.locator("main")).to_have_css("filter", "grayscale(1)")
    await expect(seen.page).to_have_title("Lost contact · Wattline")
    await expect(seen.page.locator("h2 .state")).to_have_text("Working")
    assert await violations(seen.page) == []
    exporter.publication = Publication()
    exporter.publication.publish(snapshot(State.IDLE))
    await exporter.start()
    await expect(body).to_have_attribute("data-contact", "live")
    await expect(alarm).to_be_hidden()
    await expect(seen.page.locator("h2 .state")).to_have_text("Idle")
    assert all("ERR_CONNECTION_REFUSED" in error for error in seen.errors), "the browser's own words, none of ours"


async def test_an_exporter_that_answers_with_an_error_is_lost(serve: Any, visit: Open) -> None:
    seen = await visit(await serve(snapshot(State.WORKING)))
    await seen.page.route("**/api/v1/status", lambda route: route.fulfill(status=401, body="who are you?"))
    await expect(seen.page.get_by_role("alert")).to_contain_text("it answers 401")


async def test_an_exporter_that_hangs_is_lost(serve: Any, visit: Open) -> None:
    seen = await visit(await serve(snapshot(State.WORKING)))
    await seen.page.route("**/api/v1/status", lambda _: None)
    await expect(seen.page.get_by_role("alert")).to_contain_text("it does not answer in time")


async def test_an_exporter_that_answers_but_judges_no_more_is_called_old(serve: Any, visit: Open) -> None:
    exporter = await serve(snapshot(State.WORKING))
    seen = await visit(exporter)
    exporter.publication.published_at -= 30.0
    await expect(seen.page.get_by_role("alert")).to_contain_text("has judged nothing for 3")
    await expect(seen.page.locator("body")).to_have_attribute("data-contact", "lost")


async def test_the_phase_of_a_demo_stands_at_the_top(serve: Any, visit: Open) -> None:
    page = (await visit(await serve(snapshot(State.IDLE_WHILE_BUSY), phase=Now))).page
    phase = page.locator("main > :first-child")
    await expect(phase).to_have_attribute("aria-label", "Demo")
    await expect(phase).to_contain_text("A benchmark holds 1024 requests")
    await expect(phase).to_contain_text("next in 23\u202fs")


async def test_every_phase_of_the_demo_shows_the_state_that_it_tells_of(serve: Any, visit: Open) -> None:
    line = timeline()
    now = Now()
    exporter = await serve(phase=lambda: now)
    seen = await visit(exporter)
    shown = set()
    for each in watch(Observer(plan()), "story", 0.0, line.cycle_seconds - 1):
        exporter.publication.publish(each)
        moment, right = line.at(each.t), line.settled_state(each.t)
        if right is None or each.t < moment.end - 1:
            continue
        now = Now(moment.phase.name, moment.phase.title)
        await expect(seen.page.locator(".phase")).to_contain_text(moment.phase.title)
        await expect(seen.page.locator("h2 .state")).to_have_text(right.record.title)
        shown.add(right)
    assert shown == set(State) - {State.UNKNOWN}
    assert seen.errors == []


async def test_an_exporter_that_has_read_nothing_says_so(serve: Any, visit: Open) -> None:
    seen = await visit(await serve())
    await expect(seen.page.locator(".notice")).to_have_text("Not ready: no reading yet.")
    assert seen.errors == []


async def test_a_source_that_cannot_be_read_stands_open(serve: Any, visit: Open) -> None:
    page = (await visit(await serve(snapshot(State.UNKNOWN)))).page
    sources = page.locator(".sources")
    await expect(sources).to_contain_text("1 of 10 cannot be read.")
    await expect(sources.locator("> ul")).to_contain_text("connection_refused")


async def test_hostile_names_stay_text(serve: Any, visit: Open) -> None:
    whole = snapshot(State.WORKING)
    reading = whole.engines[0].reading
    assert reading is not None
    view = replace(whole.deployments[0], name=HOSTILE, reason=HOSTILE, unseen=(HOSTILE,), unresolved_gpus=(HOSTILE,))
    engine = replace(whole.engines[0], reading=replace(reading, model=HOSTILE, version=HOSTILE))
    hostile = replace(
        whole,
        deployments=(view,),
        engines=(engine,),
        gpus=tuple(replace(g, identity=replace(g.identity, name=HOSTILE + str(g.identity.index))) for g in whole.gpus),
        sources=(replace(whole.sources[0], name=HOSTILE, detail=HOSTILE, up=False),),
    )
    for screen in (PHONE, DESK):
        seen = await visit(await serve(hostile, configuration=lambda: {HOSTILE: HOSTILE}), **screen)
        await expect(seen.page.locator("h2 .name")).to_contain_text("<img src=x")
        assert await seen.page.locator("img").count() == 0
        assert "owned" not in (await seen.page.title())[:5]
        assert seen.errors == []
        assert await sticking_out(seen.page) == []


@SCREENS
@SCHEMES
async def test_axe_finds_nothing_serious_in_any_state(
    serve: Any, visit: Open, scheme: str, screen: dict[str, Any]
) -> None:
    shown = snapshot(State.IDLE_WHILE_BUSY, 1000.0)
    for state in State:
        shown = several(shown, state)
    exporter = await serve(*through_all_states(), shown, phase=Now, configuration=lambda: {"window": "60s"})
    seen = await visit(exporter, color_scheme=scheme, **screen)
    for summary in await seen.page.locator("summary").all():
        await summary.click()
    await expect(seen.page.locator("pre")).to_be_visible()
    assert await violations(seen.page) == []
    assert await sticking_out(seen.page) == []


async def test_the_keyboard_reaches_everything_in_order_and_shows_where_it_is(serve: Any, visit: Open) -> None:
    exporter = await serve(snapshot(State.IDLE_WHILE_BUSY), configuration=lambda: {"window": "60s"})
    page = (await visit(exporter)).page
    stops = []
    for _ in range(20):
        await page.keyboard.press("Tab")
        words = await page.evaluate(
            "(e => (e === document.body ? '' : e.getAttribute('aria-label') || e.textContent.trim()))"
            "(document.activeElement)"
        )
        if not words:
            break
        stops.append(words)
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", words
    assert stops == [
        "Skip to the verdicts",
        "What to do about it",
        "The last 15 minutes of glm5: move back in time",
        "Runbook for Not fed",
        "GPUs of glm5",
        "Engines of glm5",
        "All 10 are read",
        "Configuration in force",
        "Metrics",
        "Readiness",
        "Status as JSON",
        "Its schema",
        "Runbooks",
    ]


async def test_several_deployments_have_an_overview_with_the_worst_in_the_title(serve: Any, visit: Open) -> None:
    page = (await visit(await serve(several(snapshot(State.WORKING), State.LOW_POWER, "qwen")))).page
    await expect(page.locator(".overview a")).to_have_count(2)
    await expect(page.locator(".overview a").nth(1)).to_contain_text("qwen Low power")
    await expect(page).to_have_title("Low power: qwen · Wattline")
    await page.locator(".overview a").nth(1).click()
    await expect(page.locator("#deployment-1")).to_be_in_viewport()
