"""Build and steer the stand-in for libnvidia-ml.so.1: see README.md beside this file."""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
COUNT_ENTRY = struct.Struct("56sQ")


def build(folder: Path) -> Path:
    """Compile the library into a folder, under the name that nvidia-ml-py asks for."""
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run([*command, "-o", str(library), str(HERE / "standin.c"), "-lpthread"], check=True)
    return library


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-1111-2222-3333-444444444444"


def bus_id(gpu: int) -> str:
    return f"00000000:{gpu + 5:02X}:00.0"


def h200(gpus: int, *, timed: bool = False) -> str:
    """Return control lines for a host of H200s; timed: whose calls take what they take on a real one."""
    lines = [f"- nvmlDeviceGetCount value={gpus}"]
    for gpu in range(gpus):
        lines += [f"{gpu} nvmlDeviceGetUUID value={uuid(gpu)}", f"{gpu} nvmlDeviceGetPciInfo value={bus_id(gpu)}"]
    files = ["h200.txt", *(["h200-times.txt"] if timed else [])]
    return "\n".join([*lines, *((HERE / name).read_text() for name in files)])


class StandIn:
    """One steered library: a control file, the counts of its calls, and the environment that makes it be loaded."""

    def __init__(self, library: Path, folder: Path, base: str) -> None:
        self.library = library
        self.control = folder / "control"
        self.counts_file = folder / "counts"
        self._base = base
        self._said: list[str] = []
        self._versions = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_STANDIN_CONTROL": str(self.control),
            "NVML_STANDIN_COUNTS": str(self.counts_file),
        }

    def say(self, *lines: str) -> None:
        """Add lines to the control file; later ones win."""
        self._said += lines
        self._write()

    def forget(self) -> None:
        """Go back to the lines that this was made with."""
        self._said.clear()
        self._write()

    def count(self, call: str, gpu: int | None = None) -> int:
        """Return how often a call was made, for one GPU or, without, for all GPUs and the host."""
        counts = self.counts()
        return sum(n for (who, name), n in counts.items() if name == call and (gpu is None or who == str(gpu)))

    def counts(self) -> Counter[tuple[str, str]]:
        """Return the number of calls by (GPU number, call); the number of calls of the host is ``-``."""
        found: Counter[tuple[str, str]] = Counter()
        if self.counts_file.exists():
            for key, number in COUNT_ENTRY.iter_unpack(self.counts_file.read_bytes()):
                gpu, _, call = key.rstrip(b"\0").decode().partition(" ")
                if call:
                    found[gpu, call] = number
        return found

    def _write(self) -> None:
        # Every version stays: the library recognises a new one by its inode, which must not be used again.
        self._versions += 1
        version = self.control.with_name(f"control.{self._versions}")
        version.write_text("\n".join([self._base, *self._said]) + "\n")
        link = self.control.with_name("control.new")
        link.symlink_to(version.name)
        link.replace(self.control)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a stand-in libnvidia-ml.so.1 with its control file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--timed", action="store_true", help="calls take what they take on a real H200")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    library = build(arguments.folder)
    standin = StandIn(library, arguments.folder, h200(arguments.gpus, timed=arguments.timed))
    for name, value in standin.environment.items():
        print(f"export {name}={os.path.abspath(value)}")  # noqa: T201, PTH100 - a shell reads it


if __name__ == "__main__":
    main()
