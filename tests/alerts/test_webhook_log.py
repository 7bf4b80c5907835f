from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.alerts.servers import ALERTS, running

MESSAGE = {
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "GpuLost", "severity": "critical"},
            "annotations": {"summary": "GPU 1 is gone.", "description": "It was there."},
        },
        {"status": "resolved", "labels": {"alertname": "GpuXidErrors", "severity": "warning"}, "annotations": {}},
    ]
}
SCRIPT = str(ALERTS / "webhook_log.py")


def post(url: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
            status: int = answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return status


def test_every_alert_of_a_message_is_one_line_in_the_log_and_on_the_page(tmp_path: Path) -> None:
    log = tmp_path / "log"
    listening = r"listening on (127\.0\.0\.1:\d+)"
    with running(log, sys.executable, SCRIPT, "127.0.0.1:0", address=listening, ready="/") as url:
        assert post(f"{url}/pages", json.dumps(MESSAGE).encode()) == 200
        for wrong in (b"", b"{", b"[]", b"{}", b'{"alerts": [{}]}', b'{"alerts": 3}', b"\xff"):
            assert post(f"{url}/pages", wrong) == 400
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
            page = answer.read().decode()
    lines = log.read_text().splitlines()[1:]
    assert page.splitlines() == lines
    assert [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line) for line in lines] == [
        "pages firing critical GpuLost: GPU 1 is gone. It was there.",
        "pages resolved warning GpuXidErrors:",
    ]


@pytest.mark.parametrize("arguments", [["nonsense"], [":1", ":2"], [":x"], ["127.0.0.1:99999"]])
def test_a_wrong_address_is_told_without_a_traceback(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("webhook_log.py: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_address_in_use_is_told_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([sys.executable, SCRIPT, address], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"webhook_log.py: cannot listen on {address}: ")
