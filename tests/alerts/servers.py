"""Real Prometheus and Alertmanager on the loopback interface, and somebody who receives what they send."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "alerts"
RULES = ("recording.rules.yml", "wattline.rules.yml")
SUITES = ("trixie", "sid")
"""Debian's suites of the 2.x and of the 3.x pair."""
PATIENCE_SECONDS = 60.0


def program(name: str, suite: str) -> str:
    """Path of a server that ``tools/servers.sh`` has fetched; a missing one is a failure, never a skipped test."""
    path = ROOT / ".servers" / suite / "usr" / "bin" / name
    assert path.exists(), f"{path} is missing: run tools/servers.sh"
    return str(path)


def output(*command: str | Path, ok: bool = True) -> str:
    """What a command says; it must succeed, or fail where ``ok`` is false."""
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (done.returncode == 0) is ok, done.stdout
    return done.stdout


def faster(text: str, speed: float) -> str:
    """A rule file or configuration for a world that runs ``speed`` times as fast: durations are that much shorter."""
    units = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return re.sub(
        r"(?<![\w.])(\d+)(ms|s|m|h|d)(?!\w)",
        lambda match: f"{round(int(match[1]) * units[match[2]] / speed)}ms",
        text,
    )


def wait_for(what: str, condition: Callable[[], object], patience: float = PATIENCE_SECONDS) -> None:
    """Ask again and again until it is so; fail after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience:.0f} s in vain for {what}"
        time.sleep(0.05)


def _get(url: str) -> str:
    """What an address answers; OSError when it does not answer or refuses."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        text: str = answer.read().decode()
    return text


@dataclass
class Receiver:
    """A webhook that remembers all messages, in the order in which they came."""

    url: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)

    def told(self, status: str, **labels: str) -> list[dict[str, Any]]:
        """Alerts that were told with this status and these labels."""
        return [
            alert
            for message in tuple(self.messages)
            for alert in message["alerts"]
            if alert["status"] == status and labels.items() <= alert["labels"].items()
        ]

    def names(self, route: str | None = None) -> set[tuple[str, str]]:
        """Name and status of every alert that was told, the sign of life aside."""
        return {
            (alert["labels"]["alertname"], alert["status"])
            for message in tuple(self.messages)
            if route in (None, message["receiver"])
            for alert in message["alerts"]
            if alert["labels"]["alertname"] != "Watchdog"
        }


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Alertmanager:
    """A running Alertmanager."""

    url: str

    def post(self, *alerts: dict[str, Any]) -> None:
        """Tell it alerts as Prometheus does."""
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{self.url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - loopback


@contextmanager
def alertmanager(folder: Path, config: str, suite: str = "trixie") -> Iterator[Alertmanager]:
    """Run Alertmanager with this configuration; templates are those of the bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alertmanager.yml").write_text(config)
    if not (folder / "templates").exists():
        (folder / "templates").symlink_to(ALERTS / "templates")
    with running(
        folder / "alertmanager.log",
        program("prometheus-alertmanager", suite),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    ) as url:
        yield Alertmanager(url)


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        answer = json.loads(_get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"))
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their health and state."""
        groups = json.loads(_get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def evaluations(self) -> int:
        """How often all groups of rules together have been evaluated, divided by their number."""
        counts = re.findall(
            r"^prometheus_rule_group_iterations_total\{.*\} (\d+)", _get(f"{self.url}/metrics"), re.MULTILINE
        )
        return sum(map(int, counts)) // max(len(counts), 1)


@contextmanager
def prometheus(
    folder: Path, config: str, rules: dict[str, str], speed: float, suite: str = "trixie"
) -> Iterator[Prometheus]:
    """Run Prometheus with this configuration and these rule files, in a world that runs ``speed`` times as fast."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    for name, text in rules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with running(
        folder / "prometheus.log",
        program("prometheus", suite),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        "--web.listen-address=127.0.0.1:0",
        # These two are Prometheus' own clocks and must run as fast as the rules.
        f"--query.lookback-delta={faster('5m', speed)}",
        f"--rules.alert.resend-delay={faster('1m', speed)}",
    ) as url:
        yield Prometheus(url)


@contextmanager
def running(
    log: Path, *command: str, address: str = r"address=(127\.0\.0\.1:[1-9]\d*)", ready: str = "/-/ready"
) -> Iterator[str]:
    """Run a server that chooses its port, and find out its address from its log.

    Args:
        log: where it writes what it says.
        command: what to run.
        address: how its log tells the address.
        ready: a path that answers when it is ready.
    """
    with log.open("w") as said:
        server = subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT)
        found: list[str] = []

        def is_ready() -> bool:
            assert server.poll() is None, log.read_text()
            found[:] = re.findall(address, log.read_text())
            try:
                return bool(found) and _get(f"http://{found[0]}{ready}") is not None
            except OSError:
                return False

        try:
            wait_for(f"{log.stem} to be ready", is_ready)
            yield f"http://{found[0]}"
        finally:
            server.terminate()
            server.wait()
