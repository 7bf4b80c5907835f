"""How an inference server is started: the shape of a row, of which each engine's table has one a way.

A command line is read for where the metrics are and what the model is called. Nothing of it is ever shown but the name
of the program: there may be keys in it. Names, flags and ports are from the servers' own documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_PYTHON_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Command:
    """What a process was started as."""

    names: frozenset[str]
    """Names that it answers to: program, module, or script with and without its folder."""
    words: tuple[str, ...] = ()
    """The arguments after it."""
    name: str = "unnamed"
    """The name to show."""

    @classmethod
    def of(cls, argv: tuple[str, ...]) -> Command:
        """Look through an interpreter at what it runs."""
        if not argv:
            return cls(frozenset())
        program = PurePosixPath(argv[0]).name
        if not _PYTHON.fullmatch(program):
            return cls(frozenset({program}), argv[1:], program)
        at = 1
        while at < len(argv) and argv[at].startswith("-") and argv[at] not in {"-m", "-c", "-"}:
            at += 2 if argv[at] in _PYTHON_OPTIONS_WITH_VALUE else 1
        if at >= len(argv) or argv[at] in {"-c", "-"}:
            return cls(frozenset({program}), name=program)
        if argv[at] == "-m":
            return cls(frozenset(argv[at + 1 : at + 2]), argv[at + 2 :], "".join(argv[at + 1 : at + 2]))
        script = PurePosixPath(argv[at])
        return cls(frozenset({script.name, f"{script.parent.name}.{script.stem}"}), argv[at + 1 :], script.name)

    def has(self, *flags: str) -> bool:
        """Whether one of these flags is given."""
        return any(_flag(word) in flags for word in self.words if word.startswith("-"))

    def value(self, *flags: str) -> str | None:
        """The last value given for one of these flags, as ``--flag value`` or ``--flag=value``."""
        found = None
        for at, word in enumerate(self.words):
            if word.startswith("-") and _flag(word) in flags:
                _, equals, value = word.partition("=")
                if equals:
                    found = value
                elif at + 1 < len(self.words):
                    found = self.words[at + 1]
        return found

    def number(self, *flags: str) -> int | None:
        """As :meth:`value`, when it is a whole number."""
        value = self.value(*flags)
        return int(value) if value is not None and re.fullmatch(r"\d{1,9}", value) else None


def _flag(word: str) -> str:
    """The name of a flag; some servers take underscores for hyphens."""
    return word.partition("=")[0].replace("_", "-")


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One way to start one kind of server."""

    kind: str
    """What it is called here; usually a name from :data:`wattline.engines.tables.KINDS`."""
    command: str
    verb: str = ""
    """The first argument that must follow."""
    port: int = 8000
    port_flags: tuple[str, ...] = ("--port",)
    port_variable: str = ""
    """Environment variable that sets the port."""
    host_flags: tuple[str, ...] = ("--host",)
    path: str = "/metrics"
    model_flags: tuple[str, ...] = ()
    """Where the name of the model stands, the best first."""
    model_first: bool = False
    """Or it is the first argument."""
    needs: str = ""
    """The flag without which no metrics are served."""
    mute: str = ""
    """The flag with which none are."""
    front: str = ""
    """The child that listens, when it is not the server itself."""
    workers: str = ""
    """How the titles of the processes that compute begin; the rest of a title names the rank."""
    aside_modes: tuple[str, ...] = ()
    """With one of these flags, metrics are served on a port of their own: the next one, or that of ``aside_flags``."""
    aside_flags: tuple[str, ...] = ()
    rank_flag: str = ""
    """The rank of the node, for a server that spans nodes: only rank 0 has the metrics of the whole."""
    headless_flag: str = ""
    """Or the flag of a node that only computes."""
    head_flags: tuple[str, ...] = ()
    """The address of the node that leads."""
    own_metrics_modes: tuple[str, ...] = ()
    """With one of these flags, the other nodes hold requests of their own and serve their metrics, too."""

    def runs(self, command: Command) -> bool:
        """Whether a process is a server of this kind."""
        return self.command in command.names and (not self.verb or command.words[:1] == (self.verb,))

    def expected_port(self, command: Command, variable: str | None = None) -> tuple[int, bool]:
        """Where the metrics should be, and whether somebody has said so."""
        told = command.number(*self.port_flags)
        if told is None and variable is not None and re.fullmatch(r"\d{1,5}", variable):
            told = int(variable)
        port = self.port if told is None else told
        if self.aside_modes and command.has(*self.aside_modes):
            return command.number(*self.aside_flags) or port + 1, True
        return (port, told is not None) if port <= MAX_PORT else (self.port, False)

    def model(self, command: Command) -> str:
        """What the model is called, without folders and owners; empty when the command line does not say."""
        words = [command.value(flag) for flag in self.model_flags]
        if self.model_first:
            after = command.words[1:] if self.verb else command.words
            words.append(next(iter(after), None))
        return next((name for word in words if word and not word.startswith("-") and (name := _short(word))), "")


def _short(model: str) -> str:
    parts = [part for part in model.split("/") if part]
    # A folder of the model cache: models--OWNER--NAME/snapshots/HASH.
    cached = next((part for part in parts if part.startswith("models--")), None)
    if cached is not None:
        parts = cached.split("--")
    name = re.sub(r"\.gguf$", "", parts[-1]) if parts else ""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("._+-")[:48].strip("._+-")
