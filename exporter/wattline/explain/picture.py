"""The timeline of a recording as a picture: power, throughput and states over the same time."""

from __future__ import annotations

import io
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wattline.analysis.snapshot import State
from wattline.explain.lines import clock
from wattline.publish.colours import POWER, STATE_COLOURS, TOKENS, text_on
from wattline.yamlfile import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from wattline.explain.timeline import Story, Timeline

SUFFIXES = (".png", ".svg")
WIDTH_INCHES = 12.0
PANELS = (3.0, 2.2, 0.5)
"""Heights in inches: power, throughput, states."""
LABEL_SHARE = 0.0058
"""Width of one character of a label as a share of the whole: a name is only written where it fits."""
GREY = "#555555"


class PictureError(UsageError):
    """A picture cannot be drawn; the message says what to do about it."""


def check(path: Path) -> None:
    """See whether a picture can be drawn, before the work begins.

    Raises:
        PictureError: no such kind of picture, or the library is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise PictureError(f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise PictureError("drawing needs matplotlib: pip install 'wattline[plot]'")


def draw(found: Timeline, path: Path, title: str = "") -> None:
    """Write the picture.

    Raises:
        PictureError: as :func:`check`, or the file cannot be written.
    """
    check(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    stories = [s for s in found.stories.values() if s.points]
    if not stories:
        raise PictureError(f"{path}: there is nothing to draw: the recording holds no verdict")
    heights = PANELS * len(stories)
    # The same recording gives the same file.
    with mpl.rc_context(
        {"svg.hashsalt": "wattline", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 1.3), layout="constrained")
        axes: list[Axes] = list(
            figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        )
        for i, story in enumerate(stories):
            _power(axes[3 * i], story, found)
            _throughput(axes[3 * i + 1], story, found)
            _states(axes[3 * i + 2], story, found)
        _time(axes[-1], found)
        seen = {stretch.state for story in stories for stretch in story.stretches}
        patches = [Patch(color=STATE_COLOURS[s], label=s.record.title) for s in State if s in seen]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
        if title:
            figure.suptitle(title)
        drawn = io.BytesIO()
        suffix = path.suffix.lower().removeprefix(".")
        figure.savefig(drawn, format=suffix, dpi=110, metadata={"Date": None} if suffix == "svg" else None)
        content = _numbered_clips(drawn.getvalue()) if suffix == "svg" else drawn.getvalue()
        try:
            path.write_bytes(content)
        except OSError as error:
            raise PictureError(f"{path}: cannot be written: {error.strerror}") from None


def _numbered_clips(svg: bytes) -> bytes:
    """Name clip paths by their order: matplotlib names them by what rounding made of their place this time."""
    names: dict[bytes, bytes] = {}

    def number(found: re.Match[bytes]) -> bytes:
        return names.setdefault(found[0], b"clip%d" % len(names))

    return re.sub(rb"\bp[0-9a-f]{10}\b", number, svg)


def _shade(axes: Axes, story: Story, found: Timeline) -> None:
    """What state it was, behind the curves."""
    for stretch in story.stretches:
        axes.axvspan(
            stretch.start - found.start,
            stretch.end - found.start,
            color=STATE_COLOURS[stretch.state],
            alpha=0.13,
            linewidth=0,
        )


def _from_zero(axes: Axes) -> None:
    """From zero, so that heights compare, to a little above the greatest value."""
    axes.margins(y=0.0)
    axes.set_ylim(0.0, 1.08 * axes.get_ylim()[1] or 1.0)


def _curve(values: list[float | None]) -> list[float]:
    return [float("nan") if v is None else v for v in values]


def _power(axes: Axes, story: Story, found: Timeline) -> None:
    t = [p.t - found.start for p in story.points]
    _shade(axes, story, found)
    axes.plot(t, _curve([p.power_watts for p in story.points]), color=POWER, linewidth=0.8, alpha=0.6)
    axes.plot(
        t,
        _curve([p.power_watts_mean for p in story.points]),
        color=POWER,
        linewidth=2.2,
        label="power (thin: each second)",
    )
    axes.plot(
        t, _curve([p.limit_watts for p in story.points]), color=GREY, linewidth=1.2, linestyle="--", label="limit"
    )
    axes.plot(
        t, _curve([p.idle_watts for p in story.points]), color=GREY, linewidth=1.2, linestyle=":", label="idle floor"
    )
    _from_zero(axes)
    axes.set_ylabel("watts")
    axes.set_title(story.name, loc="left", fontweight="bold")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False)


def _throughput(axes: Axes, story: Story, found: Timeline) -> None:
    t = [p.t - found.start for p in story.points]
    _shade(axes, story, found)
    axes.step(
        t, _curve([p.tokens_per_second for p in story.points]), where="post", color=TOKENS, linewidth=0.8, alpha=0.6
    )
    axes.plot(t, _curve([p.tokens_per_second_mean for p in story.points]), color=TOKENS, linewidth=2.2)
    _from_zero(axes)
    axes.set_ylabel("generated tokens/s")


def _states(axes: Axes, story: Story, found: Timeline) -> None:
    whole = max(found.end - found.start, 1e-9)
    for stretch in story.stretches:
        start, length = stretch.start - found.start, stretch.end - stretch.start
        colour, title = STATE_COLOURS[stretch.state], stretch.state.record.title
        axes.broken_barh([(start, length)], (0, 1), facecolors=colour)
        if length / whole > LABEL_SHARE * len(title):
            axes.text(start + length / 2, 0.47, title, ha="center", va="center", color=text_on(colour), fontsize=8)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel("state", rotation=0, ha="right", va="center")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _time(axes: Axes, found: Timeline) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlim(0, max(found.end - found.start, 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=13, steps=[1, 1.5, 3, 6, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: clock(seconds)))
    axes.set_xlabel("time since the recording began")
