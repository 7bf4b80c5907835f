"""The command line: what to run, with which flags. Everything else is imported when it is needed."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from wattline import __version__
from wattline.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TextIO

EXIT_OK, EXIT_FINDING, EXIT_UNKNOWN, EXIT_USAGE, EXIT_PIPE = 0, 1, 2, 2, 141

DEFAULT_ADDRESS = ":10087"
MAX_SPEED = 60.0
ENV_PREFIX = "WATTLINE_"

EPILOG = """examples:
  wattline check                                     30 s, no set-up: do the GPUs of this host earn their watts?
  wattline serve --config.file wattline.yml          metrics for Prometheus and a page at http://127.0.0.1:10087/
  wattline demo                                      see it without a GPU
  wattline record bug.jsonl.gz --for 5m --anonymous  attach this to a bug report
  wattline bundle wattline-bundle                    rules, dashboards and a compose file, to deploy from

exit codes: 0 done; 1 finding (check); 2 could not tell (check), wrong usage, configuration or recording, or the output
cannot be written; 130 interrupted; 141 broken pipe

what to do about an alert: wattline runbook
"""

EXAMPLES = {
    "serve": """examples:
  wattline serve                                     every GPU, and the SGLang at http://127.0.0.1:30000/metrics
  wattline serve --config.file wattline.yml          several deployments, other thresholds
  wattline serve --config.file wattline.yml --config.check
                                                     only check the configuration
  wattline serve --web.listen-address 127.0.0.1:9900 --web.config.file web.yml
                                                     another port, with TLS and users
""",
    "demo": """examples:
  wattline demo                                      play the whole story; open http://127.0.0.1:10087/
  wattline demo --speed 10                           ten times faster
  wattline demo --scenario wedged                    stay in one phase
  wattline demo --hosts 4                            a fleet: four hosts at ports 10087 to 10090
""",
    "check": """examples:
  wattline check                                     watch for 30 s and say whether the GPUs earn their watts
  wattline check --for 2m --engine http://10.0.0.7:30000/metrics
  wattline check --gpus 0,1 --json                   for programs
  wattline check --watch                             update the table until Ctrl-C
  wattline check --replay recording.jsonl.gz         the same verdict from a recording

exit codes: 0 nothing found, 1 finding, 2 could not tell
""",
    "record": """examples:
  wattline record bug.jsonl.gz --for 5m --anonymous  attach this to a bug report
""",
    "forget": """examples:
  wattline forget 3 --config.file wattline.yml       the GPU that had this index
  wattline forget 0000:05:00.0                       the GPU that was at this address
""",
    "explain": """examples:
  wattline explain bug.jsonl.gz                      which states and causes, when and why
  wattline explain bug.jsonl.gz --plot bug.png       the same as a picture
""",
}


def _env(flag: str) -> str:
    return ENV_PREFIX + flag.lstrip("-").upper().replace(".", "_").replace("-", "_")


_NOT_GIVEN = object()


class _Parser(argparse.ArgumentParser):
    """An argument parser whose flags can be set by the environment: ``--web.config.file`` by WATTLINE_WEB_CONFIG_FILE.

    A flag wins over the environment, and only the command that is run looks at it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(*args, **kwargs)
        self._variables: dict[str, tuple[argparse.Action, Any]] = {}
        """By variable: the flag that it sets, and what holds without both."""

    def flag(self, name: str, text: str, *, type: Callable[[str], Any] = str, default: Any = None, **more: Any) -> None:  # noqa: A002, ANN401 - argparse's words
        """Add a flag with a value."""
        variable = _env(name)
        action = self.add_argument(name, help=f"{text} [{variable}]", type=type, default=_NOT_GIVEN, **more)
        self._variables[variable] = action, default

    def switch(self, name: str, text: str) -> None:
        """Add a flag without a value."""
        variable = _env(name)
        action = self.add_argument(name, help=f"{text} [{variable}]", action="store_true", default=_NOT_GIVEN)
        self._variables[variable] = action, False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - overloads
        """As argparse does, and then what no flag has set, by the environment."""
        options, rest = super().parse_known_args(args, namespace)
        for variable, (action, default) in self._variables.items():
            if getattr(options, action.dest) is _NOT_GIVEN:
                given = os.environ.get(variable)
                setattr(options, action.dest, default if given is None else self._read(variable, action, given))
        return options, rest

    def _read(self, variable: str, action: argparse.Action, given: str) -> Any:  # noqa: ANN401 - of any type
        """The value that a variable gives a flag."""
        if action.nargs == 0:
            return given.lower() in ("1", "true", "yes")
        try:
            value = self._get_value(action, given)
        except argparse.ArgumentError as error:
            self.error(f"environment variable {variable}: {error.message}")
        if action.choices is not None and value not in action.choices:
            self.error(f"environment variable {variable}: found {given!r}, expected one of {', '.join(action.choices)}")
        return value


def duration(text: str) -> float:
    """A duration on the command line, in seconds."""
    try:
        return parse_duration(float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text, re.ASCII) else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def address(text: str) -> tuple[str | None, int]:
    """``host:port``, ``[v6]:port``, or ``:port`` and ``[::]:port`` for every address of the machine, IPv4 and IPv6."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:  # noqa: PLR2004 - the range of ports
        raise argparse.ArgumentTypeError(f"found {text!r}, expected host:port or :port")
    # As exporters in Go listen: asyncio alone would leave IPv4 out.
    return None if host == "[::]" else host.strip("[]") or None, int(port)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:  # noqa: PLR2004
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
    return value


def equation(text: str) -> tuple[str, str]:
    """Two words with ``=`` between them."""
    left, _, right = text.rpartition("=")
    if not left or not right:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected NAME=VALUE")
    return left, right


def speed(text: str) -> float:
    """A speed that the real clock can still follow: its ticks arrive some milliseconds late."""
    value = positive(text)
    if value > MAX_SPEED:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected at most {MAX_SPEED:g}")
    return value


def _web(parser: _Parser) -> None:
    parser.flag(
        "--web.listen-address",
        "address to listen on",
        type=address,
        default=address(DEFAULT_ADDRESS),
        metavar="HOST:PORT",
    )
    parser.flag(
        "--web.config.file",
        "TLS and basic authentication, in the format of Prometheus' exporter toolkit",
        metavar="FILE",
    )
    parser.switch("--web.enable-lifecycle", "let POST /-/reload reload the configuration")


def _log(parser: _Parser, default: str = "info") -> None:
    parser.flag(
        "--log.level", "log this severity and above", choices=["debug", "info", "warning", "error"], default=default
    )
    parser.flag("--log.format", "format of log lines", choices=["logfmt", "json"], default="logfmt")


def _config(parser: _Parser) -> None:
    parser.flag(
        "--config.file", "what to watch; by default every GPU, and SGLang at its default address", metavar="FILE"
    )


def _targets(parser: _Parser) -> None:
    _config(parser)
    parser.add_argument(
        "--engine", action="append", metavar="URL", help="address of an engine's metrics; can be repeated"
    )
    parser.add_argument("--gpus", metavar="LIST", help="all, or indices, UUIDs and bus ids separated by commas")


def _audit(audit: _Parser) -> None:
    audit.add_argument("url", metavar="URL", help="address of Prometheus, Thanos, Mimir or VictoriaMetrics")
    audit.add_argument("--since", type=duration, default=30 * 86400.0, metavar="TIME", help="how far back (30d)")
    audit.add_argument(
        "--join",
        type=equation,
        action="append",
        metavar="ENGINE_LABEL=GPU_LABEL",
        help="labels that are equal where engine and GPU belong together; can be repeated",
    )
    audit.add_argument(
        "--power-limit",
        type=equation,
        action="append",
        metavar="MODEL=WATTS",
        help="limit of GPUs whose name holds MODEL, where no series tells one; can be repeated",
    )
    audit.add_argument("--price", metavar="PRICE/kWh", help="what energy costs, such as 0.25/kWh (the configuration's)")
    audit.add_argument("--carbon", type=positive, metavar="KG", help="kilograms of CO2 for a kilowatt-hour")
    audit.add_argument("--json", action="store_true", help="print JSON")
    audit.add_argument(
        "--at-once", type=int, choices=range(1, 33), default=4, metavar="N", help="questions at once (4)"
    )
    audit.add_argument("--bearer-token-file", metavar="FILE", help="a file with the token")
    audit.add_argument("--user", metavar="NAME", help="for basic authentication")
    audit.add_argument("--password-file", metavar="FILE", help="a file with the password")
    audit.add_argument("--ca-file", metavar="FILE", help="authorities to trust instead of the system's")
    audit.add_argument("--insecure-skip-verify", action="store_true", help="believe any certificate")
    audit.add_argument("--tenant", metavar="ID", help="sent as X-Scope-OrgID")
    _config(audit)
    _log(audit, "error")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="wattline",
        description="Joins GPU power with inference load and says when GPUs do not earn their watts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"wattline {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def command(name: str, text: str) -> _Parser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=EXAMPLES.get(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        assert isinstance(sub, _Parser)  # noqa: S101 - for the type checker
        return sub

    serve = command("serve", "serve the metrics of this host's GPUs and engines")
    _config(serve)
    serve.add_argument("--config.check", action="store_true", help="check the configuration and exit")
    serve.add_argument("--replay", metavar="FILE", help="serve a recording instead of this host")
    serve.add_argument("--replay.speed", type=positive, default=1.0, metavar="N", help="replay N times faster")
    _web(serve)
    _log(serve)

    demo = command("demo", "serve a simulated rig that plays the incidents for which Wattline was written")
    demo.flag("--speed", "run N times faster than real time, up to 60", type=speed, default=1.0, metavar="N")
    demo.flag("--scenario", "stay in one phase instead of playing the whole story", default="story", metavar="NAME")
    demo.flag(
        "--hosts", "serve N hosts with different stories, each at the next port", type=int, default=1, metavar="N"
    )
    demo.add_argument(
        "--targets-file",
        default=None,
        metavar="FILE",
        help="name the other hosts here, for file_sd_configs of Prometheus",
    )
    _web(demo)
    _log(demo)

    check = command("check", "watch for a while and say whether the GPUs earn their watts")
    _targets(check)
    check.add_argument(
        "--for", dest="seconds", type=duration, default=None, metavar="TIME", help="how long to watch (default: 30s)"
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.add_argument("--watch", action="store_true", help="update the table until Ctrl-C")
    check.add_argument("--replay", metavar="FILE", help="judge a recording instead of this host")
    _log(check, "error")

    record = command("record", "write the readings of this host to a file")
    record.add_argument("file", metavar="FILE", help="the file to write; it must not exist")
    _targets(record)
    record.add_argument(
        "--for",
        dest="seconds",
        type=duration,
        default=None,
        metavar="TIME",
        help="how long to record (default: until Ctrl-C)",
    )
    record.add_argument("--anonymous", action="store_true", help="leave out host names, addresses and model paths")
    _log(record, "error")

    audit = command("audit", "judge the last days from the metrics that a Prometheus already has")
    _audit(audit)

    explain = command("explain", "summarise a recording: which states and causes, when and why")
    explain.add_argument("file", metavar="FILE", help="a recording")
    explain.add_argument("--plot", metavar="FILE", help="draw a picture, .png or .svg")

    forget = command("forget", "say that a GPU was taken out of this host, so that it is no longer reported as lost")
    forget.add_argument("gpu", metavar="GPU", help="its index, PCI bus address, UUID or the beginning of its UUID")
    _config(forget)

    bundle = command("bundle", "write rules, dashboards, compose file and chart of this version into a directory")
    bundle.add_argument("directory", metavar="DIR", help="a new or empty directory")

    runbook = command("runbook", "show what to do about an alert")
    runbook.add_argument("name", nargs="?", metavar="NAME", help="an alert; without it, list all runbooks")

    completion = command("completion", "print a completion script for a shell")
    completion.add_argument("shell", choices=["bash", "zsh", "tcsh"])
    command("version", "print the version")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0 done, 1 finding (check), 2 could not tell (check), wrong usage or configuration, or output that
        cannot be written, 130 after Ctrl-C, 141 when nobody reads the output any more.
    """
    output = _Output(sys.stdout or Path(os.devnull).open("w"))  # noqa: SIM115 - closed by who started us
    usual, sys.stdout = sys.stdout, cast("TextIO", output)
    try:
        try:
            return _run(arguments)
        finally:
            output.flush()
    except BrokenPipeError:
        return _unwritten(EXIT_PIPE)
    except KeyboardInterrupt:
        return 130
    except (OSError, SystemExit):
        if isinstance(output.failed, BrokenPipeError):
            # rich ends the program then, with the code of a finding.
            return _unwritten(EXIT_PIPE)
        if output.failed is None:
            raise
        with suppress(OSError):
            print(f"wattline: cannot write: {output.failed.strerror}", file=sys.stderr)  # noqa: T201 - not an event
        return _unwritten(EXIT_USAGE)
    finally:
        sys.stdout = usual


class _Output:
    """Standard output that remembers how writing to it has failed: no other OSError is taken for that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failed: OSError | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._remembered():
            return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        with self._remembered():
            self._stream.writelines(lines)

    def flush(self) -> None:
        with self._remembered():
            self._stream.flush()

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failed = error
            raise


def _unwritten(code: int) -> int:
    """End with a code; what is still to be written, at the end of the process for instance, has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run(arguments: Sequence[str] | None) -> int:
    # An engine started from the same shell would make the client library write into its directory.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return EXIT_USAGE
    if options.command == "version":
        print(f"wattline {__version__}")  # noqa: T201 - what it was asked for
        return EXIT_OK
    if options.command == "completion":
        print(_completion(parser, options.shell))  # noqa: T201 - what it was asked for
        return EXIT_OK
    import asyncio

    from wattline import commands, logs
    from wattline.yamlfile import UsageError

    given = vars(options)
    logs.setup(given.get("log.level", "error"), given.get("log.format", "logfmt"))
    try:
        return asyncio.run(commands.RUN[options.command](options))
    except UsageError as error:
        print(f"wattline: {error}", file=sys.stderr)  # noqa: T201 - not an event for the log
        return EXIT_USAGE


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script for a shell. Whatever is called FILE completes to names of files."""
    import shtab

    from wattline.simulation.scenario import SCENARIOS

    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))  # noqa: SLF001 - as shtab
    for command in commands.choices.values():
        for action in command._actions:  # noqa: SLF001 - as shtab
            if action.metavar == "FILE":
                action.complete = shtab.FILE
            elif action.dest == "scenario":
                action.choices = SCENARIOS
    return str(shtab.complete(parser, shell=shell))


if __name__ == "__main__":
    sys.exit(main())
