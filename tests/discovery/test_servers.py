"""From recorded process trees to servers, ranks and GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tests.discovery.host import Host, Namespace, conditions, uuid
from wattline.discovery.processes import ProcessTable
from wattline.discovery.servers import Endpoint, Note, Server, find_servers

GLM = ("--model-path", "/models/GLM-5-FP4", "--enable-metrics")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def look(host: Host, pids: list[list[int] | None], memory: float = 90e9) -> tuple[tuple[Server, ...], tuple[Note, ...]]:
    return find_servers(ProcessTable(host.root), conditions(pids, memory=memory))


def one(host: Host, pids: list[list[int] | None]) -> Server:
    (server,), notes = look(host, pids)
    assert [n for n in notes if n.blind] == []
    return server


def test_tensor_parallel_8_has_one_rank_on_each_gpu(host: Host) -> None:
    ranks = [f"TP{n}" for n in range(8)]
    pids = host.sglang(100, ranks, *GLM, "--tp-size", "8", listens=[("127.0.0.1", 30000)])
    server = one(host, [[pid] for pid in pids])
    assert server.gpus == {uuid(n): (f"TP{n}",) for n in range(8)}
    assert server.endpoints == (Endpoint("http://127.0.0.1:30000/metrics"),)
    assert (server.kind, server.model, server.port, server.pid) == ("sglang", "GLM-5-FP4", 30000, 100)


def test_data_parallel_8_of_one_gpu_each_is_one_server_above_its_controller(host: Host) -> None:
    ranks = [f"DP{n}" for n in range(8)]
    pids = host.sglang(100, ranks, *GLM, "--dp-size", "8", listens=[("0.0.0.0", 30000)], controller=True)  # noqa: S104
    server = one(host, [[pid] for pid in pids])
    assert server.gpus == {uuid(n): (f"DP{n}",) for n in range(8)}
    assert server.endpoints[0].url == "http://127.0.0.1:30000/metrics"


def test_pipeline_of_two_stages_with_four_ranks_each(host: Host) -> None:
    ranks = [f"PP{p} TP{t}".replace(" ", "_") for p in range(2) for t in range(4)]
    pids = host.sglang(100, ranks, *GLM, "--pp-size", "2", "--tp-size", "4", listens=[("127.0.0.1", 30000)])
    server = one(host, [[pid] for pid in pids])
    assert server.gpus[uuid(0)] == ("PP0 TP0",)
    assert server.gpus[uuid(5)] == ("PP1 TP1",)
    assert len(server.gpus) == 8


def test_two_servers_of_four_gpus_are_told_apart(host: Host) -> None:
    ranks = [f"TP{n}" for n in range(4)]
    first = host.sglang(100, ranks, *GLM, "--tp", "4", listens=[("127.0.0.1", 30000)])
    second = host.sglang(300, ranks, *GLM, "--tp", "4", "--port", "30001", listens=[("127.0.0.1", 30001)])
    # NVML's order of GPUs has nothing to do with the servers' order.
    (a, b), notes = look(host, [[pid] for pair in zip(second, first, strict=True) for pid in pair])
    assert (a.port, set(a.gpus)) == (30000, {uuid(n) for n in (1, 3, 5, 7)})
    assert (b.port, set(b.gpus)) == (30001, {uuid(n) for n in (0, 2, 4, 6)})
    assert notes == ()


def test_one_gpu_has_no_rank_in_its_title(host: Host) -> None:
    pids = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
    assert one(host, [pids]).gpus == {uuid(0): ()}


@pytest.mark.parametrize(
    ("argv", "listens", "kind", "model", "url"),
    [
        (
            ["/usr/bin/python3", "/usr/local/bin/sglang", "serve", "--model-path=zai-org/GLM-5", "--port=31000"],
            [("127.0.0.1", 31000), ("127.0.0.1", 31999)],
            "sglang",
            "GLM-5",
            "http://127.0.0.1:31000/metrics",
        ),
        (
            ["python", "-u", "/src/sglang/launch_server.py", "--served-model-name", "chat", "--model-path", "x/y"],
            [("10.0.0.7", 30000)],
            "sglang",
            "chat",
            "http://10.0.0.7:30000/metrics",
        ),
        (
            ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--grpc-mode", "--port", "30000"],
            [("127.0.0.1", 30000), ("127.0.0.1", 30001)],
            "sglang",
            "m",
            "http://127.0.0.1:30001/metrics",
        ),
        (
            ["/opt/venv/bin/python3.12", "/opt/venv/bin/vllm", "serve", "/m", "--served_model_name", "Qwen3-8B"],
            [("0.0.0.0", 8000)],  # noqa: S104
            "vllm",
            "Qwen3-8B",
            "http://127.0.0.1:8000/metrics",
        ),
        (
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m/models--a--b-7B/snapshots/0f3c"],
            [("::", 8000)],
            "vllm",
            "b-7B",
            "http://[::1]:8000/metrics",
        ),
        (
            ["vllm", "serve", "m", "--port", "8443", "--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem"],
            [("127.0.0.1", 8443)],
            "vllm",
            "m",
            "https://127.0.0.1:8443/metrics",
        ),
        (
            ["/usr/bin/python3", "/usr/local/bin/trtllm-serve", "nvidia/Llama-4", "--port", "8100"],
            [("127.0.0.1", 8100)],
            "tensorrt_llm",
            "Llama-4",
            "http://127.0.0.1:8100/prometheus/metrics",
        ),
        (
            ["/app/llama-server", "-m", "/models/qwen3-8b.Q4_K_M.gguf", "--metrics"],
            [("127.0.0.1", 8080)],
            "llamacpp",
            "qwen3-8b.Q4_K_M",
            "http://127.0.0.1:8080/metrics",
        ),
    ],
)
def test_every_way_to_start_a_server_is_recognised(
    host: Host, argv: list[str], listens: list[tuple[str, int]], kind: str, model: str, url: str
) -> None:
    host.start(100, 1, argv, listens=listens)
    host.start(101, 100, ["VLLM::EngineCore"], gpu=True)
    server = one(host, [[101]])
    assert (server.kind, server.model, server.endpoints) == (kind, model, (Endpoint(url),))


def test_the_router_of_tgi_listens_for_its_launcher(host: Host) -> None:
    """Its port is set by the environment of the image; the shard's rendezvous port is no API."""
    host.start(100, 1, ["text-generation-launcher", "--model-id", "a/flan"], environment={"PORT": "80"})
    shard = ["/opt/conda/bin/python3.11", "/opt/conda/bin/text-generation-server", "serve", "a/flan"]
    host.start(101, 100, shard, gpu=True, listens=[("127.0.0.1", 29500)])
    host.start(102, 100, ["text-generation-router", "--port", "80"], listens=[("0.0.0.0", 80)])  # noqa: S104
    server = one(host, [[101]])
    assert server.endpoints == (Endpoint("http://127.0.0.1:80/metrics"),)
    assert server.kind == "tgi"


def test_a_dynamo_worker_says_its_port_in_its_environment(host: Host) -> None:
    host.start(
        100,
        1,
        ["python3", "-m", "dynamo.sglang", "--model-path", "a/b"],
        environment={"HF_TOKEN": "secret", "DYN_SYSTEM_PORT": "9090"},
        listens=[("0.0.0.0", 9090), ("0.0.0.0", 40123)],  # noqa: S104
    )
    host.start(101, 100, ["sglang::scheduler"], gpu=True)
    assert one(host, [[101]]).endpoints == (Endpoint("http://127.0.0.1:9090/metrics"),)


def test_a_port_from_a_configuration_file_is_seen_on_the_socket(host: Host) -> None:
    pids = host.sglang(100, ["TP0"], "--config", "server.yaml", listens=[("127.0.0.1", 30555)])
    assert one(host, [pids]).endpoints == (Endpoint("http://127.0.0.1:30555/metrics"),)


def test_of_several_unannounced_ports_none_is_guessed(host: Host) -> None:
    pids = host.sglang(100, [""], "--config", "s.yaml", listens=[("127.0.0.1", 30555), ("127.0.0.1", 30556)])
    servers, notes = look(host, [pids])
    assert servers == ()
    assert [n.kind for n in notes if n.blind] == ["several_ports"]
    assert "30555, 30556" in notes[-1].text


def test_a_server_that_loads_its_weights_is_expected_where_it_will_listen(host: Host) -> None:
    pids = host.sglang(100, [""], *GLM, "--port", "31000", "--host", "10.0.0.7")
    (server,), notes = look(host, [pids])
    assert server.endpoints == (Endpoint("http://10.0.0.7:31000/metrics"),)
    assert [(n.kind, n.blind) for n in notes] == [("not_listening", False)]


def test_a_foreign_address_on_a_command_line_is_not_believed(host: Host) -> None:
    """Anybody can start a process with any command line; this exporter goes nowhere because of it."""
    pids = host.sglang(100, [""], *GLM, "--host", "203.0.113.9")
    (server,), _ = look(host, [pids])
    assert server.endpoints == (Endpoint("http://127.0.0.1:30000/metrics"),)


class TestContainers:
    POD: ClassVar = {"eth0": "10.244.1.23"}

    def test_a_server_in_a_pod_is_reached_at_the_pods_address(self, host: Host) -> None:
        pod = Namespace("net:[4026532999]", self.POD)
        pids = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("0.0.0.0", 30000)], network=pod)  # noqa: S104
        assert one(host, [[p] for p in pids]).endpoints == (Endpoint("http://10.244.1.23:30000/metrics"),)

    def test_an_exporter_in_a_pod_reaches_the_host_at_the_address_of_its_default_route(self, host: Host) -> None:
        pids = host.sglang(100, [""], *GLM, listens=[("0.0.0.0", 30000)])  # noqa: S104
        (host.root / "self" / "ns" / "net").unlink()
        (host.root / "self" / "ns" / "net").symlink_to("net:[4026532111]")
        assert one(host, [pids]).endpoints == (Endpoint("http://10.0.0.7:30000/metrics"),)

    def test_a_server_on_the_loopback_of_its_container_is_said_to_be_out_of_reach(self, host: Host) -> None:
        pod = Namespace("net:[4026532999]", self.POD)
        pids = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)], network=pod)
        servers, notes = look(host, [pids])
        assert servers == ()
        (note,) = [n for n in notes if n.blind]
        assert note.kind == "unreachable"
        assert "start it with --host 0.0.0.0" in note.text

    def test_without_permission_to_see_namespaces_addresses_tell_them_apart(self, host: Host) -> None:
        pod = Namespace("net:[4026532999]", self.POD)
        pids = host.sglang(100, [""], *GLM, listens=[("0.0.0.0", 30000)], network=pod)  # noqa: S104
        host.forbid(100, "ns/net", "fd")
        host.forbid(pids[0], "fd")
        assert one(host, [pids]).endpoints == (Endpoint("http://10.244.1.23:30000/metrics"),)

    def test_a_private_process_namespace_is_told_and_nothing_is_guessed(self, tmp_path: Path) -> None:
        host = Host(tmp_path, pid_namespace="pid:[4026532444]")
        servers, notes = look(host, [[4321], [4322]])
        assert servers == ()
        (note,) = notes
        assert (note.kind, note.blind) == ("pid_namespace", True)
        assert f"process 4321 on {uuid(0)}, process 4322 on {uuid(1)} is not visible" in note.text
        assert "hostPID" in note.text

    def test_the_same_number_in_another_namespace_is_not_taken_for_the_process_on_the_gpu(self, tmp_path: Path) -> None:
        host = Host(tmp_path, pid_namespace="pid:[4026532444]")
        host.sglang(100, [], *GLM, listens=[("127.0.0.1", 30000)])
        host.start(101, 100, ["sglang::scheduler"], gpu=False)
        servers, notes = look(host, [[101]])
        assert servers == ()
        assert [n.kind for n in notes] == ["pid_namespace"]

    def test_memory_without_processes_means_that_the_driver_hides_them(self, host: Host) -> None:
        _, notes = look(host, [[]], memory=60e9)
        assert [(n.kind, n.blind) for n in notes] == [("hidden_processes", True)]

    def test_an_empty_gpu_is_nothing_to_talk_about(self, host: Host) -> None:
        assert look(host, [[]], memory=0.6e9) == ((), ())


class TestWhatCannotBeSeen:
    def test_a_driver_that_does_not_tell_processes(self, host: Host) -> None:
        _, notes = look(host, [None, None])
        assert [(n.kind, n.blind) for n in notes] == [("processes_unknown", True)]
        assert notes[0].text.startswith(f"{uuid(0)}, {uuid(1)} does not tell")

    def test_a_process_that_has_ended_since_nvml_was_asked_is_no_trouble(self, host: Host) -> None:
        assert look(host, [[4321]]) == ((), ())

    def test_hidepid_is_named(self, host: Host) -> None:
        host.end(1)
        _, notes = look(host, [[4321]])
        assert [n.kind for n in notes] == ["hidepid"]

    def test_an_unreadable_process_costs_its_gpu_only(self, host: Host) -> None:
        pids = host.sglang(100, ["TP0"], *GLM, listens=[("127.0.0.1", 30000)])
        host.start(900, 1, ["secret"], gpu=True)
        host.forbid(900, "cmdline")
        (server,), notes = look(host, [pids, [900]])
        assert set(server.gpus) == {uuid(0)}
        assert [(n.kind, n.blind) for n in notes] == [("unreadable", True)]
        assert "/proc/900/cmdline" in notes[0].text

    def test_an_unreadable_ancestor_ends_the_way_up(self, host: Host) -> None:
        pids = host.sglang(100, ["TP0"], *GLM, listens=[("127.0.0.1", 30000)])
        host.forbid(100, "cmdline")
        servers, notes = look(host, [pids])
        assert servers == ()
        assert [n.kind for n in notes] == ["no_server"]

    def test_sockets_that_may_not_be_seen_are_taken_from_the_command_line(self, host: Host) -> None:
        pids = host.sglang(100, ["TP0"], *GLM, listens=[("127.0.0.1", 30000)])
        host.forbid(100, "fd")
        assert one(host, [pids]).endpoints == (Endpoint("http://127.0.0.1:30000/metrics"),)

    def test_schedulers_whose_launcher_has_died_are_told(self, host: Host) -> None:
        host.start(101, 1, ["sglang::scheduler_TP0"], gpu=True)
        _, notes = look(host, [[101]])
        assert [(n.kind, n.blind) for n in notes] == [("no_server", True)]
        assert "process 101 (sglang::scheduler_TP0)" in notes[0].text

    def test_a_training_job_is_named_without_its_arguments(self, host: Host) -> None:
        host.start(200, 1, ["python", "train.py", "--wandb-key", "hunter2"], gpu=True)
        _, notes = look(host, [[200]])
        assert [(n.kind, n.blind) for n in notes] == [("not_a_server", False)]
        assert "train.py" in notes[0].text
        assert "hunter2" not in notes[0].text

    def test_the_daemon_of_mps_is_a_bystander(self, host: Host) -> None:
        host.start(200, 1, ["nvidia-cuda-mps-server"], gpu=True)
        assert look(host, [[200]]) == ((), ())

    def test_metrics_that_were_not_enabled_are_mentioned(self, host: Host) -> None:
        pids = host.sglang(100, [""], "--model-path", "m", listens=[("127.0.0.1", 30000)])
        _, notes = look(host, [pids])
        assert [n.text for n in notes] == ["sglang server (process 100) was started without --enable-metrics"]

    def test_a_rank_on_a_gpu_that_is_not_visible_here_is_told(self, host: Host) -> None:
        pids = host.sglang(100, ["TP0", "TP1"], *GLM, "--tp", "2", listens=[("127.0.0.1", 30000)])
        (server,), _ = look(host, [pids[:1]])
        assert server.unplaced == ("sglang::scheduler_TP1",)

    def test_a_hundred_processes_make_a_short_note(self, host: Host) -> None:
        for n in range(100):
            host.start(200 + n, 1, ["./simulate"], gpu=True)
        _, notes = look(host, [list(range(200, 300))])
        assert len(notes) == 1
        assert "and 96 more" in notes[0].text
        assert len(notes[0].text) < 500


class TestSeveralNodes:
    FOLLOWER = (*GLM, "--tp", "16", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.6:5000")

    def test_a_follower_reads_its_head_and_does_not_count_its_tokens(self, host: Host) -> None:
        pids = host.sglang(100, ["TP8", "TP9"], *self.FOLLOWER, listens=[("0.0.0.0", 30000)])  # noqa: S104
        server = one(host, [[p] for p in pids])
        assert server.endpoints == (Endpoint("http://10.0.0.6:30000/metrics", count_tokens=False),)

    def test_with_dp_attention_a_follower_holds_requests_of_its_own(self, host: Host) -> None:
        options = (*self.FOLLOWER, "--enable-dp-attention")
        pids = host.sglang(100, ["DP1_TP8"], *options, listens=[("0.0.0.0", 30000)])  # noqa: S104
        assert one(host, [pids]).endpoints == (
            Endpoint("http://10.0.0.6:30000/metrics", count_tokens=False),
            Endpoint("http://127.0.0.1:30000/metrics"),
        )

    def test_a_head_counts_its_tokens(self, host: Host) -> None:
        options = (*GLM, "--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "10.0.0.6:5000")
        pids = host.sglang(100, ["TP0"], *options, listens=[("127.0.0.1", 30000)])
        assert one(host, [pids]).endpoints == (Endpoint("http://127.0.0.1:30000/metrics"),)

    def test_a_headless_vllm_follows_the_node_that_it_names(self, host: Host) -> None:
        argv = ["vllm", "serve", "m", "--headless", "--data-parallel-address", "node1", "-dp", "4"]
        host.start(100, 1, argv)
        host.start(101, 100, ["VLLM::EngineCore_DP2"], gpu=True)
        assert one(host, [[101]]).endpoints == (Endpoint("http://node1:8000/metrics", count_tokens=False),)

    def test_a_follower_that_names_no_head_is_told(self, host: Host) -> None:
        pids = host.sglang(100, ["TP8"], *GLM, "--node-rank", "1", listens=[("127.0.0.1", 30000)])
        servers, notes = look(host, [pids])
        assert servers == ()
        assert [(n.kind, n.blind) for n in notes] == [("no_head", True)]
