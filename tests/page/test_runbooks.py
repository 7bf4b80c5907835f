"""Runbooks, served by the exporter."""

from __future__ import annotations

import re

import aiohttp

from tests.page.conftest import Exporter
from wattline.publish.runbooks import names


async def test_every_runbook_opens_and_every_link_in_it_leads_somewhere(exporter: Exporter) -> None:
    async with aiohttp.ClientSession() as client:
        async with client.get(exporter.url + "runbooks") as response:
            assert str(response.url) == exporter.url + "runbooks/"
            listed = re.findall(r'<li><a href="(\w+)">', await response.text())
        assert listed == names() != []
        for name in names():
            async with client.get(exporter.url + f"runbooks/{name}") as response:
                assert response.status == 200
                assert response.content_type == "text/html"
                text = await response.text()
            assert f"<h1>{name}</h1>" in text
            assert "<h2>Mitigation</h2>" in text or name == "Watchdog"
            inside = [link for link in re.findall(r'<a href="([^"]+)"', text) if not link.startswith("http")]
            assert set(inside) <= {"../", "./", *names()}, name


async def test_nothing_else_can_be_reached_by_a_name(exporter: Exporter) -> None:
    async with aiohttp.ClientSession() as client:
        for name in ("Nope", "..%2fconfiguration", "%2e%2e%2f%2e%2e%2fpyproject.toml", ".", "<script>"):
            async with client.get(exporter.url + f"runbooks/{name}") as response:
                assert response.status in (200, 404)
                body = await response.text()
                assert "GpuLost" in body, "the list, or a plain text that names what exists"
                assert response.content_type == "text/plain" or "<script>" not in body


async def test_a_runbook_may_be_named_as_a_file(exporter: Exporter) -> None:
    async with aiohttp.ClientSession() as client, client.get(exporter.url + "runbooks/GpuLost.md") as response:
        assert response.status == 200
