from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import bcrypt
import pytest

from tests.web.conftest import Files, Serve, basic
from wattline.publish import security


def hashed(password: str) -> str:
    # The cheapest cost: these tests ask what is allowed, not how hard it is to guess.
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def users(files: Files, **passwords: str) -> Path:
    lines = "".join(f"  {user}: {hashed(password)}\n" for user, password in passwords.items())
    return files.write("web.yml", f"basic_auth_users:\n{lines}" if lines else "")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of each real check of a password."""
    threads: list[str] = []
    real = security._check

    def counted(password: bytes, hash_: bytes) -> bool:
        threads.append(threading.current_thread().name)
        return real(password, hash_)

    monkeypatch.setattr(security, "_check", counted)
    return threads


async def test_the_right_password_lets_in(serve: Serve, files: Files) -> None:
    server = await serve(users(files, alice="wonder land: 1"))
    assert (await server.get(headers=basic("alice", "wonder land: 1"))).status == 200


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/nowhere"])
async def test_everything_is_protected(serve: Serve, files: Files, path: str) -> None:
    server = await serve(users(files, alice="right"))
    reply = await server.get(path)
    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"] == 'Basic realm="wattline"'


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("", "right"),
        basic("bob", "right"),
        basic("alice", "right" + "t" * 100),
        basic("alice", b"right\0"),
        basic("alice", b"\xff\xfe"),
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic YWxpY2U="},
        {"Authorization": "Bearer right"},
        {"Authorization": basic("alice", "right")["Authorization"].replace("Basic", "Digest")},
    ],
    ids=repr,
)
async def test_anything_else_does_not(serve: Serve, files: Files, headers: dict[str, str]) -> None:
    server = await serve(users(files, alice="right"))
    assert (await server.get(headers=headers)).status == 401


async def test_a_password_of_many_alphabets_lets_in(serve: Serve, files: Files) -> None:
    server = await serve(users(files, alice="pässwörd✓"))
    assert (await server.get(headers=basic("alice", "pässwörd✓"))).status == 200


async def test_a_verified_password_is_not_checked_again(serve: Serve, files: Files, checks: list[str]) -> None:
    server = await serve(users(files, alice="right", bob="also right"))
    for _ in range(3):
        for user, password in (("alice", "right"), ("bob", "also right")):
            assert (await server.get(headers=basic(user, password))).status == 200
    assert len(checks) == 2


async def test_a_wrong_password_is_checked_each_time(serve: Serve, files: Files, checks: list[str]) -> None:
    server = await serve(users(files, alice="right"))
    for _ in range(3):
        assert (await server.get(headers=basic("alice", "wrong"))).status == 401
    assert len(checks) == 3


async def test_an_unknown_user_costs_as_much_as_a_known_one(serve: Serve, files: Files, checks: list[str]) -> None:
    server = await serve(users(files, alice="right"))
    assert (await server.get(headers=basic("mallory", "right"))).status == 401
    assert len(checks) == 1


async def test_an_unknown_user_with_the_password_of_a_known_one_stays_out_after_the_known_one_was_in(
    serve: Serve, files: Files
) -> None:
    server = await serve(users(files, alice="right"))
    assert (await server.get(headers=basic("alice", "right"))).status == 200
    assert (await server.get(headers=basic("mallory", "right"))).status == 401


async def test_passwords_are_checked_off_the_event_loop(serve: Serve, files: Files, checks: list[str]) -> None:
    server = await serve(users(files, alice="right"))
    await server.get(headers=basic("alice", "right"))
    assert [name.split("_")[0] for name in checks] == ["passwords"]


async def test_a_changed_password_is_in_force_at_once(serve: Serve, files: Files) -> None:
    server = await serve(users(files, alice="old"))
    assert (await server.get(headers=basic("alice", "old"))).status == 200
    users(files, alice="new")
    assert (await server.get(headers=basic("alice", "old"))).status == 401
    assert (await server.get(headers=basic("alice", "new"))).status == 200


async def test_a_user_who_was_removed_stays_out(serve: Serve, files: Files) -> None:
    server = await serve(users(files, alice="right", bob="also right"))
    assert (await server.get(headers=basic("bob", "also right"))).status == 200
    users(files, alice="right")
    assert (await server.get(headers=basic("bob", "also right"))).status == 401


async def test_users_may_come_after_the_start(serve: Serve, files: Files) -> None:
    server = await serve(users(files))
    assert (await server.get()).status == 200
    users(files, alice="right")
    assert (await server.get()).status == 401


@pytest.mark.parametrize("broken", ["basic_auth_users: [", "basic_auth_users: {alice: plain}"])
async def test_a_broken_file_keeps_strangers_out(
    serve: Serve, files: Files, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(users(files, alice="right"))
    files.write("web.yml", broken)
    assert (await server.get()).status == 401
    assert (await server.get(headers=basic("alice", "right"))).status == 200
    assert len(caplog.records) == 1
    assert "plain" not in caplog.text


async def test_the_memory_of_verified_passwords_is_bounded(monkeypatch: pytest.MonkeyPatch, checks: list[str]) -> None:
    monkeypatch.setattr(security, "REMEMBERED", 2)
    passwords = security._Passwords()
    known = {user: hashed(user) for user in ("a", "b", "c")}
    for user in known:
        assert await passwords.allow(basic(user, user)["Authorization"], known)
    assert len(passwords._verified) == 2
    assert await passwords.allow(basic("c", "c")["Authorization"], known)
    assert len(checks) == 3
    passwords.close()


async def test_headers_are_set_on_every_answer(serve: Serve, files: Files) -> None:
    config = f"""
basic_auth_users: {{alice: "{hashed("right")}"}}
http_server_config: {{http2: false, headers: {{X-Frame-Options: deny}}}}
"""
    server = await serve(files.write("web.yml", config))
    replies = [await server.get()] + [await server.get(path, basic("alice", "right")) for path in ("/metrics", "/x")]
    assert [(reply.status, reply.headers.get("X-Frame-Options")) for reply in replies] == [
        (401, "deny"),
        (200, "deny"),
        (404, "deny"),
    ]


def test_bcrypt_is_not_loaded_before_a_password_is_checked() -> None:
    code = "import sys, wattline.publish.security; sys.exit('bcrypt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
