"""From a configuration with ``auto`` to one without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.discovery.host import Host, Namespace, conditions, uuid
from wattline.config import Config, Deployment, parse
from wattline.discovery.resolve import REMEMBER_SECONDS, Discoverer, Resolution
from wattline.readings import GpuCondition

GLM = ("--model-path", "/models/GLM-5", "--enable-metrics")
QWEN = ("--model-path", "/models/Qwen3", "--enable-metrics")
AUTO = "deployments: [{engines: auto, gpus: auto}]"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def discoverer(host: Host) -> Discoverer:
    return Discoverer(host.root)


def shown(resolution: Resolution) -> dict[str, tuple[dict[str, str], list[int | str]]]:
    """By deployment: its engines' addresses by name, and its GPUs by index where they are there."""
    index = {uuid(n): n for n in range(16)}
    found = {}
    for d in resolution.config.deployments:
        assert not isinstance(d.engines, str)
        assert isinstance(d.gpus, tuple)
        engines = {e.name: e.url.removeprefix("http://").removesuffix("/metrics") for e in d.engines}
        found[d.name] = (engines, [index.get(str(g), g) for g in d.gpus])
    return found


def blind(resolution: Resolution) -> list[str]:
    return [n.kind for n in resolution.notes if n.blind]


def test_each_server_is_a_deployment_named_after_its_model(host: Host, discoverer: Discoverer) -> None:
    a = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
    b = host.sglang(300, ["TP0", "TP1"], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
    resolution = discoverer.resolve(parse(AUTO, "f"), conditions([[a[0]], [a[1]], [b[0]], [b[1]]]))
    assert shown(resolution) == {
        "GLM-5": ({"GLM-5": "127.0.0.1:30000"}, [0, 1]),
        "Qwen3": ({"Qwen3": "127.0.0.1:30001"}, [2, 3]),
    }
    assert resolution.notes == ()


def test_what_was_found_is_a_whole_configuration(host: Host, discoverer: Discoverer) -> None:
    """Everything else of it stays as configured."""
    a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
    config = parse(f"{AUTO}\nwindow: 90s", "f")
    found = discoverer.resolve(config, conditions([a])).config
    assert replace(found, deployments=()) == replace(config, deployments=())


def test_two_servers_of_one_model_differ_by_port_and_keep_their_names(host: Host, discoverer: Discoverer) -> None:
    config = parse(AUTO, "f")
    second = host.sglang(300, [""], *GLM, "--port", "30001", listens=[("127.0.0.1", 30001)])
    assert list(shown(discoverer.resolve(config, conditions([second])))) == ["GLM-5"]
    first = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
    both = shown(discoverer.resolve(config, conditions([second, first])))
    assert both == {
        "GLM-5": ({"GLM-5": "127.0.0.1:30001"}, [0]),
        "GLM-5:30000": ({"GLM-5:30000": "127.0.0.1:30000"}, [1]),
    }


def test_without_a_model_the_port_is_the_name(host: Host, discoverer: Discoverer) -> None:
    pids = host.sglang(100, [""], "--config", "s.yaml", "--enable-metrics", listens=[("127.0.0.1", 30000)])
    assert list(shown(discoverer.resolve(parse(AUTO, "f"), conditions([pids])))) == ["sglang:30000"]


def test_a_server_restarted_on_other_gpus_is_followed_under_its_name(host: Host, discoverer: Discoverer) -> None:
    config = parse(AUTO, "f")
    old = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
    assert shown(discoverer.resolve(config, conditions([[old[0]], [old[1]], [], []], memory=0)))["GLM-5"][1] == [0, 1]
    host.end(100, 191, *old)
    host.network.sockets.clear()
    new = host.sglang(500, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
    again = discoverer.resolve(config, conditions([[], [], [new[0]], [new[1]]], t=130, memory=0))
    assert shown(again) == {"GLM-5": ({"GLM-5": "127.0.0.1:30000"}, [2, 3])}


def test_a_new_pod_of_the_same_server_keeps_the_name(host: Host, discoverer: Discoverer) -> None:
    config = parse(AUTO, "f")
    every = "0.0.0.0"  # noqa: S104
    pods = [Namespace(f"net:[{n}]", {"eth0": f"10.244.1.{n}"}) for n in (11, 12, 13)]
    a = host.sglang(100, [""], *GLM, listens=[(every, 30000)], network=pods[0])
    b = host.sglang(300, [""], *GLM, listens=[(every, 30000)], network=pods[1])
    before = shown(discoverer.resolve(config, conditions([a, b])))
    assert before == {
        "GLM-5": ({"GLM-5": "10.244.1.11:30000"}, [0]),
        "GLM-5:30000": ({"GLM-5:30000": "10.244.1.12:30000"}, [1]),
    }
    host.end(300, 391, *b)
    c = host.sglang(500, [""], *GLM, listens=[(every, 30000)], network=pods[2])
    after = shown(discoverer.resolve(config, conditions([a, c], t=130)))
    assert after["GLM-5:30000"] == ({"GLM-5:30000": "10.244.1.13:30000"}, [1])
    assert after["GLM-5"] == before["GLM-5"]


class TestGone:
    """A crashed server must be seen to be down, not vanish."""

    def test_it_keeps_its_place_for_an_hour(self, host: Host, discoverer: Discoverer) -> None:
        config = parse(AUTO, "f")
        pids = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        before = discoverer.resolve(config, conditions([pids]))
        host.end(100, 191, *pids)
        after = discoverer.resolve(config, conditions([[]], t=100 + REMEMBER_SECONDS, memory=0))
        assert after.config == before.config
        assert [(n.kind, n.blind) for n in after.notes] == [("gone", False)]
        forgotten = discoverer.resolve(config, conditions([[]], t=101 + REMEMBER_SECONDS, memory=0))
        assert forgotten.config.deployments == ()

    def test_another_server_on_its_gpu_takes_the_place(self, host: Host, discoverer: Discoverer) -> None:
        config = parse(AUTO, "f")
        pids = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        discoverer.resolve(config, conditions([pids]))
        host.end(100, 191, *pids)
        new = host.sglang(300, [""], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
        assert list(shown(discoverer.resolve(config, conditions([new], t=130)))) == ["Qwen3"]

    def test_what_was_known_is_known_before_the_next_look(self, host: Host, discoverer: Discoverer) -> None:
        config = parse(AUTO, "f")
        pids = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        assert discoverer.known(config, {}).config.deployments == ()
        found = discoverer.resolve(config, conditions([pids])).config
        assert discoverer.known(config, {}).config == found


class TestSharedGpu:
    def test_two_servers_on_one_gpu_are_one_deployment_with_all_their_gpus(
        self, host: Host, discoverer: Discoverer
    ) -> None:
        a = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
        b = host.sglang(300, [""], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
        c = host.sglang(500, [""], *QWEN, "--port", "30002", listens=[("127.0.0.1", 30002)])
        resolution = discoverer.resolve(parse(AUTO, "f"), conditions([[a[0]], [a[1], b[0]], c]))
        assert shown(resolution) == {
            "GLM-5": ({"GLM-5": "127.0.0.1:30000", "Qwen3": "127.0.0.1:30001"}, [0, 1]),
            "Qwen3:30002": ({"Qwen3:30002": "127.0.0.1:30002"}, [2]),
        }
        assert [(n.kind, n.blind) for n in resolution.notes] == [("shared_gpu", False)]
        assert "GLM-5 and Qwen3 share a GPU" in resolution.notes[0].text


def test_a_part_of_the_gpus_is_marked_as_such(host: Host, discoverer: Discoverer) -> None:
    """The deployment names what is missing; the analysis then derives nothing from the rest."""
    pids = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
    resolution = discoverer.resolve(parse(AUTO, "f"), conditions([pids[:1]]))
    assert shown(resolution)["GLM-5"][1] == [0]
    assert resolution.unplaced == {"GLM-5": ("sglang::scheduler_TP1",)}
    assert blind(resolution) == ["unplaced"]


class TestNoGpusConfigured:
    """``auto`` where the driver tells which processes are the engines', ``all`` where not; and which it was is told."""

    ONE = "deployments: [{name: d, engines: [{url: 'http://localhost:30000'}]}]"

    def found(self, discoverer: Discoverer, told: Mapping[str, GpuCondition]) -> tuple[object, str]:
        resolution = discoverer.resolve(parse(self.ONE, "f"), told)
        assert blind(resolution) == [], "nothing that is configured needs discovery"
        (text,) = [note.text for note in resolution.notes if note.kind == "choice"]
        return resolution.config.deployments[0].gpus, text

    def test_a_server_on_one_gpu_of_two_has_that_one(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        gpus, text = self.found(discoverer, conditions([[], a], memory=0))
        assert gpus == (uuid(1),)
        assert text == "d: no gpus are configured; those of the engines' processes are taken (auto)"

    def test_another_server_on_the_host_is_left_out(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
        b = host.sglang(300, [""], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
        assert self.found(discoverer, conditions([b, [a[0]], [a[1]]]))[0] == (uuid(1), uuid(2))

    def test_before_the_engine_has_started_all_are_taken(self, host: Host, discoverer: Discoverer) -> None:
        gpus, text = self.found(discoverer, conditions([[], []], memory=0))
        assert gpus == "all"
        assert text.startswith("d: no gpus are configured; all are taken, because the driver does not tell which")
        assert text.endswith(" are those of localhost:30000")
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        assert self.found(discoverer, conditions([[], a], memory=0))[0] == (uuid(1),)

    def test_a_server_that_has_ended_keeps_its_gpus(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        self.found(discoverer, conditions([[], a], memory=0))
        assert self.found(discoverer, conditions([[], []], memory=0))[0] == (uuid(1),)

    def test_in_a_process_namespace_of_its_own_all_are_taken(self, tmp_path: Path) -> None:
        host = Host(tmp_path / "apart", pid_namespace="pid:[4026532999]")
        assert self.found(Discoverer(host.root), conditions([[], [4711]], memory=0))[0] == "all"

    def test_where_a_process_may_not_be_looked_at_all_are_taken(self, host: Host, discoverer: Discoverer) -> None:
        """It may be one of the server's."""
        a = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
        host.forbid(a[1], "stat", "cmdline")
        assert self.found(discoverer, conditions([[a[0]], [a[1]]]))[0] == "all"

    def test_where_one_of_two_engines_is_elsewhere_all_are_taken(self, host: Host, discoverer: Discoverer) -> None:
        """The GPUs of the other one may be any: a part of them would be wrong."""
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        two = "deployments: [{name: d, engines: [{url: 'http://localhost:30000'}, {url: 'http://10.0.0.9:30000'}]}]"
        assert discoverer.resolve(parse(two, "f"), conditions([[], a], memory=0)).config.deployments[0].gpus == "all"

    def test_where_a_gpu_holds_memory_of_nobody_all_are_taken(self, host: Host, discoverer: Discoverer) -> None:
        """It may be the server's, in a container whose processes the driver hides."""
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        assert self.found(discoverer, conditions([[], a]))[0] == "all"

    def test_found_engines_are_on_auto(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        resolution = discoverer.resolve(parse("deployments: [{engines: auto}]", "f"), conditions([[], a], memory=0))
        assert shown(resolution) == {"GLM-5": ({"GLM-5": "127.0.0.1:30000"}, [1])}


class TestHalfAuto:
    def test_gpus_auto_are_those_of_the_named_engine(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
        b = host.sglang(300, [""], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
        config = parse("deployments: [{name: big, engines: [{url: 'http://localhost:30000'}], gpus: auto}]", "f")
        resolution = discoverer.resolve(config, conditions([b, [a[0]], [a[1]]]))
        assert shown(resolution) == {"big": ({"localhost:30000": "localhost:30000"}, [1, 2])}

    def test_a_named_engine_that_is_not_found_has_no_gpu_and_that_is_told(
        self, host: Host, discoverer: Discoverer
    ) -> None:
        config = parse("deployments: [{name: big, engines: [{url: 'http://localhost:30000'}], gpus: auto}]", "f")
        resolution = discoverer.resolve(config, conditions([[]], memory=0))
        assert shown(resolution)["big"][1] == []
        assert blind(resolution) == ["no_server"]

    def test_engines_auto_are_those_on_the_listed_gpus(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        b = host.sglang(300, [""], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
        config = parse(
            "deployments: [{name: left, engines: auto, gpus: [0]}, {name: rest, engines: auto, gpus: all}]", "f"
        )
        resolution = discoverer.resolve(config, conditions([a, b]), {"left": (uuid(0),)})
        engines = {d.name: [e.name for e in d.engines if not isinstance(e, str)] for d in resolution.config.deployments}
        assert engines == {"left": ["GLM-5"], "rest": ["Qwen3"]}
        assert [d.gpus for d in resolution.config.deployments] == [(0,), "all"]

    def test_a_server_that_uses_further_gpus_is_refused(self, host: Host, discoverer: Discoverer) -> None:
        """Its tokens would be divided by a part of its power."""
        a = host.sglang(100, ["TP0", "TP1"], *GLM, listens=[("127.0.0.1", 30000)])
        config = parse("deployments: [{name: left, engines: auto, gpus: [0]}]", "f")
        resolution = discoverer.resolve(config, conditions([[a[0]], [a[1]]]), {"left": (uuid(0),)})
        assert resolution.config.deployments[0].engines == ()
        assert "foreign_gpus" in blind(resolution)

    def test_found_servers_leave_alone_what_others_name(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        b = host.sglang(300, [""], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
        c = host.sglang(500, [""], *QWEN, "--port", "30002", listens=[("127.0.0.1", 30002)])
        config = parse(
            "deployments: [{engines: auto, gpus: auto}, {name: mine, engines: [{url: 'http://127.0.0.1:30000'}], "
            f"gpus: [{uuid(0)}]}}, {{name: odd, engines: [{{url: 'http://other:1'}}], gpus: [{uuid(1)}]}}]",
            "f",
        )
        resolution = discoverer.resolve(config, conditions([a, b, c]))
        assert [(d.name, d.gpus) for d in resolution.config.deployments] == [
            ("Qwen3:30002", (uuid(2),)),
            ("mine", (uuid(0),)),
            ("odd", (uuid(1),)),
        ]
        assert blind(resolution) == ["foreign_gpus"]

    def test_a_name_makes_one_deployment_of_everything_found(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        b = host.sglang(300, [""], *QWEN, "--port", "30001", listens=[("127.0.0.1", 30001)])
        config = parse("deployments: [{name: node, engines: auto, gpus: auto}]", "f")
        found = shown(discoverer.resolve(config, conditions([a, b])))
        assert found == {"node": ({"GLM-5": "127.0.0.1:30000", "Qwen3": "127.0.0.1:30001"}, [0, 1])}

    def test_found_names_give_way_to_configured_ones(self, host: Host, discoverer: Discoverer) -> None:
        a = host.sglang(100, [""], *GLM, listens=[("127.0.0.1", 30000)])
        config = parse(
            "deployments: [{engines: auto, gpus: auto}, "
            f"{{name: GLM-5, engines: [{{url: 'http://far:1'}}], gpus: [{uuid(1)}]}}]",
            "f",
        )
        assert [d.name for d in discoverer.resolve(config, conditions([a, []], memory=0)).config.deployments] == [
            "GLM-5:30000",
            "GLM-5",
        ]


def test_a_follower_reads_the_head_without_counting_tokens(host: Host, discoverer: Discoverer) -> None:
    options = (*GLM, "--node-rank", "1", "--dist-init-addr", "10.0.0.6:5000", "--enable-dp-attention")
    pids = host.sglang(100, ["DP1_TP1"], *options, listens=[("127.0.0.1", 30000)])
    (deployment,) = discoverer.resolve(parse(AUTO, "f"), conditions([pids])).config.deployments
    assert [(e.name, e.url, e.count_tokens) for e in deployment.engines if not isinstance(e, str)] == [
        ("GLM-5", "http://10.0.0.6:30000/metrics", False),
        ("GLM-5/1", "http://127.0.0.1:30000/metrics", True),
    ]


def test_a_configuration_without_auto_stays_as_it_is(host: Host, discoverer: Discoverer) -> None:
    config = Config(deployments=(Deployment(gpus="all"),))
    assert discoverer.resolve(config, conditions([[]], memory=0)).config == config
