"""The timeline of a recording as people read it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from wattline.analysis.snapshot import State
from wattline.durations import format_duration
from wattline.publish.colours import terminal_style
from wattline.publish.words import percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from wattline.explain.timeline import Story, Stretch, Timeline
    from wattline.recording.layout import Header

STATE_WIDTH = max(len(state.record.title) for state in State)
INDENT = 23


def show(found: Timeline, header: Header, out: Console, note: str = "") -> None:
    """Print it: with colours and wrapped on a terminal, as plain lines of any length elsewhere."""
    for text, indent in lines(found, header, note):
        if out.is_terminal:
            out.print(Padding(text, (0, 0, 0, indent), expand=False))
        else:
            out.print(" " * indent + text.plain, markup=False, soft_wrap=True)


def lines(found: Timeline, header: Header, note: str = "") -> Iterator[tuple[Text, int]]:
    """The lines, and by how much each is moved in."""
    yield Text(_title(found, header), style="bold"), 0
    if note:
        yield Text(f"The recording is not complete: {note}."), 0
    if not found.stories:
        yield Text("Nothing was judged in it."), 0
    for story in found.stories.values():
        yield Text(), 0
        yield Text(story.name, style="bold"), 0
        for stretch in story.stretches:
            yield _first_line(stretch, found.start), 0
            # The first line has the mean of the stretch, this one the last of its verdicts.
            yield Text(f"At its end: {stretch.reason}."), INDENT
            for suspicion in stretch.causes():
                yield Text(f"{suspicion.cause.record.title}: {suspicion.evidence}."), INDENT
        if story.too_many:
            yield Text(f"The state changed more often than {len(story.stretches)} times; the rest is left out."), 0
        yield from ((Text(line), 0) for line in _sums(story))


def _title(found: Timeline, header: Header) -> str:
    names = Counter(found.gpus.values())
    gpus = ", ".join(f"{count} x {name or 'GPU'}" for name, count in names.items()) or "no GPU"
    return (
        f"{_for(found.end - found.start)} of {gpus} and {len(found.engines)} inference "
        f"server{'' if len(found.engines) == 1 else 's'}, recorded {header.created} by wattline {header.wattline}; "
        f"judged over {_for(header.plan.window)}"
    )


def _for(seconds: float) -> str:
    return format_duration(float(round(seconds)))


def clock(seconds: float) -> str:
    """Time since the beginning: ``1:05``, ``2:00:09``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _first_line(stretch: Stretch, start: float) -> Text:
    when = f"{clock(stretch.start - start):>7} - {clock(stretch.end - start):>7}  "
    seconds = f"{_for(stretch.end - stretch.start):>6}  "
    title = stretch.state.record.title
    return Text.assemble(
        when,
        (title, terminal_style(stretch.state)),
        " " * (STATE_WIDTH - len(title)),
        seconds,
        "  ".join(_numbers(stretch)),
    )


def _numbers(stretch: Stretch) -> Iterator[str]:
    power, fraction = stretch.power_watts.value(), stretch.tdp_fraction.value()
    if power is not None:
        yield f"{power:7,.0f} W" + (f" ({percent(fraction)} of the limit)" if fraction is not None else "")
    if (tokens := stretch.tokens_per_second.value()) is not None:
        yield f"{tokens:7,.0f} tokens/s"
    if (per_joule := stretch.tokens_per_joule()) is not None:
        yield f"{per_joule:.3g} tokens/J"


def _sums(story: Story) -> Iterator[str]:
    total = sum(story.seconds.values())
    if not total:
        return
    yield ""
    yield "In all:"
    for state in State:
        seconds = story.seconds.get(state, 0.0)
        if seconds:
            title = state.record.title
            energy = f"{story.joules.get(state, 0.0) / 3600:9,.1f} Wh"
            yield f"  {title:<{STATE_WIDTH}}  {_for(seconds):>7}  {seconds / total * 100:5.1f} %  {energy}"
