"""The rules as they are written, and what they consist of."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from alerts.build import load_values
from tests.alerts.servers import ALERTS, RULES


@cache
def all_rules() -> tuple[dict[str, Any], ...]:
    """Every rule of the bundle."""
    texts = [(ALERTS / name).read_text() for name in RULES]
    return tuple(rule for text in texts for group in yaml.safe_load(text)["groups"] for rule in group["rules"])


def alerts() -> dict[str, dict[str, Any]]:
    """Every alert by its name."""
    return {rule["alert"]: rule for rule in all_rules() if "alert" in rule}


def seconds(duration: str) -> float:
    """A duration of one unit, in seconds."""
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[duration[-1]]


def unique_by(node: Any) -> frozenset[str] | None:
    """Labels that tell the series of an expression apart by construction; ``None`` when that cannot be said.

    An aggregation says so, and a recorded series by the level in its name.
    """
    match type(node).__name__:
        case "AggregateExpr" if node.modifier is None or str(node.modifier.type).endswith("By"):
            return frozenset(node.modifier.labels if node.modifier else ())
        case "VectorSelector" if ":" in (node.name or ""):
            return frozenset((*node.name.split(":")[0].split("_"), *load_values().outer_labels))
        case "Call" | "MatrixSelector" | "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            return unique_by(inner(node))
        case "BinaryExpr" if str(node.op) == "or":
            left, right = unique_by(node.lhs), unique_by(node.rhs)
            return left if left == right else None
        case "BinaryExpr":
            return unique_by(node.rhs if is_scalar(node.lhs) else node.lhs)
    return None


def inner(node: Any) -> Any:
    """What an expression of one part wraps."""
    match type(node).__name__:
        case "Call":
            return node.args[-1]
        case "MatrixSelector":
            return node.vector_selector
        case _:
            return node.expr


def is_scalar(node: Any) -> bool:
    """Whether an expression is a number."""
    kind = type(node).__name__
    if kind in {"ParenExpr", "UnaryExpr"}:
        return is_scalar(node.expr)
    if kind == "BinaryExpr":
        return is_scalar(node.lhs) and is_scalar(node.rhs)
    return kind == "NumberLiteral" or (kind == "Call" and node.func.name == "time")
