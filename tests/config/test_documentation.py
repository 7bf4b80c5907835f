"""What docs/configuration.md says is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from wattline.config import Config, Deployment, Engine, GpuSettings, load, parse
from wattline.durations import parse_duration
from wattline.publish.webconfig import load_web_config

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "configuration.md").read_text()


def section(heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(text: str) -> dict[str, str]:
    """Key and default of each row of a table."""
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "struct"),
    [("Keys", Config), ("`deployments`", Deployment), ("`deployments[].engines`", Engine), ("`gpus`", GpuSettings)],
)
def test_every_key_is_documented(heading: str, struct: type[msgspec.Struct]) -> None:
    assert set(rows(section(heading))) == set(struct.__struct_fields__)


@pytest.mark.parametrize("key", ["window", "grace", "sample_interval", "engine_interval"])
def test_durations_are_documented_with_their_default(key: str) -> None:
    assert parse_duration(rows(section("Keys"))[key].strip("`")) == getattr(load(None), key)


def examples() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_loads_and_shows_every_key() -> None:
    config = parse(examples()[0], "wattline.yml")
    assert [deployment.name for deployment in config.deployments] == ["glm5", "small"]
    assert config.thresholds.busy_requests == 8
    for key in Config.__struct_fields__:
        assert f"\n{key}:" in f"\n{examples()[0]}"


def test_the_example_of_the_web_configuration_loads(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text(examples()[1])
    assert list(load_web_config(file).basic_auth_users) == ["prometheus"]
