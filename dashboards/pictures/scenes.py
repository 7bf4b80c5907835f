"""The pasts that are drawn: the demo's story by day, and a night in which much goes wrong at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.dashboards.history import FLEET, SCRAPE_SECONDS, Host, openmetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START = 1_700_000_000.0
KILLED = 1500.0
"""When the exporter of one host is killed: five minutes before the end."""
RENAMED = 900.0
HOSTS_OF_ONE = 8
"""A deployment of 64 GPUs."""


class Scene(NamedTuple):
    """A past of some length, as OpenMetrics."""

    seconds: float
    lines: Callable[[float], Iterator[str]]


def _day(seconds: float) -> Iterator[str]:
    return openmetrics(START, seconds, FLEET)


def _lived(host: Host, seconds: float) -> Iterator[str]:
    return (line for line in openmetrics(START, seconds, (host,)) if not line.startswith("#"))


def _night(seconds: float) -> Iterator[str]:
    """One host of eight is sick, one exporter is killed, a deployment is renamed, one has one GPU, one no engine."""
    for line in _lived(Host("node-a:10087", "glm5", "wedged"), seconds):
        dead = float(line.rsplit(" ", 1)[1]) > START + KILLED
        if not dead or line.startswith("up{"):
            yield line.replace("} 1 ", "} 0 ") if dead else line
    healthy = list(_lived(Host("HOST", "llama-405b", "tuned"), seconds))
    sick = list(_lived(Host("HOST", "llama-405b", "wedged"), seconds))
    for number in range(HOSTS_OF_ONE):
        name = f"node-b{number}:10087"
        for line in sick if number == 5 else healthy:  # noqa: PLR2004 - any of them
            yield line.replace('"HOST"', f'"{name}"').replace('"GPU-0', f'"GPU-b{number}')
    alone = _lived(Host("node-c:10087", "phi-4", "healthy", gpus=(0,)), seconds)
    no_engine = _lived(Host("node-d:10087", "training", "healthy", engine=False), seconds)
    renamed = _lived(Host("node-e:10087", "mistral-2", "healthy"), seconds)
    yield from (line.replace('"GPU-0', '"GPU-c') for line in alone)
    yield from (line.replace('"GPU-0', '"GPU-d') for line in no_engine)
    for line in renamed:
        before = float(line.rsplit(" ", 1)[1]) < START + RENAMED
        yield (line.replace('"mistral-2"', '"mistral-1"') if before else line).replace('"GPU-0', '"GPU-e')
    yield "# EOF\n"


SCENES = {
    # Two rounds of the story, up to the moment in the third at which the GPUs idle although requests are held.
    "day": Scene(1990.0, _day),
    "night": Scene(1800.0 // SCRAPE_SECONDS * SCRAPE_SECONDS, _night),
}
