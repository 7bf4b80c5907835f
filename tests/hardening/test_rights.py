"""What the exporter may do, and that it needs no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.engines.servers import Server, answer
from tests.hardening.process import SERVE, serving
from tests.nvml.standin import StandIn
from wattline.state import StateFile

WITHOUT_RIGHTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 38, 24
for capability in range(64):
    libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
version_3, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capset(version_3, nothing) == 0, ctypes.get_errno()
"""


async def test_without_any_capability_it_reads_gpus_and_engines_serves_and_saves(
    tmp_path: Path, standin: StandIn
) -> None:
    file = tmp_path / "wattline.yml"
    first, rest = SERVE.split(";", 1)
    async with Server(answer()) as server:
        file.write_text(f"deployments: [{{name: d, engines: [{{url: '{server.url}'}}]}}]\nstate_file: state.json\n")
        code = f"{first}\n{WITHOUT_RIGHTS}\n{rest.strip()}"
        async with serving("--config.file", file, standin=standin, code=code) as exporter:
            status = await asyncio.to_thread(Path(f"/proc/{exporter.process.pid}/status").read_text)
            rights = dict(line.split(":\t") for line in status.splitlines() if line.startswith(("Cap", "NoNew")))
            assert {name: int(value, 16) for name, value in rights.items()} == {
                "CapInh": 0,
                "CapPrm": 0,
                "CapEff": 0,
                "CapBnd": 0,
                "CapAmb": 0,
                "NoNewPrivs": 1,
            }
            text = await exporter.until(lambda a: a.values("wattline_gpu_power_watts"))
            assert len(text.values("wattline_gpu_power_limit_watts", limit="enforced")) == 2
            await exporter.until(lambda a: a.values("wattline_engine_running_requests") == [3.0])
            assert await exporter.stop() == 0
    assert StateFile(tmp_path / "state.json").load().idle_power_watts == {}
    assert (tmp_path / "state.json").exists()


async def test_it_writes_nothing_but_its_state_file_and_starts_nothing(tmp_path: Path, standin: StandIn) -> None:
    home = tmp_path / "home"
    home.mkdir()
    spied = """
import atexit
opened = []
def look(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.mkdir", "os.remove"):
        opened.append((event, arguments[0] if arguments else None))
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & 3:
        opened.append(arguments[0])
sys.addaudithook(look)
atexit.register(lambda: print("WROTE", [o for o in opened if "__pycache__" not in str(o)], file=sys.stderr))
"""
    first, rest = SERVE.split(";", 1)
    environment = {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    code = f"{first}\n{spied}\n{rest.strip()}"
    async with serving(standin=standin, environment=environment, code=code) as exporter:
        await exporter.until(lambda a: a.values("wattline_gpu_power_watts"))
        await exporter.ask("/")
        await exporter.ask("/api/v1/status")
        assert await exporter.stop() == 0
    (wrote,) = (line for line in exporter.lines if line.startswith("WROTE"))
    assert wrote == "WROTE []"
    assert not any(home.iterdir())
