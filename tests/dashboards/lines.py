"""Series written by hand, for what the simulated rig does not live through."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRAPE = 15
FOREVER = 1800


class Line(NamedTuple):
    """One series with one value, from a second on, up to another."""

    series: str
    value: float = 1.0
    since: int = 0
    until: int = FOREVER

    def samples(self, start: float) -> Iterator[str]:
        """Return the samples, as OpenMetrics."""
        for t in range(self.since, self.until + 1, SCRAPE):
            yield f"{self.series} {self.value:.10g} {start + t:.3f}\n"


def labelled(name: str, **labels: str) -> str:
    """Return a series by its name and labels."""
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"
