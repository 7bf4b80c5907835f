"""No secret that the exporter is told, or that is shown to it, comes out of it anywhere."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import bcrypt
import pytest

from tests.engines.servers import METRICS, Request, Server, answer
from tests.hardening.process import SERVE, serving
from wattline.config import ConfigError, load, parse
from wattline.discovery.periodic import _tell_deployments

TOKEN_IN_FILE = "tokenfile-4f1c"
TOKEN_IN_ENVIRONMENT = "tokenenv-9b2e"
KEY_IN_QUERY = "querykey-77aa"
PASSWORD = "password-c0de"
WRONG_PASSWORD = "wrongpass-3141"
COOKIE = "cookie-5c5c"
SENT_AS_NOISE = "noise-1e1e"
SECRETS = [TOKEN_IN_FILE, TOKEN_IN_ENVIRONMENT, KEY_IN_QUERY, PASSWORD, WRONG_PASSWORD, COOKIE, SENT_AS_NOISE]
SECRETS += [base64.b64encode(f"ops:{p}".encode()).decode().rstrip("=") for p in (PASSWORD, WRONG_PASSWORD)]

FAILS = """
from wattline.engines import scrape
async def surprise(response):
    raise RuntimeError(f"nobody foresaw {response.url} {response.request_info.headers}")
scrape._body = surprise
"""


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"ops:{password}".encode()).decode()}


@pytest.mark.parametrize("defect", [False, True], ids=["engines of every kind", "a defect while reading them"])
async def test_no_secret_is_in_a_log_a_page_a_metric_or_an_error(tmp_path: Path, defect: bool) -> None:
    fates = [
        answer(),
        answer(b"", "401 Unauthorized"),
        answer(b"", "307 Temporary Redirect", Location=f"http://127.0.0.2:1/?key={KEY_IN_QUERY}"),
        answer(b"<html>", "200 OK", Set_Cookie=f"session={COOKIE}"),
        answer(METRICS[:30]),
        b"HTTP/1.1 200 OK\r\nX: \x00\r\n\r\n",
        b"",
    ]
    asked = 0
    authorised = set()

    async def handler(request: Request, _: asyncio.StreamWriter) -> bytes:
        nonlocal asked
        asked += 1
        authorised.add(request.headers.get("Authorization"))
        assert KEY_IN_QUERY in request.path
        return fates[asked % len(fates)]

    token = tmp_path / "token"
    token.write_text(TOKEN_IN_FILE + "\n")
    web = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    web.write_text(f"basic_auth_users: {{ops: '{hashed}'}}\n")
    file = tmp_path / "wattline.yml"
    async with Server(handler) as server:
        query = f"key={KEY_IN_QUERY}"
        good = (
            f"deployments:\n- name: d\n  engines:\n"
            f"  - {{url: '{server.url}?{query}&a', name: a, bearer_token_file: token}}\n"
            f"  - {{url: '{server.url}?{query}&b', name: b, bearer_token_env: THE_TOKEN}}\n"
            f"  - {{url: 'https://127.0.0.1:{server.port}/metrics?{query}&c', name: c, bearer_token_file: token}}\n"
            f"  - {{url: 'http://127.0.0.1:1/metrics?{query}'}}\n"
            f"engine_interval: 1s\n"
        )
        file.write_text(good)
        flags: list[str | Path] = [
            "--config.file",
            file,
            "--web.config.file",
            web,
            "--web.enable-lifecycle",
            "--log.level",
            "debug",
        ]
        first, rest = SERVE.split(";", 1)
        async with serving(
            *flags,
            environment={"THE_TOKEN": TOKEN_IN_ENVIRONMENT},
            code=f"{first}\n{FAILS if defect else ''}\n{rest.strip()}",
        ) as exporter:
            said: list[bytes] = []

            async def ask(path: str, method: str = "GET", **headers: str) -> int:
                given = await exporter.ask(path, method, **(headers or basic(PASSWORD)))
                said.append(given.body + json.dumps(given.headers).encode())
                return given.status

            async with asyncio.timeout(30):
                while asked < (2 if defect else len(fates)):
                    await ask("/metrics")
                    await asyncio.sleep(0.05)
            if defect:
                await exporter.logged("unexpected RuntimeError")
            for path in ("/metrics", "/", "/api/v1/status", "/api/v1/status/schema", "/-/healthy", "/-/ready"):
                assert await ask(path) in {200, 503}
            assert await ask("/metrics", **basic(WRONG_PASSWORD)) == 401
            assert await ask(f"/nowhere?token={SENT_AS_NOISE}") == 404
            for bad in (
                good.replace("engine_interval: 1s", "engine_interval: soon"),
                good.replace("&b", "&a"),
                good.replace("http://", f"http://ops:{PASSWORD}@", 1),
                good.replace("bearer_token_env: THE_TOKEN", f"bearer_token_env: {TOKEN_IN_ENVIRONMENT}"),
                good.replace("bearer_token_file: token", f"bearer_token: {TOKEN_IN_FILE}", 1),
                good.replace("{url: 'http:", "{urls: 'http:", 1),
                good + "\t",
            ):
                file.write_text(bad)
                assert await ask("/-/reload", "POST") == 500
            file.write_text(good)
            assert await ask("/-/reload", "POST") == 200
            web.write_text(f"basic_auth_users: {{ops: '{PASSWORD}'}}\n")
            assert await ask("/metrics") == 200
            assert await exporter.stop() == 0
    assert authorised == {f"Bearer {TOKEN_IN_FILE}", f"Bearer {TOKEN_IN_ENVIRONMENT}"}
    everything = b"\n".join([*said, exporter.log.encode()]).decode()
    assert ("unexpected RuntimeError" in everything) == defect
    assert [secret for secret in SECRETS if secret in everything] == []
    assert hashed not in everything


@pytest.mark.parametrize(
    "text",
    [
        "deployments: [{engines: [{url: 'http://ops:hunter2@h:1/'}]}]",
        "deployments: [{engines: [{url: 'ftp://ops:hunter2@h:1/'}]}]",
        "deployments: [{engines: [{url: 'http://ops:hunter2@h:99999/'}]}]",
        "deployments: [{engines: [{url: 'http://h:1/?key=hunter2'}, {url: 'http://h:1/?key=hunter2', name: b}]}]",
        "deployments: [{engines: [{url: 'http://h:1/?key=hunter2', ca_file: x}]}]",
        "deployments: [{engines: [{url: 'http://h:1', bearer_token_env: 'hunter2-'}]}]",
        "deployments: [{engines: [{url: 'ops:hunter2@h:1/'}]}]",
    ],
)
def test_an_error_about_an_address_does_not_repeat_what_may_be_secret_in_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert "hunter2" not in str(refused.value)


def test_what_was_found_is_told_without_the_keys_of_what_was_configured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    text = "deployments: [{gpus: auto, engines: [{url: 'http://h:1/metrics?key=hunter2'}]}]"
    _tell_deployments(parse(text, "wattline.yml"))
    assert "http://h:1/metrics" in caplog.text
    assert "hunter2" not in caplog.text
