"""What the flags of a command do beside its configuration, and how wrong ones are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recording.make import path_of
from wattline import commands
from wattline.analysis.plan import EnginePlan
from wattline.cli import address, build_parser, main
from wattline.config import Config, Engine
from wattline.recording.reader import read_recording

UUID = "GPU-5f1c0e6a-90b3-4a2d-8c71-3d2e4b5a6f70"
ONE = f"""
deployments:
  - name: glm5
    engines: [{{url: "https://a:30000", bearer_token_file: token, ca_file: ca.pem, kind: sglang}}]
    gpus: [0, 1]
window: 90s
thresholds: {{low_tdp_fraction: 0.3}}
gpus: {{{UUID}: {{idle_power_watts: 87}}}}
"""
TWO = """
deployments:
  - {name: a, engines: [{url: "http://a:1", bearer_token_file: /t}], gpus: [0]}
  - {name: b, engines: [{url: "http://b:1"}], gpus: [1]}
window: 90s
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "wattline.yml"


def targets(file: Path, *flags: str, command: tuple[str, ...] = ("check",)) -> Config:
    return commands._targets(build_parser().parse_args([*command, "--config.file", str(file), *flags]))


@pytest.mark.parametrize("command", [("check",), ("record", "new.gz")])
def test_a_flag_replaces_the_deployments_of_the_configuration_and_nothing_else(
    file: Path, command: tuple[str, ...]
) -> None:
    file.write_text(ONE)
    config = targets(file, "--engine", "http://b:1", "--gpus", "2, 3", command=command)
    (deployment,) = config.deployments
    assert [(e.url, e.bearer_token_file) for e in engines_of(config)] == [("http://b:1/metrics", None)]
    assert deployment.gpus == (2, 3)
    assert (config.window, config.thresholds.low_tdp_fraction) == (90.0, 0.3)
    assert config.gpus[UUID].idle_power_watts == 87


def engines_of(config: Config) -> list[Engine]:
    return [e for d in config.deployments if not isinstance(d.engines, str) for e in d.engines]


def test_a_configured_server_is_reached_as_it_is_configured(file: Path) -> None:
    file.write_text(ONE)
    (engine,) = engines_of(targets(file, "--engine", "https://a:30000/metrics"))
    assert (engine.bearer_token_file, engine.ca_file) == (str(file.parent / "token"), str(file.parent / "ca.pem"))
    assert engine.kind == "sglang"


def test_of_one_deployment_the_other_half_stays(file: Path) -> None:
    file.write_text(ONE)
    (deployment,) = targets(file, "--engine", "http://b:1").deployments
    assert (deployment.name, deployment.gpus) == ("glm5", (0, 1))
    (engine,) = engines_of(targets(file, "--gpus", "all"))
    assert engine.name == "a:30000"
    assert targets(file, "--gpus", "all").deployments[0].gpus == "all"


def test_of_several_deployments_nobody_knows_whose_gpus_are_meant(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TWO)
    (deployment,) = targets(file, "--engine", "http://a:1").deployments
    assert (deployment.name, deployment.gpus) == ("default", None)
    assert main(["check", "--config.file", str(file), "--gpus", "0"]) == 2
    assert capsys.readouterr().err == "wattline: --gpus: expected --engine beside it: there are 2 deployments\n"


def test_a_configuration_that_is_not_there_is_told_beside_flags_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config.file", str(tmp_path / "no.yml"), "--engine", "http://127.0.0.1:1/metrics"]
    for command in (["check"], ["record", str(tmp_path / "new.gz")]):
        assert main([*command, *arguments]) == 2
        assert "no.yml: cannot be read: no such file or directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--engine", "foo"], "--engine: expected an address such as http://127.0.0.1:30000/metrics, found 'foo'"),
        (
            ["--engine", "http://a:1", "--engine", "http://a:1/"],
            "--engine: the address http://a:1/metrics is given twice",
        ),
        (["--gpus", "0,300"], "--gpus: expected an NVML index from 0 to 255, found 300"),
        (["--gpus", "0,0"], "--gpus: the GPU 0 is given twice"),
        (["--gpus", "²"], "--gpus: expected an index, a UUID such as"),
        (["--for", "5"], "--for: expected at least 10s, found 5s"),
        (["--for", "0.5"], "--for: expected at least 10s, found 0.5s"),
    ],
)
def test_a_wrong_flag_is_told_by_its_own_name(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"wattline: {says}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("text", "seconds"), [("45", 45.0), ("0", 0.0), ("12.5", 12.5), ("1m30s", 90.0)])
def test_a_duration_may_be_a_number_of_seconds(text: str, seconds: float) -> None:
    assert build_parser().parse_args(["check", "--for", text]).seconds == seconds


@pytest.mark.parametrize("text", ["-5", "nan", "inf", "1e3", "5 s", "٣", ""])
def test_what_is_no_duration_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["check", f"--for={text}"])
    assert ended.value.code == 2
    assert "--for: expected a duration such as 60s, 500ms or 1h30m, or seconds as a number" in capsys.readouterr().err


class TestReplay:
    FILE = str(path_of("collectives"))

    @pytest.mark.parametrize("flags", [["--for", "30s"], ["--for", "2m"], ["--watch"]])
    def test_a_recording_is_judged_as_a_whole(self, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", "--replay", self.FILE, *flags]) == 2
        expected = "expected no --replay beside it: a recording is judged as a whole, at once"
        assert capsys.readouterr().err == f"wattline: {flags[0]}: {expected}\n"

    def test_a_server_that_the_recording_does_not_hold_is_told(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        held = ", ".join(e.name for d in read_recording(Path(self.FILE)).header.plan.deployments for e in d.engines)
        assert held
        file.write_text("deployments: [{engines: [{url: 'http://127.0.0.1:9'}]}]\n")
        for flags in (["--engine", "http://127.0.0.1:9"], ["--config.file", str(file)]):
            assert main(["check", "--replay", self.FILE, *flags]) == 2
            said = capsys.readouterr()
            assert said.err == f"wattline: {self.FILE}: the recording holds no 127.0.0.1:9; it holds {held}\n"
            assert said.out == ""

    def test_without_a_configuration_flags_change_the_recorded_plan(self) -> None:
        recording = read_recording(Path(self.FILE))
        recorded = recording.header.plan
        (engine,) = recorded.deployments[0].engines
        options = build_parser().parse_args(["check", "--replay", self.FILE, "--gpus", "0,1"])
        plan = commands._replay_plan(options, recording)
        assert plan.deployments[0].engines == (engine,)
        assert plan.deployments[0].gpus == (0, 1)
        assert (plan.window, plan.thresholds) == (recorded.window, recorded.thresholds)

    def test_a_recorded_server_is_found_by_its_address(self) -> None:
        recording = read_recording(Path(self.FILE))
        (engine,) = recording.header.plan.deployments[0].engines
        options = build_parser().parse_args(["check", "--replay", self.FILE, "--engine", engine.url])
        assert commands._replay_plan(options, recording).deployments[0].engines == (
            EnginePlan(engine.name, engine.url, engine.count_tokens, engine.kind),
        )


class TestEnvironment:
    def test_a_variable_of_another_command_is_nothing_to_this_one(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("WATTLINE_SPEED", "foo")
        monkeypatch.setenv("WATTLINE_LOG_LEVEL", "loud")
        assert main(["version"]) == 0
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(
        ("command", "variable", "value", "says"),
        [
            ("demo", "WATTLINE_SPEED", "foo", "found 'foo', expected a number above 0"),
            ("check", "WATTLINE_LOG_LEVEL", "loud", "found 'loud', expected one of debug, info, warning, error"),
            ("serve", "WATTLINE_WEB_LISTEN_ADDRESS", "x", "found 'x', expected host:port or :port"),
        ],
    )
    def test_a_wrong_variable_is_told_by_its_name_and_by_the_command_that_looks_at_it(
        self,
        command: str,
        variable: str,
        value: str,
        says: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv(variable, value)
        with pytest.raises(SystemExit) as ended:
            main([command])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.endswith(f"\nwattline {command}: error: environment variable {variable}: {says}\n")
        assert said.startswith(f"usage: wattline {command} ")

    def test_a_flag_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WATTLINE_SPEED", "foo")
        monkeypatch.setenv("WATTLINE_LOG_LEVEL", "debug")
        monkeypatch.setenv("WATTLINE_WEB_ENABLE_LIFECYCLE", "Yes")
        values = vars(build_parser().parse_args(["demo", "--speed", "3"]))
        assert values["speed"] == 3.0
        assert values["log.level"] == "debug"
        assert values["web.enable_lifecycle"] is True
        assert values["web.listen_address"] == (None, 10087), "the default, where nothing else is given"


class TestOutput:
    """As processes of their own, since it is about the real standard output. Buffered or not makes a difference."""

    COMMANDS = (
        ["version"],
        ["--help"],
        ["completion", "bash"],
        ["explain", str(path_of("collectives"))],
        ["check", "--replay", str(path_of("collectives"))],
        ["check", "--json", "--replay", str(path_of("collectives"))],
    )

    def run(self, arguments: list[str], stdout: int, unbuffered: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "wattline", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60,
            check=False,
        )

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("arguments", COMMANDS)
    def test_a_full_disk_is_told_and_is_no_finding(self, arguments: list[str], unbuffered: str) -> None:
        with Path("/dev/full").open("wb") as full:
            done = self.run(arguments, full.fileno(), unbuffered)
        assert done.stderr == b"wattline: cannot write: No space left on device\n"
        assert done.returncode == 2

    @pytest.mark.parametrize("arguments", COMMANDS)
    def test_output_that_nobody_reads_is_no_finding(self, arguments: list[str]) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        done = self.run(arguments, writing, "")
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_an_error_that_is_not_of_the_output_is_not_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: object) -> int:
            raise OSError(28, "of something else")

        monkeypatch.setattr("wattline.cli._run", fail)
        with pytest.raises(OSError, match="of something else"):
            main(["version"])


@pytest.mark.parametrize("module", ["wattline.cli", "wattline.commands"])
def test_an_interrupt_while_everything_is_imported_is_no_traceback(module: str) -> None:
    code = f"""
import os, runpy, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["wattline", "check"]
runpy.run_module("wattline", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (130, b"", b"")


def test_the_help_teaches_by_examples_that_are_right_and_tells_the_exit_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    examples = [line.split("  ")[1] for line in said.splitlines() if line.startswith("  wattline ")]
    assert len(examples) == 5
    for example in examples:
        build_parser().parse_args(example.split()[1:])
    assert "exit codes: 0 done; 1 finding (check); 2 could not tell (check)" in said


def test_an_unknown_scenario_is_told_by_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--scenario", "nonsense"]) == 2
    assert capsys.readouterr().err.startswith(
        "wattline: --scenario: unknown scenario 'nonsense': expected one of story, "
    )


@pytest.mark.parametrize(
    ("text", "host"),
    [(":1", None), ("[::]:1", None), ("127.0.0.1:1", "127.0.0.1"), ("[::1]:1", "::1"), ("a.b:1", "a.b")],
)
def test_every_address_of_the_machine_is_that_of_both_families(text: str, host: str | None) -> None:
    # Exporters in Go listen on both families at [::]; asyncio would on IPv6 alone.
    assert address(text) == (host, 1)
