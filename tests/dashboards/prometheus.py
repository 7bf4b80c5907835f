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
    from collections.abc import Iterable, Iterator

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
def serving(folder: Path, lines: Iterable[str], suite: str = "sid") -> Iterator[Prometheus]:
    """Write a past into ``folder`` and serve it on a free port of the loopback interface."""
    past, data, config = folder / "past.om", folder / "data", folder / "prometheus.yml"
    with past.open("w") as file:
        file.writelines(lines)
    written = subprocess.run(
        [program("promtool", suite), "tsdb", "create-blocks-from", "openmetrics", "--quiet", past, data],
        check=False,
        capture_output=True,
        text=True,
    )
    assert written.returncode == 0, written.stderr
    past.unlink()
    config.write_text("{}\n")
    log = folder / "log"
    with log.open("w") as said:
        server = subprocess.Popen(
            [
                program("prometheus", suite),
                f"--config.file={config}",
                f"--storage.tsdb.path={data}",
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
