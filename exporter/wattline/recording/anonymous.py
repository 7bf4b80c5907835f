"""Taking out of a recording what says whose it is: host names, addresses, names of models and deployments, UUIDs.

One name becomes one pseudonym throughout a file, numbered in the order of appearance: what belongs together still
does, and nothing can be guessed back from a hash.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattline.readings import EngineReading, GpuCondition, GpuProcess

if TYPE_CHECKING:
    from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
    from wattline.analysis.snapshot import SourceView
    from wattline.readings import Reading


class _Names:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._known.setdefault(name.lower(), self._pattern.format(len(self._known) + 1))


class Pseudonyms:
    """Gives pseudonyms, and the same one for the same name."""

    def __init__(self) -> None:
        self._deployment = _Names("deployment-{}")
        self._engine = _Names("engine-{}")
        self._model = _Names("model-{}")
        self._gpu = _Names("GPU-00000000-0000-0000-0000-{:012d}")

    def plan(self, plan: Plan) -> Plan:
        """The plan without names. PCI bus ids stay: they say where in the host a GPU is, not which host it is."""

        def engine(e: EnginePlan) -> EnginePlan:
            return replace(e, name=self._engine(e.name), url="")

        def deployment(d: DeploymentPlan) -> DeploymentPlan:
            gpus = None if d.gpus is None else tuple(self.uuid(g) if _is_uuid(g) else g for g in d.gpus)
            unplaced = tuple(f"process {number}" for number, _ in enumerate(d.unplaced, 1))
            engines = tuple(map(engine, d.engines))
            return replace(d, name=self._deployment(d.name), engines=engines, gpus=gpus, unplaced=unplaced)

        return replace(
            plan,
            deployments=tuple(map(deployment, plan.deployments)),
            overrides={self.uuid(uuid): override for uuid, override in plan.overrides.items()},
        )

    def uuid(self, uuid: int | str) -> str:
        """The pseudonym of a GPU."""
        return self._gpu(str(uuid))

    def reading(self, reading: Reading) -> Reading:
        """The reading without names and process ids."""
        match reading:
            case EngineReading():
                model = None if reading.model is None else self._model(reading.model)
                return replace(reading, engine=self._engine(reading.engine), model=model)
            case GpuCondition(processes=processes) if processes:
                counted = tuple(GpuProcess(i, p.memory_bytes) for i, p in enumerate(processes, 1))
                return replace(reading, uuid=self.uuid(reading.uuid), processes=counted)
            case _:
                return replace(reading, uuid=self.uuid(reading.uuid))

    def source(self, source: SourceView) -> SourceView:
        """The source without names and without words that may hold some."""
        kind, colon, name = source.name.partition(":")
        if colon:
            own = f"{kind}:{self._engine(name)}"
        else:
            own = self.uuid(source.name) if _is_uuid(source.name) else source.name
        return replace(source, name=own, detail="")


def _is_uuid(name: int | str) -> bool:
    return isinstance(name, str) and name.upper().startswith(("GPU-", "MIG-"))
