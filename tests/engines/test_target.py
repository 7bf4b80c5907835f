"""The address of an engine and its settings: defaults, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattline.engines.target import Engine

HERE = Path("/etc/wattline")


@pytest.mark.parametrize(
    ("url", "kind", "full", "name"),
    [
        ("http://127.0.0.1:30000", None, "http://127.0.0.1:30000/metrics", "127.0.0.1:30000"),
        ("http://engine:30000/", None, "http://engine:30000/metrics", "engine:30000"),
        ("http://engine/metrics", None, "http://engine/metrics", "engine"),
        ("https://engine/metrics?a=b", None, "https://engine/metrics?a=b", "engine"),
        ("http://[::1]:30000/m", None, "http://[::1]:30000/m", "[::1]:30000/m"),
        ("http://engine:8000", "tensorrt_llm", "http://engine:8000/prometheus/metrics", "engine:8000"),
        ("http://engine:8000/x", "tensorrt_llm", "http://engine:8000/x", "engine:8000/x"),
    ],
)
def test_path_and_name_have_defaults(url: str, kind: str | None, full: str, name: str) -> None:
    engine = Engine(url=url, kind=kind).completed(HERE)
    assert (engine.url, engine.name, engine.source) == (full, name, f"engine:{name}")
    assert list(engine.problems()) == []
    assert Engine(url=url, name="mine").completed(HERE).name == "mine"


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        *(
            ({"url": url}, "url", "expected an address such as http://")
            for url in ("", "127.0.0.1:30000", "engine", "ftp://engine/", "http://", "http://e:99999/", "http://[")
        ),
        ({"url": "http://me:s3cret@engine:30000/metrics"}, "url", "expected no user or password"),
        ({"url": "http://engine", "kind": "sgl"}, "kind", "expected one of sglang, vllm, "),
        ({"url": "http://engine", "bearer_token_file": "t", "bearer_token_env": "T"}, "bearer_token_env", "found both"),
    ],
)
def test_what_is_wrong_is_told_by_its_key_and_without_a_secret(settings: dict[str, str], key: str, words: str) -> None:
    ((found, problem),) = Engine(**settings).completed(HERE).problems()  # type: ignore[arg-type]
    assert found == key
    assert words in problem
    assert "s3cret" not in problem
