"""Rules of the repository that no linter knows."""

from __future__ import annotations

import ast
import os
import re
import socket
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import generate, metrics_reference
from wattline import __version__
from wattline.publish import families
from wattline.publish.collector import Registry

ROOT = Path(__file__).parent.parent
NOT_OURS = {"node_modules", "build", "dist", "__pycache__"}
OURS_ALTHOUGH_HIDDEN = {".ci", ".github"}
LOCKS = sorted(ROOT.glob("requirements*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def files() -> tuple[Path, ...]:
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in NOT_OURS
            and not name.endswith(".egg-info")
            and (not name.startswith(".") or name in OURS_ALTHOUGH_HIDDEN)
        )
        # In a linked work tree .git is a file, and names the folder of the repository.
        found += [Path(folder, name) for name in sorted(names) if name != ".git"]
    return tuple(found)


@cache
def texts() -> dict[Path, str]:
    """Every text file of the repository by its path from the root."""
    found = {}
    for file in files():
        try:
            found[file.relative_to(ROOT)] = file.read_text()
        except UnicodeDecodeError:
            continue
    return found


def lines_with(pattern: str, *suffixes: str, under: str = "") -> list[str]:
    """Where a pattern occurs, as ``file:line: text``. This file itself has all of them."""
    wanted = re.compile(pattern)
    return [
        f"{file}:{number}: {line.strip()[:120]}"
        for file, text in texts().items()
        if (not suffixes or file.suffix in suffixes)
        and str(file).startswith(under)
        and file != Path(__file__).relative_to(ROOT)
        for number, line in enumerate(text.splitlines(), 1)
        if wanted.search(line)
    ]


def test_the_rules_see_the_repository() -> None:
    seen = set(texts())
    assert {Path("README.md"), Path("Makefile"), Path(".ci/run"), Path("exporter/wattline/readings.py")} <= seen
    assert len(seen) > 100


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<![\w.])/(work|root|home/\w+)/",
        r"\b(TODO|FIXME|XXX|HACK)\b",
        r"files\.pythonhosted\.org|pypi\.org/simple|registry\.npmjs\.org|--(extra-)?index-url",
        r"^(<<<<<<<|=======|>>>>>>>)( |$)",
    ],
    ids=["a path of one machine", "unfinished work", "the address of a registry", "a merge conflict"],
)
def test_no_file_holds(pattern: str) -> None:
    hits = [hit for hit in lines_with(pattern) if not hit.startswith("Makefile:") or "--no-emit-index-url" not in hit]
    assert not hits


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_holds_hashes_for_all_and_addresses_for_none(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    blocks = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    without = [block.splitlines()[0] for block in blocks if block.strip() and "--hash=sha256:" not in block]
    assert not without


def pins(lock: Path) -> dict[str, Version]:
    found = re.findall(r"^([\w.-]+)==([\w.!+-]+)", lock.read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_the_locks_agree_with_each_other() -> None:
    everything = pins(ROOT / "requirements-dev.txt")
    for lock in LOCKS:
        assert pins(lock).items() <= everything.items()


def test_the_locks_hold_what_the_project_asks_for() -> None:
    runtime = pins(ROOT / "requirements.txt")
    development = pins(ROOT / "requirements-dev.txt")
    asked = [(text, runtime) for text in PROJECT["project"]["dependencies"]]
    groups = PROJECT["dependency-groups"].values()
    asked += [(text, development) for group in groups for text in group if isinstance(text, str)]
    for text, locked in asked:
        requirement = Requirement(text)
        assert locked[canonicalize_name(requirement.name)] in requirement.specifier, text


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_only_the_nvml_source_imports_pynvml() -> None:
    importers = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "exporter").rglob("*.py")
        if any(name.split(".")[0] == "pynvml" for name in imports(file))
    }
    assert importers == {"exporter/wattline/gpus/nvml/calls.py"}


def test_the_exporter_never_imports_its_tests_or_tools() -> None:
    ours = {"tests", "tools", "dashboards", "alerts"}
    for file in (ROOT / "exporter").rglob("*.py"):
        assert not ours & {name.split(".")[0] for name in imports(file)}, file


def test_what_the_exporter_imports_is_what_the_project_asks_for() -> None:
    import sys

    modules = {
        "markdown-it-py": "markdown_it",
        "pyyaml": "yaml",
        "nvidia-ml-py": "pynvml",
        "prometheus-client": "prometheus_client",
    }
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    asked = {
        Requirement(text).name for texts in (PROJECT["project"]["dependencies"], *extras.values()) for text in texts
    }
    imported = {name.split(".")[0] for file in (ROOT / "exporter").rglob("*.py") for name in imports(file)}
    third_party = imported - sys.stdlib_module_names - {"wattline"}
    # aiohttp speaks yarl and multidict in its own interface and cannot be had without them.
    assert third_party - {"yarl", "multidict"} == {modules.get(name, name) for name in asked}


def test_an_engines_metric_names_stand_in_its_table_only() -> None:
    """Beside the table only the simulation knows them: it serves such a text."""
    hits = lines_with(r"[\"']sglang[:_]\w", ".py", under="exporter/")
    assert hits, "the table itself"
    strangers = [
        hit
        for hit in hits
        if not hit.startswith(("exporter/wattline/engines/sglang.py", "exporter/wattline/simulation/"))
    ]
    assert not strangers


@cache
def published() -> frozenset[str]:
    """Names of all series that the exporter can publish."""
    names = {families.PREFIX + info.name for info in (families.GPU_INFO, families.ENGINE_INFO)}
    tables: tuple[tuple[families.Family[Any], ...], ...] = (
        families.GPU_FAMILIES,
        families.ENGINE_FAMILIES,
        families.DEPLOYMENT_FAMILIES,
        families.SOURCE_FAMILIES,
        families.SNAPSHOT_FAMILIES,
        families.PRICE_FAMILIES,
    )
    for table in tables:
        names |= {families.PREFIX + family.name + "_total" * family.counter for family in table}
    histograms = {families.PREFIX + families.POWER_FRACTION[0]}
    for metric in Registry().registry.collect():
        if metric.type == "histogram":
            histograms.add(metric.name)
        else:
            names.add(metric.name + "_total" * (metric.type == "counter"))
    names |= {name + suffix for name in histograms for suffix in ("_bucket", "_sum", "_count")}
    return frozenset(name for name in names if name.startswith(families.PREFIX))


OPTIONAL = {"wattline_deployment_incident_info"}
"""Published by exporters that record incidents; a message has no link to one otherwise."""


def unknown_metrics(text: str) -> set[str]:
    """Names of series in a text that the exporter does not publish; ``wattline_gpu_*`` stands for all of a kind."""
    named = set(re.findall(r"(?<![\w:./-])wattline_[a-z0-9_]+(?![\w:])(?!\.\w)", text))
    families_of_histograms = {name.removesuffix("_bucket") for name in published() if name.endswith("_bucket")}
    known = published() | families_of_histograms | OPTIONAL
    return {
        name
        for name in named
        if name not in known and not (name.endswith("_") and any(k.startswith(name) for k in known))
    }


WITH_METRICS = sorted(
    str(file)
    for file, text in texts().items()
    if file.parts[0] in {"alerts", "dashboards", "docs", "deploy", "README.md", "CONTRIBUTING.md", "docker-compose.yml"}
    and file.suffix in {".md", ".yml", ".yaml", ".json", ".py", ".tmpl", ".in"}
    and "wattline_" in text
)


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    assert unknown_metrics("rate(wattline_gpu_energy_joules_total[5m])") == set()
    assert unknown_metrics("wattline_gpu_*, wattline_gpu_power_fraction_bucket") == set()
    assert unknown_metrics("sum by (gpu) (wattline_gpu_energy_joules)") == {"wattline_gpu_energy_joules"}
    assert unknown_metrics("`wattline_gpu_volts`") == {"wattline_gpu_volts"}


@pytest.mark.parametrize("file", WITH_METRICS)
def test_every_metric_named_is_published(file: str) -> None:
    assert not unknown_metrics(texts()[Path(file)])


def test_what_is_made_from_something_else_is_current() -> None:
    """Else run ``make generate``."""
    assert [str(path.relative_to(ROOT)) for path, _ in generate.old()] == []


def test_the_metric_reference_names_every_series() -> None:
    named = set(re.findall(r"^\| `(wattline_\w+)`", metrics_reference.reference(), re.MULTILINE))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in published()} == named


MARKDOWN = sorted(str(file) for file in texts() if file.suffix == ".md")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+\s+(.+?)\s*$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("file", MARKDOWN)
def test_every_link_within_the_repository_leads_somewhere(file: str) -> None:
    text = without_code((ROOT / file).read_text())
    for link in re.findall(r"\]\(\s*<?([^)\s>]+)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / file).parent / path if path else ROOT / file
        assert target.exists(), link
        assert ROOT in target.resolve().parents, link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), link


def test_the_changelog_tells_of_this_version() -> None:
    assert re.search(rf"^## \[{re.escape(__version__)}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


SCRIPTS = sorted(str(file) for file, text in texts().items() if text.startswith("#!"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize(
    "script", [script for script in SCRIPTS if re.match(r"#!.*\bb?a?sh\b", texts()[Path(script)].splitlines()[0])]
)
def test_a_shell_script_stops_at_the_first_fault(script: str) -> None:
    assert re.search(r"^set -e", texts()[Path(script)], re.MULTILINE)


def test_tests_reach_nothing_but_loopback() -> None:
    """The guard of tests/conftest.py holds."""
    for reach in (socket.socket.bind, socket.socket.connect):
        with socket.socket() as stranger, pytest.raises(PermissionError, match="beyond loopback"):
            reach(stranger, ("192.0.2.1", 9))
    with socket.socket() as everywhere, pytest.raises(PermissionError, match="beyond loopback"):
        everywhere.bind(("", 0))


def test_tests_do_not_sleep_to_wait() -> None:
    """Asking a started server again every few hundredths of a second is no sleep; hoping that a second is enough is."""
    assert not lines_with(r"\btime\.sleep\((?!0?\.0\d)", ".py", under="tests/")


def test_every_exception_from_a_rule_has_its_reason() -> None:
    # A plain number in the code (PLR2004) is its own reason.
    bare = lines_with(
        r"#\s*noqa(?!:)|#\s*noqa:\s*+(?!PLR2004$)[A-Z0-9, ]+$|#\s*type:\s*ignore(?!\[)", ".py", under="exporter/"
    )
    assert not bare
