"""Discovery over real processes, started with the command lines of real servers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import wattline.session
from tests.discovery.host import conditions, uuid
from wattline.analysis.snapshot import Snapshot
from wattline.config import parse
from wattline.discovery import periodic
from wattline.discovery.processes import ProcessTable
from wattline.discovery.resolve import Discoverer
from wattline.discovery.servers import Endpoint, find_servers
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuProcess, GpuSample
from wattline.session import Session

STANDIN = Path(__file__).parent / "standins" / "server.py"
ROOT = Path(__file__).parents[2]
METRICS = """\
sglang:num_running_reqs{model_name="m",tp_rank="0",pp_rank="0"} 3
sglang:num_queue_reqs{model_name="m",tp_rank="0",pp_rank="0"} 0
"""
SGLANG = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/GLM-5", "--enable-metrics"]
TP2 = ["sglang::scheduler_TP0", "sglang::scheduler_TP1"]


@dataclass
class Running:
    process: subprocess.Popen[str]
    port: int
    pids: list[int]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@dataclass
class Launcher:
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def device(self) -> str:
        return str(self.folder / "nvidia")

    def start(self, argv: list[str], titles: list[str]) -> Running:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "STANDIN_TITLES": ",".join(titles),
            "STANDIN_GPU": self.device + "0",
            "STANDIN_METRICS": str(self.folder / "metrics.prom"),
        }
        process = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.callback(process.wait, 10)
        self.stack.callback(process.kill)
        assert process.stdout is not None
        self.stack.callback(process.stdout.close)
        line = process.stdout.readline()
        if not line:
            pytest.skip("this machine does not let the tests make namespaces")
        running = Running(process, **json.loads(line))
        self.stack.callback(running.end)
        return running

    def look(self) -> ProcessTable:
        return ProcessTable(gpu_devices=(self.device,))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    for name in ("sglang/__init__.py", "sglang/launch_server.py", "bin/vllm", "bin/sglang"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name.endswith("__init__.py") else STANDIN.read_text())
    (tmp_path / "nvidia0").touch()
    (tmp_path / "metrics.prom").write_text(METRICS)
    found = Launcher(tmp_path)
    with found.stack:
        yield found


@pytest.mark.parametrize(
    ("argv", "titles", "kind", "model"),
    [
        (SGLANG, TP2, "sglang", "GLM-5"),
        ([sys.executable, "{bin}/sglang", "serve", "--model-path", "a/b"], TP2, "sglang", "b"),
        ([sys.executable, "{bin}/vllm", "serve", "a/c"], ["VLLM::Worker_TP0", "VLLM::Worker_TP1"], "vllm", "c"),
    ],
)
def test_real_processes_lead_to_their_server(
    launcher: Launcher, argv: list[str], titles: list[str], kind: str, model: str
) -> None:
    running = launcher.start([word.replace("{bin}", str(launcher.folder / "bin")) for word in argv], titles)
    (server,), notes = find_servers(launcher.look(), conditions([[pid] for pid in running.pids]))
    assert (server.kind, server.model, server.pid) == (kind, model, running.process.pid)
    assert server.endpoints == (Endpoint(f"http://127.0.0.1:{running.port}/metrics"),)
    assert server.gpus == {uuid(0): ("TP0",), uuid(1): ("TP1",)}
    assert [n.text for n in notes if n.blind] == []


def test_a_process_without_the_gpu_is_not_the_one_that_the_driver_means(launcher: Launcher) -> None:
    running = launcher.start(SGLANG, TP2)
    table = ProcessTable(gpu_devices=("/dev/nvidia-that-nobody-holds",))
    servers, notes = find_servers(table, conditions([running.pids]))
    assert servers == ()
    assert {n.kind for n in notes} == {"pid_namespace"}


def test_the_loopback_of_another_network_namespace_is_out_of_reach(launcher: Launcher) -> None:
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *SGLANG]
    running = launcher.start(inside, TP2)
    servers, notes = find_servers(launcher.look(), conditions([[pid] for pid in running.pids]))
    assert servers == ()
    assert [n.kind for n in notes if n.blind] == ["unreachable"]


def test_from_a_process_namespace_of_its_own_the_exporter_says_that_it_is_blind(launcher: Launcher) -> None:
    running = launcher.start(SGLANG, TP2)
    script = (
        "from wattline.discovery.processes import ProcessTable\n"
        "from wattline.discovery.servers import find_servers\n"
        "from tests.discovery.host import conditions\n"
        f"servers, notes = find_servers(ProcessTable(), conditions([{running.pids}]))\n"
        "print(servers, [(n.kind, n.blind) for n in notes])\n"
    )
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    done = subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip("this machine does not let the tests make namespaces")
    assert (done.stdout.strip(), done.stderr) == ("() [('pid_namespace', True)]", "")


class Gpus:
    """GPUs of which only the processes matter."""

    name = "nvml"

    def __init__(self, count: int) -> None:
        self.processes: list[list[int]] = [[] for _ in range(count)]
        self.now: Callable[[], float] = lambda: 0.0
        self.asked = 0
        self.unidentified: dict[int, str] = {}

    def discover(self) -> tuple[GpuIdentity, ...]:
        return tuple(GpuIdentity(uuid=uuid(n), index=n) for n in range(len(self.processes)))

    def sample(self, of: str) -> GpuSample:
        return GpuSample(t=self.now(), uuid=of, power_watts=300.0)

    def activity(self, of: str) -> GpuActivity:
        return GpuActivity(t=self.now(), uuid=of)

    def condition(self, of: str) -> GpuCondition:
        self.asked += 1
        pids = self.processes[int(of[-2:], 16)]
        processes = tuple(GpuProcess(pid) for pid in pids)
        return GpuCondition(t=self.now(), uuid=of, limit_enforced_watts=600.0, processes=processes)

    def forget(self, of: str) -> None:
        pass

    def close(self) -> None:
        pass


async def until(session: Session, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first verdict of which this is true."""
    async with asyncio.timeout(30):
        while not condition(snapshot := session.judge()):  # noqa: ASYNC110 - verdicts come by asking
            await asyncio.sleep(0.02)
    return snapshot


async def test_a_running_exporter_finds_a_server_and_follows_it_to_other_gpus(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wattline.session, "CONDITION_INTERVAL", 0.1)
    monkeypatch.setattr(periodic, "INTERVAL", 0.1)
    first = launcher.start(SGLANG, TP2)
    gpus = Gpus(4)
    gpus.processes[0], gpus.processes[1] = [first.pids[0]], [first.pids[1]]
    session = Session(
        parse("deployments: [{engines: auto, gpus: auto}]\nengine_interval: 1s", "f"),
        gpus,
        discoverer=Discoverer(gpu_devices=(launcher.device,)),
    )
    gpus.now = session.clock
    assert session.judge().deployments == ()
    await session.start()
    try:
        found = await until(session, lambda s: any(e.reading is not None and e.reading.up for e in s.engines))
        (deployment,) = found.deployments
        assert (deployment.name, deployment.engines, deployment.gpus) == ("GLM-5", ("GLM-5",), (uuid(0), uuid(1)))
        assert [g.deployment for g in found.gpus] == ["GLM-5", "GLM-5", "", ""]
        assert found.engines[0].reading is not None
        assert found.engines[0].reading.running == 3
        (source,) = [s for s in found.sources if s.name == "discovery"]
        assert source.up, source.detail

        first.end()
        gpus.processes = [[], [], [], []]
        down = await until(session, lambda s: any(e.reading is not None and not e.reading.up for e in s.engines))
        assert [d.name for d in down.deployments] == ["GLM-5"]

        second = launcher.start(SGLANG, TP2)
        gpus.processes = [[], [], [second.pids[0]], [second.pids[1]]]
        moved = await until(session, lambda s: s.deployments[0].gpus == (uuid(2), uuid(3)))
        assert [g.deployment for g in moved.gpus] == ["", "", "GLM-5", "GLM-5"]
        await until(session, lambda s: any(e.reading is not None and e.reading.up for e in s.engines))
    finally:
        await session.stop()


async def test_at_rest_it_looks_only_when_other_processes_hold_the_gpus(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wattline.session, "CONDITION_INTERVAL", 0.1)
    monkeypatch.setattr(periodic, "INTERVAL", 0.02)
    looks: list[list[list[int]]] = []

    class Counting(Discoverer):
        def resolve(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            looks.append([list(pids) for pids in gpus.processes])
            return super().resolve(*args, **kwargs)  # type: ignore[arg-type]

    running = launcher.start(SGLANG, TP2)
    gpus = Gpus(3)
    gpus.processes = [[running.pids[0]], [running.pids[1]], []]
    session = Session(
        parse("deployments: [{engines: auto, gpus: auto}]", "f"),
        gpus,
        discoverer=Counting(gpu_devices=(launcher.device,)),
    )
    gpus.now = session.clock
    await session.start()
    try:
        await until(session, lambda s: bool(s.deployments))
        count, before = len(looks), gpus.asked
        await until(session, lambda _: gpus.asked > before + 9)
        assert len(looks) == count
        gpus.processes = [[], [running.pids[1]], [running.pids[0]]]
        await until(session, lambda s: s.deployments[0].gpus == (uuid(1), uuid(2)))
    finally:
        await session.stop()


async def test_a_look_that_hangs_holds_up_nothing_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "STUCK", 0.05)
    hangs = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Hanging(Discoverer):
        def resolve(self, *_: object, **__: object) -> object:  # type: ignore[override]
            loop.call_soon_threadsafe(hangs.set)
            return asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), loop).result()

    gpus = Gpus(1)
    session = Session(parse("deployments: [{engines: auto, gpus: auto}]", "f"), gpus, discoverer=Hanging())
    gpus.now = session.clock
    await session.start()
    try:
        await asyncio.wait_for(hangs.wait(), 10)
        told = await until(session, lambda s: any("has not come back" in v.detail for v in s.sources))
        assert [v.up for v in told.sources if v.name == "discovery"] == [False]
        assert [g.up for g in (await until(session, lambda s: any(g.up for g in s.gpus))).gpus] == [True]
    finally:
        await asyncio.wait_for(session.stop(), 5)


async def test_a_look_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "INTERVAL", 0.05)
    failures = iter([True, True, False])

    class Failing(Discoverer):
        def resolve(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            if next(failures, False):
                raise OSError("the disk of /proc is full")
            return super().resolve(*args, **kwargs)  # type: ignore[arg-type]

    gpus = Gpus(1)
    session = Session(parse("deployments: [{engines: auto, gpus: auto}]", "f"), gpus, discoverer=Failing())
    gpus.now = session.clock
    await session.start()
    try:
        await until(session, lambda s: any(v.name == "discovery" and v.detail == "failed: OSError" for v in s.sources))
        await until(session, lambda s: any(v.name == "discovery" and v.up for v in s.sources))
    finally:
        await session.stop()


async def test_without_auto_there_is_no_discovery() -> None:
    gpus = Gpus(1)
    session = Session(parse("deployments: []", "f"), gpus)
    gpus.now = session.clock
    await session.start()
    try:
        seen = await until(session, lambda s: any(g.up for g in s.gpus))
        assert "discovery" not in {v.name for v in seen.sources}
        await session.apply(parse("deployments: [{engines: auto, gpus: auto}]", "f"))
        await until(session, lambda s: any(v.name == "discovery" for v in s.sources))
        await session.apply(parse("deployments: []", "f"))
        assert "discovery" not in {v.name for v in session.judge().sources}
    finally:
        await session.stop()
