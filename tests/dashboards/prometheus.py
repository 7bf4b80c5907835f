"""A real Prometheus over a past that was written before it began."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SERVERS = Path(__file__).parents[2] / ".servers"
PATIENCE_SECONDS = 30.0


def program(name: str, suite: str = "sid") -> str:
    """Path of a server that ``make servers`` has fetched; sid has a Prometheus 3, as the bundle.

    Raises:
        FileNotFoundError: it was not fetched.
    """
    path = SERVERS / suite / "usr" / "bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `make servers`")
    return str(path)


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def _ask(self, path: str, **parameters: object) -> list[dict[str, Any]]:
        data = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data) as answer:  # noqa: S310 - loopback
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{json.load(error)['error']} in {parameters['query']}") from None
        return result

    def over_time(self, expr: str, start: float, end: float, step: float = 15) -> list[dict[str, Any]]:
        """Run a range query.

        Raises:
            ValueError: Prometheus refuses the query.
        """
        return self._ask("query_range", query=expr, start=start, end=end, step=step)

    def at(self, expr: str, moment: float) -> list[dict[str, Any]]:
        """Run an instant query.

        Raises:
            ValueError: Prometheus refuses the query.
        """
        return self._ask("query", query=expr, time=moment)


@contextmanager
def serving(
    folder: Path,
    lines: Iterable[str],
    suite: str = "sid",
    more: Callable[[Prometheus], Iterable[str]] | None = None,
) -> Iterator[Prometheus]:
    """Write a past into ``folder`` and serve it on a free port of the loopback interface.

    Args:
        folder: an empty one.
        lines: the past, as OpenMetrics.
        suite: of Debian, whose Prometheus is to be run.
        more: what follows from that past, once it can be asked, and is to be served beside it.
    """
    _write(folder, lines, suite)
    if more:
        with _running(folder, suite) as before:
            following = list(more(before))
        _write(folder, following, suite)
    with _running(folder, suite) as server:
        yield server


def _write(folder: Path, lines: Iterable[str], suite: str) -> None:
    past = folder / "past.om"
    with past.open("w") as file:
        file.writelines(lines)
    written = subprocess.run(
        [program("promtool", suite), "tsdb", "create-blocks-from", "openmetrics", "--quiet", past, folder / "data"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert written.returncode == 0, written.stderr
    past.unlink()


@contextmanager
def _running(folder: Path, suite: str) -> Iterator[Prometheus]:
    config, log = folder / "prometheus.yml", folder / "log"
    config.write_text("{}\n")
    with log.open("w") as said:
        server = subprocess.Popen(
            [
                program("prometheus", suite),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=100y",
                "--web.listen-address=127.0.0.1:0",
                # A series that ended has no mark of its end in a past that was written: it ends when samples do.
                "--query.lookback-delta=30s",
            ],
            stderr=said,
            stdout=said,
        )
        try:
            yield Prometheus(_address(server, log))
        finally:
            server.terminate()
            server.wait()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and server.poll() is None:
        text = log.read_text()
        if (match := re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", text)) and "Server is ready" in text:
            return f"http://{match[1]}"
        time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not become ready:\n{log.read_text()}")
