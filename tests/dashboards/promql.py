"""A walk through parsed PromQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import promql_parser

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHILDREN = ("expr", "lhs", "rhs", "vector_selector", "vs")


def parse(expr: str) -> Any:
    """Parse PromQL without variables.

    Raises:
        ValueError: it is no PromQL.
    """
    return promql_parser.parse(expr)


def walk(node: Any, inside: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every node with those that it stands in, outermost first."""
    yield node, inside
    for name in _CHILDREN:
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, (str, int, float)):
            yield from walk(child, (*inside, node))
    for argument in getattr(node, "args", None) or ():
        yield from walk(argument, (*inside, node))


def selectors(expr: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every selector of series, with what it stands in."""
    return ((node, inside) for node, inside in walk(parse(expr)) if type(node).__name__ == "VectorSelector")


def functions(inside: tuple[Any, ...]) -> list[str]:
    """Names of the functions among enclosing nodes, outermost first."""
    return [node.func.name for node in inside if type(node).__name__ == "Call"]


def metrics(expr: str) -> set[str]:
    """Names of the metrics that a query reads."""
    return {node.name for node, _ in selectors(expr) if node.name}
