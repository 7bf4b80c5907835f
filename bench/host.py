"""A GPU host without a GPU: the stand-in NVML library, servers that repeat recorded texts, and programs over both.

The library answers like a host of H200s, and its calls take what they take on a real one (``tests/nvml``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench.acceptance import free_port
from tests.nvml.standin import StandIn, build, h200

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "engines" / "fixtures" / "sglang"
ONE_RANK = TEXTS / "0.5.23_busy_t0.prom.gz"
"""148 KB: one SGLang 0.5.23 under load."""
EIGHT_RANKS = TEXTS / "0.5.23_dp8_t0.prom.gz"
"""231 KB: the same with eight data-parallel ranks."""
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Memory:
    """In MiB, by the kernel's account."""

    resident: float
    """What ``top`` shows as RES."""
    peak: float
    """The most that this ever was."""
    own: float
    """Without what is shared with other processes."""


class Program:
    """A running program, and what the kernel says of it. Ended with the block."""

    def __init__(self, *command: str, environment: dict[str, str]) -> None:
        self._popen = subprocess.Popen(
            command,
            env=os.environ | environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdout:
            self._popen.stdout.close()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._popen.pid

    def line(self) -> str:
        """The next line that it prints."""
        assert self._popen.stdout is not None  # noqa: S101 - it is piped
        return self._popen.stdout.readline().strip()

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far, in the program and in the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> Memory:
        """What it holds now."""
        status = _kilobytes(Path(f"/proc/{self.pid}/status"))
        rollup = _kilobytes(Path(f"/proc/{self.pid}/smaps_rollup"))
        own = rollup["Private_Clean"] + rollup["Private_Dirty"]
        return Memory(status["VmRSS"] / 1024, status["VmHWM"] / 1024, own / 1024)

    def wait_for(self, url: str, seconds: float = 30.0) -> float:
        """Wait until an address answers with success; the seconds that this took.

        Raises:
            TimeoutError: it does not.
        """
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if self._popen.poll() is not None:
                raise RuntimeError(f"{self._popen.args!r} ended with {self._popen.returncode}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url, timeout=1).read()  # noqa: S310 - it is on loopback
                return time.monotonic() - start
            time.sleep(0.005)
        raise TimeoutError(f"{url} did not answer within {seconds:g} s")


def _kilobytes(path: Path) -> dict[str, int]:
    pairs = (line.partition(":") for line in path.read_text().splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in pairs}


class Host:
    """GPUs and engines for programs to watch, as long as the block lasts.

    Args:
        gpus: how many H200s.
        engines: how many inference servers.
        text: what each of them answers.
        timed: whether NVML's calls take what they take on a real H200.
    """

    def __init__(self, gpus: int, engines: int, *, text: Path = EIGHT_RANKS, timed: bool = True) -> None:
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._gpus, self._engines, self._text, self._timed = gpus, engines, text, timed
        self._library = Path()
        self._started = 0

    def __enter__(self) -> Self:
        self._library = build(self._folder)
        urls = []
        if self._engines:
            serve = (sys.executable, "-m", "bench.engines", str(self._text), str(self._engines))
            port = self._stack.enter_context(Program(*serve, environment={})).line()
            urls = [f"{{url: 'http://127.0.0.1:{port}/{n}/metrics', name: e{n}}}" for n in range(self._engines)]
        self.config = self._folder / "wattline.yml"
        deployment = f"{{name: bench, engines: [{', '.join(urls)}], gpus: all}}" if urls else ""
        self.config.write_text(f"deployments: [{deployment}]\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def library(self) -> StandIn:
        """A library of its own for one program, so that its calls can be counted."""
        self._started += 1
        folder = self._folder / str(self._started)
        folder.mkdir()
        return StandIn(self._library, folder, h200(self._gpus, timed=self._timed))

    def serve(self, library: StandIn | None = None) -> tuple[Program, str]:
        """``wattline serve`` with its default schedule, and its address."""
        address = f"127.0.0.1:{free_port()}"
        environment = (library or self.library()).environment
        command = (sys.executable, "-m", "wattline.cli", "serve", "--config.file", str(self.config))
        program = Program(*command, "--web.listen-address", address, "--log.level", "error", environment=environment)
        return program, f"http://{address}"


def driver_seconds(before: dict[tuple[str, str], int], after: dict[tuple[str, str], int]) -> float:
    """CPU seconds that the calls counted in between have spent in the library: what the driver itself takes."""
    spins = {}
    for line in (ROOT / "tests" / "nvml" / "h200-times.txt").read_text().splitlines():
        if not line.startswith("#") and "spin_us=" in line:
            _, call, *pairs = line.split()
            spins[call] = next(float(p.removeprefix("spin_us=")) for p in pairs if p.startswith("spin_us="))
    total = 0.0
    for (who, call), number in after.items():
        spin = next(
            (us for name, us in spins.items() if name == call or (name[-1] == "*" and call.startswith(name[:-1]))), 0
        )
        total += (number - before.get((who, call), 0)) * spin
    return total / 1e6
