"""Every table of an engine that is known: those of this package, and those that other distributions bring.

A distribution brings one by an entry point of the group ``wattline.engines`` that names an
:class:`~wattline.engines.kinds.EngineKind`. Nothing else is needed: it is recognised, read, found among the running
processes and hinted at by what stands in its table.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from wattline.engines.dynamo import DYNAMO
from wattline.engines.kinds import EngineKind
from wattline.engines.llamacpp import LLAMACPP
from wattline.engines.sglang import SGLANG
from wattline.engines.tensorrt_llm import TENSORRT_LLM
from wattline.engines.tgi import TGI
from wattline.engines.triton import TRITON
from wattline.engines.vllm import VLLM

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

GROUP = "wattline.engines"
BUILT_IN = (SGLANG, VLLM, TENSORRT_LLM, TRITON, TGI, LLAMACPP, DYNAMO)
"""Where a text has the metrics of two, the first here is meant: Dynamo passes others on."""

logger = logging.getLogger(GROUP)


def known(found: Iterable[EntryPoint]) -> dict[str, EngineKind]:
    """Every table by the name of its kind; one that cannot be used is left out with a warning, and the rest serve.

    A table of this package is never replaced: two readings of one text would differ by what is installed.
    """
    kinds = {kind.name: kind for kind in BUILT_IN}
    for entry in found:
        where = f"entry point {entry.name} = {entry.value} of the group {GROUP}"
        try:
            kind = entry.load()
        except Exception as error:  # noqa: BLE001 - whatever another distribution raises, the others are read
            logger.warning("%s cannot be loaded: %s: %s", where, type(error).__name__, error)
            continue
        if not isinstance(kind, EngineKind):
            logger.warning("%s: expected an EngineKind, found %s", where, type(kind).__name__)
        elif kind.name in kinds:
            logger.warning("%s: there is an engine %s already", where, kind.name)
        else:
            kinds[kind.name] = kind
    return kinds


KINDS = known(entry_points(group=GROUP))
"""Every kind by its name."""
