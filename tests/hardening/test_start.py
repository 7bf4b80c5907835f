"""What is wrong at the start is said in one line, with exit code 2, and does no harm."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from tests.engines.servers import Server, answer
from tests.hardening.process import PATIENCE, ROOT, serving
from tests.nvml.standin import StandIn, uuid
from wattline.cli import build_parser
from wattline.state import Memory, StateFile


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


async def refused(*arguments: str | Path) -> str:
    """What ``wattline serve`` says before it ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wattline.cli", "serve", *map(str, arguments), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 2
    return said.decode()


async def test_a_second_exporter_on_the_same_port_says_so_and_leaves_the_state_of_the_first_alone(
    tmp_path: Path, standin: StandIn
) -> None:
    state = tmp_path / "state.json"
    StateFile(state).save(Memory(idle_power_watts={"GPU-of-the-first": 87.0}))
    before = state.read_bytes()
    file = tmp_path / "wattline.yml"
    file.write_text("state_file: state.json\n")
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        address = f"127.0.0.1:{first.getsockname()[1]}"
        said = await refused("--config.file", file, "--web.listen-address", address)
    assert said.startswith(f"wattline: --web.listen-address: {address}: ")
    assert said.endswith("address already in use\n")
    assert said.count("\n") == 1
    assert state.read_bytes() == before
    assert entries(tmp_path) == ["standin", "state.json", "wattline.yml"]


async def test_a_name_that_is_no_address_of_this_host_is_told() -> None:
    said = await refused("--web.listen-address", "no-such-host.invalid:0")
    assert said.startswith("wattline: --web.listen-address: no-such-host.invalid:0: ")
    assert said.count("\n") == 1


async def test_a_web_configuration_that_cannot_be_used_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config:\n  cert_file: no.pem\n  key_file: no.key\n")
    said = await refused("--web.config.file", file, "--web.listen-address", "127.0.0.1:0")
    assert said.startswith(f"wattline: {file}:2: tls_server_config.cert_file: ")
    assert said.count("\n") == 1


async def test_a_host_that_is_to_have_no_gpu_misses_none(tmp_path: Path, standin: StandIn) -> None:
    """No driver is looked for, so none that is not there wakes anybody; it is ready when it reads an engine."""
    file = tmp_path / "wattline.yml"
    async with Server(answer()) as engine:
        file.write_text(f"nvml: false\ndeployments: [{{name: d, engines: [{{url: '{engine.url}', name: e}}]}}]\n")
        async with serving("--config.file", file, standin=standin) as exporter:
            await exporter.until(lambda told: told.status == 200, "/-/ready")
            told = await exporter.ask()
            assert told.values("wattline_engine_up", engine="e") == [1]
            assert "wattline_source_up" in told.text
            assert told.values("wattline_source_up", source="nvml") == []
            assert "wattline_gpu_" not in told.text.replace("wattline_gpu_power_fraction", "")
            assert told.values("wattline_deployment_state", state="unknown") == [1]
            assert await exporter.stop() == 0
    assert standin.counts() == {}


async def test_a_state_file_that_nobody_can_use_is_no_reason_not_to_start(tmp_path: Path, standin: StandIn) -> None:
    (tmp_path / "state.json").write_bytes(b"\x00" * 100)
    file = tmp_path / "wattline.yml"
    file.write_text("state_file: state.json\n")
    async with serving("--config.file", file, standin=standin) as exporter:
        await exporter.logged("state.json is not understood: .* Starting without it")
        await exporter.until(lambda answer: answer.values("wattline_gpu_power_watts"))
        assert await exporter.stop() == 0
    assert any(name.startswith("state.json.unreadable-") for name in entries(tmp_path))
    assert list(StateFile(tmp_path / "state.json").load().gpus) == [uuid(0), uuid(1)]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--web.listen-address", "127.0.0.1:99999"),
        ("--web.listen-address", "10087"),
        ("--log.level", "loud"),
    ],
)
def test_a_flag_that_cannot_be_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["serve", f"{flag}={value}"])
    assert ended.value.code == 2
    assert flag in capsys.readouterr().err
