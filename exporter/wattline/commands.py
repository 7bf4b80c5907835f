"""What each command does, from parsed options to an exit code."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from wattline import __version__
from wattline.config import ConfigError, load, parse
from wattline.yamlfile import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Sequence

    from wattline.analysis.plan import DeploymentPlan, Plan
    from wattline.config import Config, Deployment, Price
    from wattline.recording.reader import Recording
    from wattline.session import Session

CHECK_SECONDS = 30.0
"""How long a check watches when nobody says."""
D = TypeVar("D", "Deployment", "DeploymentPlan")


async def serve(options: argparse.Namespace) -> int:
    """Serve this host, or a recording."""
    values = vars(options)
    path = values["config.file"]
    config = load(path, files=values["config.check"])
    if values["config.check"]:
        from wattline.publish.security import WebSecurity

        WebSecurity(values["web.config.file"])
        print(f"{path or 'the default configuration'}: right, {_summary(config)}")  # noqa: T201 - what it was asked for
        return 0
    from wattline.app import Exporter, for_people
    from wattline.publish.server import Publication

    publication = Publication()
    publication.set_price(config.price)
    if options.replay is not None:
        from wattline.recording.reader import read_recording
        from wattline.recording.served import ReplaySession
        from wattline.session import plan_of

        replayed = ReplaySession(
            read_recording(Path(options.replay)),
            speed=values["replay.speed"],
            plan=plan_of(config) if path is not None else None,
        )
        await Exporter(replayed, publication, **_web(options)).run()
        return 0
    session = _session(config, persist=True, on_read=publication.registry.observe_read)

    async def reload_config() -> None:
        await session.apply(load(path))
        publication.set_price(session.config.price)

    exporter = Exporter(
        session,
        publication,
        **_web(options),
        configuration=lambda: for_people(session.config),
        reload_config=reload_config,
    )
    await exporter.run()
    return 0


async def demo(options: argparse.Namespace) -> int:
    """Serve the simulated hosts, each at a port of its own."""
    from contextlib import ExitStack

    from wattline.simulation.demo import FLEET

    host, port = options.__dict__["web.listen_address"]
    fleet = [(deployment, scenario) for deployment, scenario in FLEET if scenario != options.scenario]
    fleet = [(FLEET[0][0], options.scenario), *(each for each in fleet if each[0] != FLEET[0][0])]
    if not 1 <= options.hosts <= len(fleet):
        raise ConfigError("--hosts", f"found {options.hosts}, expected 1 to {len(fleet)}")
    if port == 0 and options.hosts > 1:
        raise ConfigError("--web.listen-address", "found port 0, expected a port that the others can follow")
    with ExitStack() as files:
        if options.targets_file:
            _write_targets(Path(options.targets_file), range(port + 1, port + options.hosts))
            files.callback(Path(options.targets_file).unlink, missing_ok=True)
        served = [
            asyncio.ensure_future(_demo_host(options, number, *fleet[number - 1], (host, port + number - 1)))
            for number in range(1, options.hosts + 1)
        ]
        # A signal, or a fault, ends one of them; the others end with it.
        try:
            await asyncio.wait(served, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in served:
                each.cancel()
            ended = await asyncio.gather(*served, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result
    return 0


async def _demo_host(
    options: argparse.Namespace, number: int, name: str, scenario: str, listen: tuple[str | None, int]
) -> None:
    from msgspec.structs import replace

    from wattline.app import Exporter, for_people
    from wattline.config import Deployment, Engine
    from wattline.publish.server import Publication
    from wattline.session import Session
    from wattline.simulation.demo import Demo

    try:
        rig = Demo(speed=options.speed, scenario=scenario, host=number)
    except ValueError as error:
        raise ConfigError("--scenario", str(error)) from None
    url = await rig.start()
    try:
        publication = Publication()
        deployment = Deployment(name=name, engines=(Engine(url=url, name="head"),), gpus="all")
        config = replace(parse("", "defaults"), deployments=(deployment,))
        session = Session(
            config,
            rig.source,
            clock=rig.clock.now,
            speed=options.speed,
            on_read=publication.registry.observe_read,
        )
        configuration = for_people(config)
        web = {**_web(options), "listen": listen}
        exporter = Exporter(session, publication, **web, phase=rig.phase, configuration=lambda: configuration)
        await exporter.run()
    finally:
        await rig.close()


def _write_targets(path: Path, ports: range) -> None:
    """Name the other hosts for Prometheus' file_sd_configs."""
    import json
    import socket

    targets = [f"{socket.gethostname()}:{port}" for port in ports]
    try:
        path.write_text(json.dumps([{"targets": targets}]) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError("--targets-file", f"cannot write {path}: {error.strerror}") from None


async def check(options: argparse.Namespace) -> int:
    """Watch this host or a recording, and answer."""
    from wattline.check.watch import at_once, judged, run, shortened

    if options.replay is not None:
        from wattline.recording.reader import read_recording
        from wattline.recording.replay import replay

        for flag, given in (("--for", options.seconds is not None), ("--watch", options.watch)):
            if given:
                raise ConfigError(flag, "expected no --replay beside it: a recording is judged as a whole, at once")
        recording = read_recording(Path(options.replay))
        plan = _replay_plan(options, recording)

        def cut_short() -> str:
            return f"the recording is not complete: {recording.cut_short}" if recording.cut_short else ""

        return await run(at_once(replay(recording, plan)), plan, as_json=options.json, note=cut_short)
    length = CHECK_SECONDS if options.seconds is None else options.seconds
    seconds = None if options.watch else length
    session = _session(shortened(_targets(options), length))
    await session.start()
    try:
        return await run(
            judged(session, seconds),
            session.observer.plan,
            seconds=seconds,
            live=options.watch,
            as_json=options.json,
        )
    finally:
        await session.stop()


async def record(options: argparse.Namespace) -> int:
    """Write the readings of this host to a file."""
    from wattline.recording.record import run

    session = _session(_targets(options))
    return await run(session, Path(options.file), seconds=options.seconds, anonymous=options.anonymous)


async def audit(options: argparse.Namespace) -> int:
    """Judge the past from the metrics that a server has."""
    import time

    from wattline.audit.client import Server
    from wattline.audit.run import run
    from wattline.engines.target import Engine

    access = Engine(
        url=options.url,
        bearer_token_file=options.bearer_token_file,
        ca_file=options.ca_file,
        insecure_skip_verify=options.insecure_skip_verify,
    )
    for key, problem in access.problems():
        if key != "name":
            raise ConfigError("URL" if key == "url" else f"--{key.replace('_', '-')}", problem)
    if (options.user is None) != (options.password_file is None):
        raise ConfigError("--user", "expected --password-file beside it, and neither alone")
    limits = {model: _watts(watts) for model, watts in options.power_limit or ()}
    price = _price(options, load(vars(options)["config.file"]).price)
    user = None if options.user is None else (options.user, options.password_file)
    end = float(int(time.time()))
    async with Server(access, user=user, tenant=options.tenant, at_once=options.at_once) as server:
        return await run(
            server,
            end - options.since,
            end,
            rules=options.join or (),
            limits=limits,
            price=price,
            as_json=options.json,
        )


def _watts(text: str) -> float:
    try:
        watts = float(text)
    except ValueError:
        watts = 0.0
    if not 1 <= watts <= 20_000:  # noqa: PLR2004 - of one board
        raise ConfigError("--power-limit", f"expected watts such as H200=700, found {text!r}")
    return watts


def _price(options: argparse.Namespace, configured: Price | None) -> Price | None:
    """The price of the flags, else that of the configuration."""
    from msgspec.structs import replace

    from wattline.config import Price

    price = configured
    if options.price is not None:
        amount = re.fullmatch(r"([0-9.]+)(?:/kWh)?", options.price)
        try:
            per_kwh = float(amount[1]) if amount else 0.0
        except ValueError:
            per_kwh = 0.0
        if not 0 < per_kwh <= 1000:  # noqa: PLR2004 - as in the configuration
            raise ConfigError("--price", f"expected a price such as 0.25/kWh, found {options.price!r}")
        price = replace(price, per_kwh=per_kwh) if price else Price(per_kwh=per_kwh)
    if options.carbon is not None:
        if price is None:
            raise ConfigError("--carbon", "expected --price beside it, or a price in the configuration")
        price = replace(price, co2_per_kwh=options.carbon)
    return price


async def explain(options: argparse.Namespace) -> int:
    """Tell what a recording shows."""
    from wattline.explain.explain import run

    return run(Path(options.file), plot=Path(options.plot) if options.plot else None)


async def forget(options: argparse.Namespace) -> int:
    """Say that a GPU was taken out of this host."""
    from msgspec.structs import replace

    from wattline.state import StateFile

    path = vars(options)["config.file"]
    config = load(path)
    if config.state_file is None:
        raise ConfigError("state_file", f"expected one in {path or 'a configuration file (--config.file)'}, found none")
    file = StateFile(Path(config.state_file))
    memory = file.load()
    try:
        uuid = memory.find(options.gpu)
    except LookupError as error:
        raise UsageError(f"{config.state_file}: {error}") from None
    gone = memory.gpus[uuid]
    left = replace(
        memory,
        gpus={u: gpu for u, gpu in memory.gpus.items() if u != uuid},
        idle_power_watts={u: watts for u, watts in memory.idle_power_watts.items() if u != uuid},
        forgotten=(*memory.forgotten, uuid),
    )
    if not file.save(left):
        raise UsageError(f"{config.state_file}: cannot be written")
    what = f"{gone.index} ({uuid}, {gone.name or 'unknown model'} at {gone.pci_bus_id or 'an unknown address'})"
    print(f"{config.state_file}: GPU {what} is forgotten.")  # noqa: T201 - what it was asked for
    print("An exporter that runs with this file takes note within 30 s; a GPU that answers stays known.")  # noqa: T201 - as above
    return 0


async def bundle(options: argparse.Namespace) -> int:
    """Write the shipped files."""
    from wattline.bundle import write

    count = write(Path(options.directory))
    print(f"{options.directory}: {count} files of Wattline {__version__}. Start with: docker compose up -d")  # noqa: T201 - what it was asked for
    return 0


async def runbook(options: argparse.Namespace) -> int:
    """Show a runbook, or list them."""
    from rich.console import Console
    from rich.markdown import Markdown

    from wattline.publish.runbooks import markdown, names

    if options.name is None:
        print("\n".join(names()))  # noqa: T201 - what it was asked for
        return 0
    try:
        Console(width=None if sys.stdout.isatty() else 100).print(Markdown(markdown(options.name)))
    except KeyError:
        raise UsageError(f"found no runbook {options.name!r}, expected one of {', '.join(names())}") from None
    return 0


def _session(config: Config, *, persist: bool = False, on_read: Callable[[str, float], None] | None = None) -> Session:
    from wattline.gpus.nvml import NvmlSource
    from wattline.session import Session

    source = NvmlSource(gpm=config.gpm) if config.nvml else None
    return Session(config, source, persist=persist, on_read=on_read)


def _targets(options: argparse.Namespace) -> Config:
    """The configuration, its deployments replaced by what ``--engine`` and ``--gpus`` say."""
    from msgspec.structs import replace

    config = load(vars(options)["config.file"])
    flags = _flags(options)
    if flags is None:
        return config
    # A server that is configured too is reached as the configuration says: by its token, authorities and kind.
    known = {e.url: e for d in config.deployments if not isinstance(d.engines, str) for e in d.engines}
    engines = tuple(known.get(e.url, e) for e in flags.engines if not isinstance(e, str))
    flags = replace(flags, engines=engines)
    return replace(config, deployments=(_changed(options, config.deployments, flags, replace),))


def _replay_plan(options: argparse.Namespace, recording: Recording) -> Plan:
    """What to judge a recording by: as :func:`_targets`, and without a configuration file by the recorded plan.

    Raises:
        RecordingError: a server is asked for that the recording does not hold.
    """
    from dataclasses import replace

    from wattline.readings import EngineReading
    from wattline.recording.layout import RecordingError, bare_url
    from wattline.session import deployment_plan, plan_of

    plan = recorded = recording.header.plan
    held = {e.name for d in recorded.deployments for e in d.engines}
    if vars(options)["config.file"] is not None:
        plan = plan_of(_targets(options))
    elif (given := _flags(options)) is not None:
        flags = deployment_plan(given)
        known = {e.url: e for d in recorded.deployments for e in d.engines}
        flags = replace(flags, engines=tuple(known.get(bare_url(e.url), e) for e in flags.engines))
        plan = replace(recorded, deployments=(_changed(options, recorded.deployments, flags, replace),))
    asked = [e.name for d in plan.deployments for e in d.engines]
    if not held.issuperset(asked):
        # Some are only found while it is recorded.
        held |= {event.engine for event in recording if isinstance(event, EngineReading)}
    if missing := [name for name in asked if name not in held]:
        problem = f"the recording holds no {', '.join(missing)}; it holds {', '.join(sorted(held)) or 'no server'}"
        raise RecordingError(recording.path, None, problem)
    return plan


def _flags(options: argparse.Namespace) -> Deployment | None:
    """The deployment that ``--engine`` and ``--gpus`` describe, the one that is not given as it is by default."""
    if not options.engine and not options.gpus:
        return None
    deployment: dict[str, Any] = {}
    if options.engine:
        deployment["engines"] = [{"url": url} for url in options.engine]
    if options.gpus:
        named = [gpu.strip() for gpu in options.gpus.split(",")]
        listed = [int(gpu) if re.fullmatch("[0-9]{1,9}", gpu) else gpu for gpu in named]
        deployment["gpus"] = options.gpus if options.gpus in ("all", "auto") else listed
    try:
        return parse(yaml.safe_dump({"deployments": [deployment]}), "flags").deployments[0]
    except ConfigError as error:
        # A line of a file that nobody wrote says nothing.
        flag = "--gpus" if error.path.startswith("deployments[0].gpus") else "--engine"
        raise ConfigError(flag, re.sub(" is already at .*", " is given twice", error.problem)) from None


def _changed(options: argparse.Namespace, deployments: Sequence[D], flags: D, replace: Callable[..., D]) -> D:
    """The one deployment that is left, what no flag names being as it was."""
    if not options.engine and len(deployments) > 1:
        raise ConfigError("--gpus", f"expected --engine beside it: there are {len(deployments)} deployments")
    given: dict[str, Any] = {"engines": flags.engines} if options.engine else {}
    given |= {"gpus": flags.gpus} if options.gpus else {}
    return replace(deployments[0], **given) if len(deployments) == 1 else flags


def _web(options: argparse.Namespace) -> dict[str, Any]:
    values = vars(options)
    return {
        "listen": values["web.listen_address"],
        "web_config": values["web.config.file"],
        "enable_lifecycle": values["web.enable_lifecycle"],
    }


def _summary(config: Config) -> str:
    engines = sum(len(d.engines) for d in config.deployments if not isinstance(d.engines, str))
    return f"{_counted(len(config.deployments), 'deployment')} with {_counted(engines, 'engine')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


RUN: dict[str, Callable[[argparse.Namespace], Coroutine[None, None, int]]] = {
    "serve": serve,
    "demo": demo,
    "check": check,
    "record": record,
    "audit": audit,
    "explain": explain,
    "forget": forget,
    "bundle": bundle,
    "runbook": runbook,
}
