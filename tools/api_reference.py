"""docs/api.md from the structures of the status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattline.publish.status import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = Path(__file__).parent.parent / "docs" / "api.md"

INTRODUCTION = """\
# The status as JSON

Written by `make generate` from the structures in `exporter/wattline/publish/shape.py` and `status.py`: change those,
not this file.

```sh
curl -s http://127.0.0.1:10087/api/v1/status | jq '.deployments[] | {name, state, reason}'
```

`GET /api/v1/status` returns what the [page](page.md) shows: one JSON object, from memory, with the last 15 minutes.
`GET /api/v1/status/schema` returns its JSON Schema. If the [web configuration](configuration.md#tls-and-users) requires
a login, both require it.

A reading that was not obtained is **absent**: no field is null, 0 or an older value in its place. The names contain the
units, which are base units; ratios and fractions are shares of one. A whole number may appear as `4.0`. Durations such
as `seconds_in_state` are on the clock of the readings, which runs faster in `wattline demo --speed`;
`judged_seconds_ago` and `seconds_left` are real seconds. If `judged_seconds_ago` is more than a few seconds, the values
are old.

Within `v1`, fields may be added, but never change their meaning.
"""


def reference() -> str:
    """The text of docs/api.md."""
    described = schema()
    parts: dict[str, dict[str, Any]] = described["$defs"]
    order = ["Status", *(name for name in parts if name != "Status")]
    return "\n".join([INTRODUCTION, *(_section(name, parts[name]) for name in order)])


def _section(name: str, part: dict[str, Any]) -> str:
    head = f"## {name}\n\n{part['description']}\n"
    if "enum" in part:
        return f"{head}\nOne of {', '.join(f'`{value}`' for value in part['enum'])}.\n"
    required = part.get("required", [])
    rows = "\n".join(_rows(part["properties"], required))
    return f"{head}\n| field | type | there | meaning |\n|---|---|---|---|\n{rows}\n"


def _rows(properties: dict[str, dict[str, Any]], required: list[str]) -> Iterator[str]:
    for name, field in properties.items():
        there = "always" if name in required else "when known"
        yield f"| `{name}` | {_kind(field)} | {there} | {field.get('description', '')} |"


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"object of {_kind(field['additionalProperties'])}"
    if field.get("format") == "date-time":
        return "time (RFC 3339)"
    return str(field.get("type", "any"))


def written() -> dict[Path, str]:
    """The file that holds it."""
    return {TARGET: reference()}
