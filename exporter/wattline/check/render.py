"""The answer of a check as people read it. Plain characters only, so that it survives any terminal, pipe and ticket."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wattline.durations import format_duration
from wattline.publish.colours import terminal_style
from wattline.publish.words import percent, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wattline.check.headroom import Headroom
    from wattline.check.report import Deployment, Report, Verdict
    from wattline.publish.shape import Engine, Gpu

PLAIN_WIDTH = 180
"""Columns where there is no terminal that has a width of its own."""
IDLE_WIDTH = 100
"""Columns from which idle floors are shown."""
UNKNOWN = "-"
ASSUMED = "*"
TOKENS = {"generation": "generated", "prompt": "prompt"}

VERDICTS: dict[Verdict, str] = {
    "nothing_found": "Nothing found",
    "finding": "Something to look at",
    "could_not_tell": "Could not tell",
}
VERDICT_STYLES: dict[Verdict, str] = {
    "nothing_found": "bold green",
    "finding": "bold red",
    "could_not_tell": "bold yellow",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text, moved in by some columns."""

    text: Text
    indent: int = 0
    copied: str = ""
    """What people copy from it: a command or an address. On a terminal it has a line of its own, and is never cut."""


Part = Line | Table


def show(report: Report, out: Console) -> None:
    """Print the report: with colours and wrapped on a terminal, as plain lines of any length elsewhere."""
    if not out.is_terminal:
        out.print(plain(report), markup=False, soft_wrap=True, end="")
        return
    for part in _parts(report, out.width):
        if isinstance(part, Line) and part.copied:
            out.print(_moved_in(part))
            out.print(" " * (part.indent + 2) + part.copied, markup=False, soft_wrap=True)
        else:
            out.print(_moved_in(part) if isinstance(part, Line) else part)


def _moved_in(line: Line) -> Padding:
    return Padding(line.text, (0, 0, 0, line.indent), expand=False)


def drawn(report: Report, screen: Console) -> Group:
    """What fits on one screen, to be drawn again and again: the verdicts first, then as many GPUs as there is room."""
    lines = (*_words(report), _line(), *(_line(_engine(engine)) for engine in report.engines), _line())
    above = [drawn for line in lines for drawn in _on_screen(line)]
    room = screen.height - sum(len(screen.render_lines(line, pad=False)) for line in above) - 1
    if len(report.gpus) <= room:
        return Group(*above, _table(report, screen.width))
    shown = max(0, room - 1)
    rest = Text(f"... {len(report.gpus) - shown} more GPUs")
    return Group(*above, *([_table(report, screen.width, shown)] if shown else []), rest)


def _on_screen(line: Line) -> Iterator[Padding]:
    yield _moved_in(line)
    if line.copied:
        yield _moved_in(Line(Text(line.copied, no_wrap=True, overflow="ellipsis"), line.indent + 2))


def _words(report: Report) -> Iterator[Line]:
    yield _line(_title(report), style="bold")
    for deployment in report.deployments:
        yield _line()
        yield from _deployment(deployment)


def plain(report: Report) -> str:
    """The report as text without colours."""
    paper = Console(file=StringIO(), width=PLAIN_WIDTH, no_color=True, highlight=False)
    for part in _parts(report, PLAIN_WIDTH):
        if isinstance(part, Line):
            words = " " * part.indent + part.text.plain + (f" {part.copied}" if part.copied else "")
            paper.print(words, markup=False, soft_wrap=True)
        else:
            paper.print(part)
    assert isinstance(paper.file, StringIO)  # noqa: S101 - for the type checker
    return "".join(line.rstrip() + "\n" for line in paper.file.getvalue().splitlines())


def _line(words: str = "", indent: int = 0, style: str = "") -> Line:
    return Line(Text(words, style=style), indent)


def _parts(report: Report, width: int) -> Iterator[Part]:
    """The report, part by part, from the measured to the concluded."""
    yield _line(_title(report), style="bold")
    if report.note:
        yield _line(f"{sentence(report.note)}.")
    yield _line()
    if report.gpus:
        yield _table(report, width)
        if width >= IDLE_WIDTH and any(g.idle_floor and g.idle_floor.source == "assumed" for g in report.gpus):
            yield _line(f"{ASSUMED} assumed: it is learned while the server holds no request", style="dim")
    else:
        yield _line("No GPU was found.", style="bold")
    if report.engines:
        yield _line()
    for engine in report.engines:
        yield _line(_engine(engine))
    for deployment in report.deployments:
        yield _line()
        yield from _deployment(deployment)
    # The servers have spoken for themselves above.
    not_read = [source for source in report.not_read if not source.name.startswith("engine:")]
    if not_read:
        yield _line()
        yield _line("Could not be read:", style="bold")
        for source in not_read:
            yield _line(f"{source.name}: {source.detail or 'no answer'}", 2)
    yield _line()
    verdict = (VERDICTS[report.verdict], VERDICT_STYLES[report.verdict])
    yield Line(Text.assemble(verdict, f" (exit code {report.exit_code})"))


def _title(report: Report) -> str:
    names = Counter(g.name for g in report.gpus if g.name)
    gpus = ", ".join(f"{count} x {name}" for name, count in names.items()) or f"{len(report.gpus) or 'no'} GPUs"
    engines = len(report.engines)
    servers = "1 inference server" if engines == 1 else f"{engines or 'no'} inference servers"
    watched = f"Watched {gpus} and {servers} for {_time(report.watched_seconds)}"
    if report.window_seconds < report.watched_seconds - 1:
        watched += f"; the verdict is that of the last {_time(report.window_seconds)}"
    return watched + "."


def _time(seconds: float) -> str:
    return format_duration(float(round(seconds)))


# The table.


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: not shown on a narrower terminal, or where no GPU tells anything."""

    title: str
    cell: Callable[[Gpu], str]
    from_width: int = 0
    left: bool = False
    rank: int = 0
    """The greater, the sooner it is left out where there is no room."""
    identity: bool = False
    """It is told of a lost GPU, too."""


def _watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f} W"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value)


def _whole_percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def _rate(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value / 1e9:.1f} GB/s" if value >= 0.05e9 else f"{value / 1e6:.0f} MB/s"  # noqa: PLR2004


def _idle(gpu: Gpu) -> str:
    floor = gpu.idle_floor
    return UNKNOWN if floor is None else _watts(floor.watts) + (ASSUMED if floor.source == "assumed" else "")


def _link_share(gpu: Gpu) -> str:
    told = [
        v for v in (gpu.pcie_transmit_mean_bytes_per_second, gpu.pcie_receive_mean_bytes_per_second) if v is not None
    ]
    if not told or not gpu.pcie_link_bytes_per_second:
        return UNKNOWN
    return f"{_whole_percent(max(told) / gpu.pcie_link_bytes_per_second)} of {gpu.pcie_link_bytes_per_second / 1e9:.0f}"


def _clock(gpu: Gpu) -> str:
    if gpu.sm_clock_mean_hertz is None:
        return UNKNOWN
    most = "" if gpu.sm_clock_max_hertz is None else f"/{gpu.sm_clock_max_hertz / 1e6:.0f}"
    return f"{gpu.sm_clock_mean_hertz / 1e6:.0f}{most} MHz"


def _held_back(gpu: Gpu) -> str:
    if gpu.held_back is None:
        return UNKNOWN
    # A reason that comes and goes has its share of the time beside it: one reading in sixty is no limit.
    shares = sorted(gpu.held_back.items(), key=lambda pair: -pair[1])
    words = [reason if share == 1.0 else f"{reason} {_whole_percent(share)}" for reason, share in shares]
    return ", ".join(words) or "nothing"


COLUMNS: tuple[Column, ...] = (
    Column("GPU", lambda g: str(g.index), identity=True),
    Column("Deployment", lambda g: g.deployment or "none", identity=True, rank=1),
    Column("Power", lambda g: _watts(g.power_mean_watts)),
    Column("Limit", lambda g: _watts(g.limit_watts), rank=2),
    Column("Of limit", lambda g: _percent(g.tdp_fraction)),
    Column("Idle floor", _idle, from_width=IDLE_WIDTH),
    Column("Active", lambda g: _percent(g.active_power_fraction), rank=3),
    Column("Util", lambda g: _whole_percent(g.utilization_mean_ratio), rank=1),
    Column("SM", lambda g: _whole_percent(g.sm_active_mean_ratio), rank=4),
    Column("Tensor", lambda g: _whole_percent(g.tensor_active_mean_ratio), from_width=100, rank=7),
    Column("DRAM", lambda g: _whole_percent(g.dram_active_mean_ratio), rank=5),
    Column("PCIe out", lambda g: _rate(g.pcie_transmit_mean_bytes_per_second), rank=6),
    Column("PCIe in", lambda g: _rate(g.pcie_receive_mean_bytes_per_second), rank=6),
    Column("Of link", _link_share, from_width=120),
    Column("SM clock", _clock, from_width=120),
    Column("Held back by", _held_back, from_width=120, left=True),
)


def _table(report: Report, width: int, most: int | None = None) -> Table:
    """The GPUs, or the first of them, with the columns that there is room for."""
    shared = len({g.deployment for g in report.gpus}) > 1
    shown = [
        c
        for c in COLUMNS
        if width >= c.from_width
        and (
            shared if c.title == "Deployment" else any(c.identity or c.cell(g) != UNKNOWN for g in report.gpus if g.up)
        )
    ]
    shown = shown or [COLUMNS[0]]
    gpus = report.gpus[:most]
    while sum(_needs(c, gpus) for c in shown) > width and (rank := max(c.rank for c in shown)):
        shown = [c for c in shown if c.rank < rank]
    return _filled(shown, gpus)


def _needs(column: Column, gpus: Sequence[Gpu]) -> int:
    """Columns of a terminal that it takes, with the space beside it; text that may be wrapped needs room for a word."""
    if column.left:
        return len(column.title)
    return max(len(text) for text in (column.title, *(column.cell(g) for g in gpus if g.up))) + 2


def _filled(columns: Sequence[Column], gpus: Sequence[Gpu]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="left" if column.left else "right", no_wrap=not column.left)
    for gpu in gpus:
        if gpu.up:
            table.add_row(*(c.cell(gpu) for c in columns))
        else:
            known = [c.cell(gpu) for c in columns if c.identity]
            table.add_row(*known, *(["lost"] if len(columns) > len(known) else []), style="red")
    return table


# The engines.


def _count(value: float | None, what: str) -> str:
    return f"{'unknown' if value is None else format(value, ',.0f')} {what}"


def _engine(engine: Engine) -> str:
    if not engine.up:
        why = f"{engine.error}{f' ({engine.hint})' if engine.hint else ''}"
        return f"Server {engine.name}: not read: {why}"
    what = " ".join(w for w in (engine.kind, engine.version) if w)
    who = ", ".join(w for w in (what, engine.model) if w)
    words = [_count(engine.running_requests, "running"), _count(engine.queued_requests, "queued")]
    if engine.waiting_for_peer_requests:
        words.append(_count(engine.waiting_for_peer_requests, "of them waiting for the peer"))
    if engine.asleep:
        words.append("asleep")
    if engine.kv_cache_usage_ratio is not None:
        words.append(f"KV cache {_whole_percent(engine.kv_cache_usage_ratio)} full")
    if engine.scheduler_idle_ratio is not None:
        words.append(f"scheduler idle {_whole_percent(engine.scheduler_idle_ratio)} of the time")
    return f"Server {engine.name}{f' ({who})' if who else ''}: {', '.join(words)}"


# The verdicts.


def _deployment(deployment: Deployment) -> Iterator[Line]:
    yield Line(Text.assemble(f"{deployment.name}: ", (deployment.title, terminal_style(deployment.state))))
    yield _line(f"{deployment.reason}.", 2)
    if tokens := _tokens(deployment):
        yield _line(tokens, 2)
    if deployment.pending is not None:
        coming = deployment.pending
        yield _line(
            f"Coming: {coming.title}, if this goes on: its signs have been there for {_time(coming.seconds)}.", 2
        )
    yield from _suspicions(deployment)
    if deployment.headroom is not None:
        yield _line(_headroom(deployment, deployment.headroom), 2)
    if deployment.next_steps or deployment.runbooks:
        yield _line("Look next at:", 2, style="bold")
        for step in deployment.next_steps:
            yield Line(Text(step.what + (":" if step.command else "")), 4, step.command or "")
        for name in deployment.runbooks:
            yield Line(Text("Runbook:"), 4, f"wattline runbook {name}")
    if deployment.unseen:
        yield _line("Could not be seen:", 2, style="bold")
        for words in deployment.unseen:
            yield _line(words, 4)


def _suspicions(deployment: Deployment) -> Iterator[Line]:
    for suspicion in deployment.suspicions:
        # Where nothing is wrong, what limits the power is worth a word and no alarm.
        weight = suspicion.cause.record.weight
        serious = weight == "finding" or (weight == "explains" and deployment.state.bad)
        yield _line(
            f"{'Suspected cause' if serious else 'Note'}: {suspicion.title}", 2, style="bold" if serious else ""
        )
        yield _line(f"{sentence(suspicion.evidence)}.", 4)
    if not deployment.suspicions and deployment.state.bad:
        yield _line("No cause is suspected: nothing that can be seen from here explains it.", 2)


def _tokens(deployment: Deployment) -> str:
    rates, per_watt = deployment.tokens_per_second, deployment.tokens_per_watt
    words = [f"{rates[kind]:,.0f} {what} tokens/s" for kind, what in TOKENS.items() if kind in rates]
    if "generation" in per_watt:
        words.append(f"{per_watt['generation']:.3g} generated tokens per joule")
    if deployment.flops_ratio is not None:
        words.append(f"{_whole_percent(deployment.flops_ratio)} of the compute peak")
    return ", ".join(words)


def _headroom(deployment: Deployment, room: Headroom) -> str:
    words = (
        f"Headroom: {_watts(deployment.power_mean_watts)} of {_watts(deployment.power_limit_watts)}: "
        f"{_whole_percent(room.unused_fraction)} of the power is unused; "
    )
    if room.tokens_per_second_at_limit is not None:
        worth = _about(room.tokens_per_second_at_limit)
        return words + f"at this efficiency the limit is worth about {worth} generated tokens/s."
    return words + f"what it is worth cannot be told: {room.why_no_estimate}."


def _about(value: float) -> str:
    """Two digits: it is a guess."""
    return f"{float(f'{value:.2g}'):,.0f}"
