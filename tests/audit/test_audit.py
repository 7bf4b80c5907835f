"""The audit of a past whose truth is known, on real servers."""

from __future__ import annotations

import io
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.audit.pasts import IDLE, SECONDS, START, energy, lines, tokens
from tests.dashboards.prometheus import serving
from wattline.audit.client import Server, ServerError
from wattline.audit.run import run
from wattline.config import Price
from wattline.engines.target import Engine

END = float(START + SECONDS)


async def audited(url: str, **how: Any) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    async with Server(Engine(url=url)) as server:
        code = await run(server, float(START), END, as_json=True, out=out, **how)
    return code, json.loads(out.getvalue())


@pytest.mark.servers
@pytest.mark.parametrize("suite", ["trixie", "sid"])
async def test_hours_energy_and_incidents_are_those_of_the_past(suite: str, tmp_path: Path) -> None:
    with serving(tmp_path, lines(), suite) as server:
        code, told = await audited(server.url, price=Price(per_kwh=0.25, pue=1.2, co2_per_kwh=0.5))
    assert code == 1
    (deployment,) = told["deployments"]
    assert (deployment["name"], deployment["gpus"], deployment["joined_by"]) == ("node1", 2, "host")
    hours = deployment["hours"]
    assert sum(hours.values()) == pytest.approx(SECONDS / 3600, abs=0.01)
    assert hours["idle"] == pytest.approx(1.0, abs=0.05)
    assert hours["idle_while_busy"] == pytest.approx(0.5, abs=0.05)
    assert hours["stalled"] == pytest.approx(1 / 3, abs=0.05)
    # Two GPUs, by their own counters.
    assert sum(deployment["kwh"].values()) == pytest.approx(2 * energy(SECONDS) / 3.6e6, rel=0.02)
    wasted = 2 * IDLE * 3000 / 3.6e6
    assert deployment["wasted_kwh"] == pytest.approx(wasted, rel=0.15)
    assert deployment["wasted"]["amount"] == pytest.approx(deployment["wasted_kwh"] * 1.2 * 0.25)
    assert deployment["wasted"]["co2_kilograms"] == pytest.approx(deployment["wasted_kwh"] * 1.2 * 0.5)
    assert deployment["most_of_limit"] == pytest.approx(0.6, abs=0.01)
    assert sum(d["generated_tokens"] for d in deployment["days"]) == pytest.approx(tokens(SECONDS), rel=0.01)
    # The first phase is an hour long, the second too; the hang comes an hour and a half later. Right to two samples.
    starts = {i["state"]: datetime.fromisoformat(i["start"]).timestamp() - START for i in told["worst"]}
    assert starts == {"idle_while_busy": pytest.approx(7200, abs=30), "stalled": pytest.approx(12600, abs=30)}


@pytest.mark.servers
async def test_a_limit_that_no_series_tells_is_not_assumed(tmp_path: Path) -> None:
    with serving(tmp_path, lines(60, limit=False)) as server:
        _, without = await audited(server.url)
        _, given = await audited(server.url, limits={"H200": 700.0})
    (deployment,) = without["deployments"]
    assert "most_of_limit" not in deployment
    assert "idle_while_busy" not in deployment["hours"]
    assert any("no series tells a power limit" in m for m in deployment["missing"])
    (deployment,) = given["deployments"]
    assert given["power_limits"] == {"H200": 700.0}
    assert deployment["hours"]["idle_while_busy"] == pytest.approx(0.5, abs=0.1)
    assert deployment["sure"].startswith("fair")


async def served(answers: list[web.Response]) -> TestServer:
    """A server that gives one answer after the other, the last one for ever."""

    async def answer(_: web.Request) -> web.Response:
        given = answers.pop(0) if len(answers) > 1 else answers[0]
        return web.Response(status=given.status, body=given.body, headers=given.headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    return server


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (web.Response(body=b"<html>Log in</html>", content_type="text/html"), "expected the JSON of a Prometheus"),
        (web.Response(body=b'{"data":[{"a":"b'), "expected the JSON of a Prometheus"),
        (web.Response(status=302, headers={"Location": "http://elsewhere.example/x?key=1"}), "redirects to http://e"),
        (web.Response(status=401, text="no"), "HTTP 401: no"),
    ],
    ids=["a page", "a cut answer", "a redirect", "no right"],
)
async def test_what_is_no_prometheus_is_told_in_one_sentence(hostile: web.Response, said: str) -> None:
    server = await served([hostile])
    async with Server(Engine(url=str(server.make_url("/")))) as asked:
        with pytest.raises(ServerError, match=said):
            await asked.series(["up"], 0, 1)
    await server.close()


async def test_a_busy_server_is_asked_again_later() -> None:
    good = web.Response(body=b'{"status":"success","data":[{"job":"x"}]}')
    server = await served([web.Response(status=429), web.Response(status=503), good])
    async with Server(Engine(url=str(server.make_url("/"))), pause=0.001) as asked:
        assert await asked.series(["up"], 0, 1) == [{"job": "x"}]
    await server.close()
