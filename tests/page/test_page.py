from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import files

import aiohttp
import pytest
import pytest_asyncio

from wattline.analysis.snapshot import State
from wattline.publish.page import plain
from wattline.publish.status import build

from .conftest import Exporter
from .snapshots import snapshot

HOSTILE = "\"><script>alert('gotcha')</script>"


@pytest_asyncio.fixture(loop_scope="function")
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_it_asks_only_for_files_of_its_own_and_all_are_there(
    exporter: Exporter, client: aiohttp.ClientSession
) -> None:
    async with client.get(exporter.url) as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        shell = await response.text()
    wanted = re.findall(r'<(?:link|script|img)[^>]+(?:href|src)="([^"]+)"', shell)
    assert sorted(wanted) == ["static/colours.css", "static/icon.svg", "static/page.css", "static/page.js"]
    for path in wanted:
        async with client.get(exporter.url + path) as response:
            assert response.status == 200
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            body = await response.text()
            assert not re.search(r"https?://(?!www\.w3\.org/)", body), "nothing is fetched from elsewhere"


@pytest.mark.parametrize("path", ["", "static/page.js", "api/v1/status", "api/v1/status/schema"])
async def test_the_content_policy_allows_no_inline_code_and_no_other_origin(
    exporter: Exporter, client: aiohttp.ClientSession, path: str
) -> None:
    async with client.get(exporter.url + path) as response:
        policy = response.headers["Content-Security-Policy"]
    parts = {name: sources for name, _, sources in (part.strip().partition(" ") for part in policy.split(";"))}
    assert parts["default-src"] == "'none'"
    assert "unsafe" not in policy
    assert {parts[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert parts["frame-ancestors"] == parts["base-uri"] == parts["form-action"] == "'none'"


async def test_it_links_to_metrics_readiness_status_and_runbooks(
    exporter: Exporter, client: aiohttp.ClientSession
) -> None:
    exporter.publication.publish(snapshot(State.WORKING))
    async with client.get(exporter.url) as response:
        links = re.findall(r'<a href="([^"#]+)"', await response.text())
    assert links == ["metrics", "-/ready", "api/v1/status", "api/v1/status/schema", "runbooks/"]
    for link in links:
        async with client.get(exporter.url + link) as response:
            assert response.status == 200, link


async def test_without_javascript_the_verdicts_are_there(exporter: Exporter, client: aiohttp.ClientSession) -> None:
    exporter.publication.publish(snapshot(State.IDLE_WHILE_BUSY))
    async with client.get(exporter.url) as response:
        shell = await response.text()
    fallback = re.findall(r"<noscript>(.*?)</noscript>", shell, re.DOTALL)[1]
    assert "<strong>glm5: Idle while busy</strong>" in fallback
    assert "1,024 requests are held, GPUs draw 14.5 % of their limit." in fallback
    assert "yet the busiest GPU draws 14.5% of its limit" in fallback


async def test_before_the_first_reading_it_says_so(exporter: Exporter, client: aiohttp.ClientSession) -> None:
    async with client.get(exporter.url) as response:
        assert "<p>no reading yet</p>" in await response.text()


async def test_hostile_text_is_escaped(exporter: Exporter, client: aiohttp.ClientSession) -> None:
    whole = snapshot(State.WORKING)
    view = replace(whole.deployments[0], name=HOSTILE, reason=HOSTILE)
    exporter.publication.publish(replace(whole, deployments=(view,)))
    async with client.get(exporter.url) as response:
        shell = await response.text()
    assert "<script>" not in shell
    assert "&lt;script&gt;" in shell


def test_a_dollar_in_a_name_is_only_a_dollar(exporter: Exporter) -> None:
    whole = snapshot(State.WORKING)
    view = replace(whole.deployments[0], name="$metrics ${runbooks}")
    text = plain(build(replace(whole, deployments=(view,)), exporter.publication.history))
    assert "$metrics ${runbooks}: Working" in text


def test_the_script_puts_no_text_in_as_markup() -> None:
    script = files("wattline.publish").joinpath("static", "page.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
