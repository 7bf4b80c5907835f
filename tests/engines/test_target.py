"""The address of an engine and its settings: defaults, and what is refused with which words."""

from __future__ import annotations

import pytest

from wattline.engines.scrape import EngineTarget


@pytest.mark.parametrize(
    ("url", "kind", "full", "name"),
    [
        ("http://127.0.0.1:30000", None, "http://127.0.0.1:30000/metrics", "127.0.0.1:30000"),
        ("http://engine:30000/", None, "http://engine:30000/metrics", "engine:30000"),
        ("http://engine/metrics", None, "http://engine/metrics", "engine:80"),
        ("https://engine/metrics?a=b", None, "https://engine/metrics?a=b", "engine:443"),
        ("http://[::1]:30000/m", None, "http://[::1]:30000/m", "[::1]:30000"),
        ("http://engine:8000", "tensorrt_llm", "http://engine:8000/prometheus/metrics", "engine:8000"),
        ("http://engine:8000/x", "tensorrt_llm", "http://engine:8000/x", "engine:8000"),
    ],
)
def test_path_and_name_have_defaults(url: str, kind: str | None, full: str, name: str) -> None:
    target = EngineTarget("", url, kind=kind)
    assert (target.url, target.name, target.source) == (full, name, f"engine:{name}")
    assert EngineTarget("mine", url).name == "mine"


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:30000", "engine", "ftp://engine/", "http://", "http://e:99999/", "http://["]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected an address such as http://"):
        EngineTarget("e", url)


def test_a_password_in_the_address_is_refused_without_being_repeated() -> None:
    with pytest.raises(ValueError, match="no user or password") as caught:
        EngineTarget("e", "http://me:s3cret@engine:30000/metrics")
    assert "s3cret" not in str(caught.value)


def test_an_unknown_kind_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"sglang, vllm, .*, found 'sgl'"):
        EngineTarget("e", "http://engine:30000", kind="sgl")


def test_two_sources_of_a_token_are_refused() -> None:
    with pytest.raises(ValueError, match="found both"):
        EngineTarget("e", "http://engine:30000", bearer_token_file="/run/token", bearer_token_env="TOKEN")
