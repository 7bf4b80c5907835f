"""Run an audit: find, join, judge with a bar of progress, answer."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wattline.analysis.snapshot import State
from wattline.audit.answer import answer, encode
from wattline.audit.find import find, join
from wattline.audit.past import judge_past
from wattline.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TextIO

    from wattline.audit.answer import Audit, AuditedDeployment
    from wattline.audit.client import Server
    from wattline.config import Price

PLAIN_WIDTH = 160


async def run(
    server: Server,
    start: float,
    end: float,
    *,
    rules: Sequence[tuple[str, str]] = (),
    limits: Mapping[str, float] | None = None,
    price: Price | None = None,
    as_json: bool = False,
    out: TextIO | None = None,
) -> int:
    """Audit a server from ``start`` to ``end`` (Unix seconds), and print the answer.

    Args:
        server: open.
        start: Unix seconds.
        end: Unix seconds.
        rules: see :func:`wattline.audit.find.join`.
        limits: watts by a part of the model's name, for GPUs whose limit no series tells.
        price: what energy costs.
        as_json: print JSON.
        out: for the answer.

    Returns:
        The exit code: 0 nothing found, 1 finding, 2 could not tell.

    Raises:
        ServerError: the server gives no usable answer.
    """
    out = out or sys.stdout
    found = await find(server, start, end)
    joined, lonely, unserved = join(found, rules)
    with _progress((end - start) * len(joined)) as advance:
        pasts = [await judge_past(server, one, start, end, limits or {}, advance) for one in joined]
    told = answer(pasts, lonely, unserved, span=(start, end), limits=limits or {}, price=price)
    if as_json:
        out.write(msgspec.json.format(encode(told)).decode() + "\n")
    else:
        show(told, Console(file=out, highlight=False, width=None if out.isatty() else PLAIN_WIDTH))
    return told.exit_code


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, nothing elsewhere."""
    screen = Console(file=sys.stderr)
    if not screen.is_terminal or not seconds:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("Judging the past", total=seconds)
        yield lambda done: progress.update(task, advance=done)


def show(audit: Audit, screen: Console) -> None:
    """Print the answer for people."""
    screen.print(f"Wattline audit, {audit.start} to {audit.end}", style="bold", markup=False)
    if not audit.deployments:
        screen.print("No engine and GPU could be joined: nothing is judged.")
    for deployment in audit.deployments:
        _deployment(deployment, screen)
    if audit.worst:
        screen.print("\nRequests held for nothing, the worst first", style="bold")
        table = Table("start", "length", "deployment", "state", "kWh", "why", box=None, pad_edge=False)
        for bad in audit.worst:
            length = format_duration(round(bad.seconds))
            table.add_row(bad.start, length, bad.deployment, bad.state, f"{bad.kwh:,.2f}", bad.reason)
        screen.print(table)
        screen.print("To see the first one:")
        screen.print(f"  {audit.worst[0].query}", markup=False, soft_wrap=True)
    for what, names in (("Engines without GPUs", audit.without_gpus), ("GPUs without engine", audit.without_engine)):
        if names:
            screen.print(f"\n{what}, not judged (--join says what belongs together):")
            screen.print(f"  {', '.join(names)}", markup=False, soft_wrap=True)


def _deployment(told: AuditedDeployment, screen: Console) -> None:
    words = f"{told.gpus} GPUs ({told.gpu_source}), engines {', '.join(told.engines)}, joined by {told.joined_by}"
    screen.print(f"\n{told.name}", style="bold", markup=False)
    screen.print(f"  {words}", markup=False)
    table = Table("state", "hours", "kWh", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for state in State:
        if state in told.hours:
            table.add_row(f"  {state}", f"{told.hours[state]:,.1f}", f"{told.kwh.get(state, 0.0):,.1f}")
    screen.print(table)
    wasted = f"{told.wasted_kwh:,.1f} kWh burnt while requests were held for nothing"
    if told.wasted is not None:
        wasted += f": {told.wasted.amount:,.2f} {told.wasted.currency}"
        wasted += "" if told.wasted.co2_kilograms is None else f", {told.wasted.co2_kilograms:,.1f} kg CO2"
    lines = [wasted, f"{told.idle_gpu_hours:,.0f} GPU hours idle with an engine loaded"]
    if told.most_of_limit is not None:
        lines.append(f"At most {100 * told.most_of_limit:.0f} % of the power limit was ever drawn")
    lines += [f"How sure: {told.sure}", *(m[0].upper() + m[1:] for m in told.missing)]
    for line in lines:
        screen.print(f"  {line}", markup=False, soft_wrap=True)
