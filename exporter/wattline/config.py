"""The configuration: what to watch, and with which numbers to judge it.

Every key has a default; an empty file, or none, watches every GPU and the SGLang at its default address.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from wattline.analysis.thresholds import Thresholds
from wattline.durations import format_duration, parse_duration
from wattline.engines.tables import KINDS
from wattline.engines.target import DEFAULT_ENGINE_URL, CredentialsError, Engine, bad_name
from wattline.yamlfile import ConfigError, Document, dotted, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.yamlfile import KeyPath

__all__ = [
    "Config",
    "ConfigError",
    "Deployment",
    "Engine",
    "GpuSettings",
    "Price",
    "Thresholds",
    "load",
    "parse",
    "schema",
]

Watts = Annotated[float, Meta(gt=0.0, le=20_000.0)]
# Written as ``60s``, ``1h30m`` or a number; held as seconds.
_DURATIONS = ("window", "grace", "sample_interval", "engine_interval")


class Deployment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named set of engines and the GPUs that serve them."""

    name: str = "default"
    engines: tuple[Engine, ...] | Literal["auto", "pods"] = (Engine(url=DEFAULT_ENGINE_URL),)
    """``auto``: the servers that are found among the processes on the GPUs; ``pods``: the pods of this node that say so
    in their annotations."""
    gpus: tuple[int | str, ...] | Literal["all", "auto"] | None = None
    """NVML indices, UUIDs or PCI bus ids; ``all``: every GPU that no other deployment names; ``auto``: those on which
    the engines' processes run. ``None``: ``auto`` where the driver tells these processes, and ``all`` where not."""


class GpuSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator knows better than the driver tells, for one GPU."""

    idle_power_watts: Watts | None = None
    """With the model loaded and no work. Taken instead of the learned idle floor."""
    power_limit_watts: Watts | None = None
    """Used only where the driver tells no limit at all."""


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What energy costs. Without it no sum of money is shown anywhere."""

    per_kwh: Annotated[float, Meta(gt=0.0, le=1000.0)]
    """In ``currency``, for a kilowatt-hour at the meter."""
    currency: str = "EUR"
    """ISO 4217."""
    pue: Annotated[float, Meta(ge=1.0, le=5.0)] = 1.0
    """Energy of the whole site for each unit of energy of its computers: every sum is multiplied by it."""
    co2_per_kwh: Annotated[float, Meta(ge=0.0, le=5.0)] | None = None
    """Kilograms of CO2 for a kilowatt-hour at the meter."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be configured. Times are in seconds."""

    deployments: tuple[Deployment, ...] = (Deployment(),)
    window: float = 60.0
    """What a verdict looks at."""
    grace: float = 600.0
    """How long an engine that was seen to start counts as working."""
    sample_interval: float = 1.0
    """Between two readings of a GPU's power."""
    engine_interval: float = 5.0
    """Between two scrapes of an engine."""
    nvml: bool = True
    """Whether there are GPUs to read on this host. Taken at the start only."""
    expected_gpus: Annotated[int, Meta(ge=1, le=256)] | None = None
    """How many GPUs this host is to have. Those that are not there are lost, also when they were never seen."""
    gpm: bool = True
    """Whether to read SM, tensor and DRAM activity (Hopper and newer). Taken at the start only."""
    state_file: str | None = None
    """Keeps what was learned over a restart."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    gpus: dict[str, GpuSettings] = field(default_factory=dict)
    """By UUID."""
    price: Price | None = None
    """What energy costs."""


def load(path: str | Path | None, *, files: bool = False) -> Config:
    """The configuration in a file; the defaults without one. ``files`` as for :func:`parse`.

    Raises:
        ConfigError: with file, line, key, what was found and what was expected.
    """
    return parse("", "defaults") if path is None else parse(read_text(path), str(path), files=files)


def parse(text: str, filename: str, *, files: bool = False) -> Config:
    """The configuration in a text. Relative paths in it are relative to ``filename``.

    Args:
        text: the file.
        filename: named in every error.
        files: look at the files that it names, too. Whoever serves does not: they may come later, and change.

    Raises:
        ConfigError: with file, line, key, what was found and what was expected.
    """
    document = Document(text, filename)
    for key in _DURATIONS:
        if key in document.data:
            try:
                document.data[key] = parse_duration(document.data[key])
            except ValueError as error:
                raise document.error((key,), f"{error}, found {document.found((key,))}") from None
    config = _completed(document.convert(Config), Path(filename).parent)
    for path, problem in _contradictions(config):
        raise document.error(path, problem)
    for path, problem in _bad_files(config) if files else ():
        raise document.error(path, problem)
    return config


def schema() -> dict[str, Any]:
    """The JSON schema of the configuration, for editors."""
    described = msgspec.json.schema(Config)
    for key in _DURATIONS:
        described["$defs"]["Config"]["properties"][key]["type"] = ["number", "string"]
    described["$defs"]["Engine"]["properties"]["kind"] = {"enum": [*KINDS, None], "default": None}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Wattline configuration",
        **described,
    }


def _completed(config: Config, folder: Path) -> Config:
    """With names and full addresses for all engines, GPUs as NVML writes them, and all paths resolved."""

    def resolved(path: str | None) -> str | None:
        return None if path is None else str(folder / path)

    def completed_deployment(deployment: Deployment) -> Deployment:
        engines, gpus = deployment.engines, deployment.gpus
        return replace(
            deployment,
            engines=engines if isinstance(engines, str) else tuple(engine.completed(folder) for engine in engines),
            gpus=gpus if gpus is None or isinstance(gpus, str) else tuple(_canonical(gpu) for gpu in gpus),
        )

    return replace(
        config,
        deployments=tuple(completed_deployment(deployment) for deployment in config.deployments),
        state_file=resolved(config.state_file),
        gpus={str(_canonical(uuid)): settings for uuid, settings in config.gpus.items()},
    )


def _contradictions(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """What no single value's type can tell: first the values alone, then those that must fit together."""
    yield from _bad_times(config)
    yield from _bad_thresholds(config.thresholds)
    for index, deployment in enumerate(config.deployments):
        path = ("deployments", index)
        if problem := bad_name(deployment.name):
            yield (*path, "name"), problem
        yield from _bad_gpus(deployment, (*path, "gpus"))
        if not deployment.engines:
            yield (*path, "engines"), "expected at least one engine, 'auto' or 'pods', found an empty list"
        for at, engine in _engines(deployment, path):
            yield from (((*at, key), problem) for key, problem in engine.problems())
    words: dict[str, int] = {}
    for index, deployment in enumerate(config.deployments):
        if isinstance(deployment.engines, str):
            words.setdefault(deployment.engines, index)
    if len(words) > 1:
        second = ("deployments", max(words.values()), "engines")
        yield second, "expected one of 'auto' and 'pods' in the whole configuration, found both"
    for uuid in config.gpus:
        if not _UUID.fullmatch(uuid):
            yield ("gpus", uuid), f"expected the UUID of a GPU such as {_EXAMPLE_UUID}, found {uuid[:60]!r}"
    yield from _bad_currency(config.price)
    yield from _duplicates(config)


def _bad_currency(price: Price | None) -> Iterator[tuple[KeyPath, str]]:
    if price is not None and not re.fullmatch("[A-Z]{3}", price.currency):
        yield ("price", "currency"), f"expected three capital letters such as EUR, found {price.currency[:60]!r}"


def _bad_times(config: Config) -> Iterator[tuple[KeyPath, str]]:
    limits = {
        "sample_interval": (0.2, 30.0),
        "engine_interval": (1.0, 300.0),
        "window": (max(3 * config.engine_interval, 5 * config.sample_interval), 3600.0),
        "grace": (0.0, 86400.0),
    }
    for key, (low, high) in limits.items():
        value: float = getattr(config, key)
        if value < low:
            why = " (3 x engine_interval, 5 x sample_interval)" if key == "window" else ""
            yield (key,), f"expected at least {format_duration(low)}{why}, found {format_duration(value)}"
        if value > high:
            yield (key,), f"expected at most {format_duration(high)}, found {format_duration(value)}"


def _bad_thresholds(thresholds: Thresholds) -> Iterator[tuple[KeyPath, str]]:
    """Pairs of which the first must not be above the second: the states would shadow each other."""
    for low, high in (
        ("idle_tdp_fraction", "low_tdp_fraction"),
        ("low_tdp_fraction", "saturated_tdp_fraction"),
        ("busy_requests", "loaded_requests"),
        ("idle_active_fraction", "partial_active_fraction"),
    ):
        below, above = getattr(thresholds, low), getattr(thresholds, high)
        if below > above:
            yield ("thresholds", low), f"expected at most {high} ({above:g}), found {below:g}"


_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EXAMPLE_UUID = "GPU-5f1c0e6a-90b3-4a2d-8c71-3d2e4b5a6f70"
_BUS_ID = re.compile(r"(?:(?:[0-9a-fA-F]{4}){1,2}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.0)?")
_MAX_INDEX = 255


def _bad_gpus(deployment: Deployment, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if deployment.gpus is None or isinstance(deployment.gpus, str):
        return
    if not deployment.gpus:
        yield path, "expected at least one GPU, 'all' or 'auto', found an empty list"
    for index, gpu in enumerate(deployment.gpus):
        if isinstance(gpu, int):
            if not 0 <= gpu <= _MAX_INDEX:
                yield (*path, index), f"expected an NVML index from 0 to {_MAX_INDEX}, found {gpu}"
        elif not (_UUID.fullmatch(gpu) or _BUS_ID.fullmatch(gpu)):
            hint = "; write an index without quotes" if gpu.isdigit() else ""
            expected = f"expected an index, a UUID such as {_EXAMPLE_UUID} or a bus id such as 0000:17:00.0"
            yield (*path, index), f"{expected}, found {gpu[:60]!r}{hint}"


def _canonical(gpu: int | str) -> int | str:
    """One way to write each UUID and bus id: as NVML writes them."""
    if isinstance(gpu, int):
        return gpu
    if _UUID.fullmatch(gpu):
        return gpu[:4] + gpu[4:].lower()
    if _BUS_ID.fullmatch(gpu):
        domain, bus, device = f"0:{gpu}".removesuffix(".0").split(":")[-3:]
        return f"{int(domain, 16):08X}:{bus}:{device}.0".upper()
    return gpu


def _engines(deployment: Deployment, path: KeyPath) -> Iterator[tuple[KeyPath, Engine]]:
    if not isinstance(deployment.engines, str):
        for index, engine in enumerate(deployment.engines):
            yield (*path, "engines", index), engine


def _bad_files(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """What cannot be used now of the files that the configuration names."""
    for index, deployment in enumerate(config.deployments):
        for path, engine in _engines(deployment, ("deployments", index)):
            for key in ("bearer_token_file", "ca_file"):
                name: str | None = getattr(engine, key)
                if name is not None and (problem := _unusable(engine, key, Path(name))):
                    yield (*path, key), problem
    if config.state_file is not None:
        folder = Path(os.path.realpath(config.state_file)).parent
        if not folder.is_dir():
            yield ("state_file",), f"cannot be written: {folder} is no folder"
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield ("state_file",), f"cannot be written: permission denied in {folder}"


def _unusable(engine: Engine, key: str, file: Path) -> str:
    """Why a file of an engine cannot be used; empty when it can."""
    try:
        file.read_bytes()
        if key == "ca_file":
            engine.tls()
        else:
            engine.headers()
    except CredentialsError:
        return f"expected one word of printable characters in {file}, found something else (not shown)"
    except ssl.SSLError:
        return f"expected certificates in {file}, found none"
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return f"cannot be read: {reason[0].lower()}{reason[1:]}: {file}"
    return ""


def _duplicates(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """One thing, one owner: names, engines and GPUs."""
    owners: dict[tuple[str, object], KeyPath] = {}
    for what, value, path, shown in _claims(config):
        first = owners.setdefault((what, value), path)
        if first is not path:
            yield path, f"{what} {shown} is already at {dotted(first)}"


def _claims(config: Config) -> Iterator[tuple[str, object, KeyPath, object]]:
    """Everything that only one may have: what it is, its value, where it stands, and how to show it."""
    for index, deployment in enumerate(config.deployments):
        path: KeyPath = ("deployments", index)
        yield "the name", deployment.name, (*path, "name"), repr(deployment.name)
        if deployment.gpus == "all" or (deployment.gpus is None and deployment.engines != "auto"):
            yield "the claim to", "all", (*path, "gpus"), "all GPUs"
        elif deployment.gpus in ("auto", None):
            if isinstance(deployment.engines, str):
                yield "the claim to", "auto", (*path, "gpus"), "all servers that are found"
        else:
            for at, gpu in enumerate(deployment.gpus):
                yield "the GPU", gpu, (*path, "gpus", at), gpu
        for at_engine, engine in _engines(deployment, path):
            # A query may hold a key.
            yield "the address", engine.url, (*at_engine, "url"), engine.url.partition("?")[0]
            yield "the engine name", engine.name, (*at_engine, "name"), repr(engine.name)
