"""What belongs together is what labels say, and nothing else."""

from __future__ import annotations

from wattline.audit.find import Inventory, engines, gpus, join

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"


def power(uuid: str, **labels: str) -> dict[str, str]:
    return {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": uuid, **labels}


def engine(instance: str, **labels: str) -> list[dict[str, str]]:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total")
    return [{"__name__": n, "job": "vllm", "instance": instance, **labels} for n in names]


def test_the_pod_that_uses_a_gpu_counts_before_its_host() -> None:
    found = Inventory(
        gpus([power(A, pod="m-0", namespace="ns", Hostname="n1"), power(B, pod="m-1", namespace="ns", Hostname="n1")]),
        engines([*engine("10.0.0.7:8000", pod="m-0", namespace="ns", node="n1")]),
    )
    (joined,), lonely, unserved = join(found)
    assert (joined.name, joined.by, [g.uuid for g in joined.gpus]) == ("ns/m-0", "pod", [A])
    assert (lonely, [g.uuid for g in unserved]) == ([], [B])


def test_engines_of_one_host_share_its_gpus_and_strangers_are_listed() -> None:
    found = Inventory(
        gpus([power(A, Hostname="n1.example"), power(B, Hostname="n2")]),
        engines([*engine("n1:8000"), *engine("n1:8001"), *engine("n9:8000")]),
    )
    (joined,), lonely, unserved = join(found)
    assert ([e.name for e in joined.engines], [g.uuid for g in joined.gpus]) == (["vllm/n1:8000", "vllm/n1:8001"], [A])
    assert ([e.name for e in lonely], [g.uuid for g in unserved]) == (["vllm/n9:8000"], [B])


def test_a_rule_of_the_user_wins() -> None:
    found = Inventory(gpus([power(A, rack="r1", Hostname="n1")]), engines(engine("n1:8000", zone="r2")))
    assert join(found, [("zone", "rack")])[0] == []
    found = Inventory(gpus([power(A, rack="r1", Hostname="n1")]), engines(engine("n7:8000", zone="r1")))
    assert [d.by for d in join(found, [("zone", "rack")])[0]] == ["--join"]


def test_a_gpu_that_two_exporters_show_is_one() -> None:
    nvitop = {"__name__": "gpu_power_usage_W", "uuid": A, "hostname": "n1"}
    smi = {"__name__": "nvidia_smi_power_draw_watts", "uuid": B.removeprefix("GPU-")}
    found = gpus([nvitop, power(A), smi])
    assert {u: g.source.name for u, g in found.items()} == {A: "dcgm-exporter", B: "nvidia_gpu_exporter"}


def test_two_replicas_of_a_prometheus_are_one_target() -> None:
    told = [s | {"prometheus_replica": r} for s in engine("n1:8000") for r in ("a", "b")]
    (found,) = engines(told).values()
    assert "prometheus_replica" not in found.labels
