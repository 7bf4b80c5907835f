"""Texts of real servers, beside what the client that drove them had counted itself."""

from __future__ import annotations

import pytest

from tests.engines.texts import reading, real


@pytest.mark.parametrize(
    ("name", "finished", "seconds", "generated", "prompt", "cached"),
    [
        # 1,271 requests; SGLang's decoded tokens leave out the first of each, 382,729 + 1,271 are all.
        ("sglang_0.5.23_just_after_64", 1_271, 16_921.0, 384_000, 79_664, 1_828),
        ("vllm_0.32.0_cpu_idle_after", 4_033, 1_822.5, 403_600, 261_032, 0),
        # Of 1,649 answers half were not streamed: the counter of single tokens has 164,800 of these.
        ("dynamo_1.6.1_frontend_idle_after", 1_649, 4_029.5, 330_400, 53_005, 0),
        # llama.cpp tells nothing of finished requests.
        ("llamacpp_0.7.0_b11669_long_idle_after", None, None, 276_400, 18_559, 29_484),
    ],
)
def test_what_was_asked_for_is_what_is_counted(
    name: str, finished: float | None, seconds: float | None, generated: float, prompt: float, cached: float
) -> None:
    result = reading(real(name))
    assert result.finished_requests == finished
    assert result.request_seconds == (seconds if seconds is None else pytest.approx(seconds, abs=0.1))
    assert (result.generation_tokens, result.prompt_tokens, result.cached_prompt_tokens) == (generated, prompt, cached)


def test_an_engine_that_counts_its_operations_tells_them() -> None:
    result = reading(real("vllm_0.32.0_cpu_idle_after"))
    assert (result.flops, result.read_bytes, result.write_bytes) == (0, 0, 0)
    assert reading(real("dynamo_1.6.1_frontend_idle_after")).flops is None


def test_a_sleeping_vllm_is_told_from_one_that_is_awake() -> None:
    awake = real("vllm_0.32.0_cpu_idle_after")
    assert reading(awake).asleep is False
    assert reading(awake.replace(b'sleep_state="awake"} 1.0', b'sleep_state="awake"} 0.0')).asleep is True
    assert reading(real("sglang_0.5.23_just_after_64")).asleep is None
