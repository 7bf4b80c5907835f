"""Engines that are pods: what the API server tells, and what is made of it."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.discovery.host import Host, conditions, uuid
from tests.discovery.test_real_processes import METRICS, Gpus, until
from tests.engines.servers import Request, Server, answer
from tests.engines.test_tls import serving
from wattline.config import Config, Deployment, parse
from wattline.discovery import periodic
from wattline.discovery.pods import ApiServer, Pod, PodsError
from wattline.discovery.processes import ProcessTable
from wattline.discovery.resolve import Discoverer, Resolution
from wattline.session import Session

UID = "6f2e8a44-1b7c-4c53-9f0e-2d9f3f1f0a0{}"
PODS = "deployments: [{engines: pods, gpus: all}]"
PLACED = "deployments: [{engines: pods, gpus: auto}]"


def item(number: int, name: str, *, ip: str = "10.1.0.5", phase: str = "Running", **annotations: str) -> dict[str, Any]:
    """As the API server writes a pod, without most of it; further keys are annotations of ours."""
    told = {f"wattline.io/{key}": value for key, value in annotations.items()}
    labels = {"app.kubernetes.io/instance": "glm5", "app.kubernetes.io/name": "sglang"}
    status = {"phase": phase, "podIP": ip, "conditions": []} if ip else {"phase": phase}
    meta = {"name": name, "namespace": "inference", "uid": UID.format(number), "annotations": told, "labels": labels}
    return {"metadata": meta, "spec": {"nodeName": "gpu-7"}, "status": status}


def listing(*items: dict[str, Any]) -> bytes:
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}).encode()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def account(authority: trustme.CA, tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    (folder / "token").write_text("s3cret\n")
    return folder


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    return serving(authority, "127.0.0.1")


def within(server: Server) -> dict[str, str]:
    """The environment of a pod."""
    return {
        "NODE_NAME": "gpu-7",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }


class TestTheApiServer:
    async def test_it_is_asked_for_the_pods_of_this_node_with_the_account_of_the_pod(
        self, account: Path, tls: ssl.SSLContext
    ) -> None:
        async with Server(answer(listing(item(1, "glm5-0", port="30000"))), tls=tls) as server:
            pods, problems = await asyncio.to_thread(ApiServer(account, within(server)).pods)
        assert pods == (
            Pod(UID.format(1), "inference/glm5-0", "inference/glm5", 30000, "http://10.1.0.5:30000/metrics"),
        )
        assert problems == ()
        (request,) = server.requests
        assert request.line == "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dgpu-7&resourceVersion=0 HTTP/1.1"
        assert request.headers["Authorization"] == "Bearer s3cret"

    @pytest.mark.parametrize(
        ("told", "url", "deployment"),
        [
            ({"port": "8000"}, "http://10.1.0.5:8000/metrics", "inference/glm5"),
            (
                {"port": "8000", "path": "/prometheus/metrics"},
                "http://10.1.0.5:8000/prometheus/metrics",
                "inference/glm5",
            ),
            ({"port": "8000", "scheme": "https"}, "https://10.1.0.5:8000/metrics", "inference/glm5"),
            ({"port": "8000", "deployment": "glm 5"}, "http://10.1.0.5:8000/metrics", "glm 5"),
        ],
    )
    async def test_what_annotations_say(
        self, account: Path, tls: ssl.SSLContext, told: dict[str, str], url: str, deployment: str
    ) -> None:
        async with Server(answer(listing(item(1, "glm5-0", **told))), tls=tls) as server:
            (pod,), _ = await asyncio.to_thread(ApiServer(account, within(server)).pods)
        assert (pod.url, pod.deployment) == (url, deployment)

    async def test_an_ipv6_address_stands_in_brackets(self, account: Path, tls: ssl.SSLContext) -> None:
        async with Server(answer(listing(item(1, "a", ip="fd00::5", port="1"))), tls=tls) as server:
            (pod,), _ = await asyncio.to_thread(ApiServer(account, within(server)).pods)
        assert pod.url == "http://[fd00::5]:1/metrics"

    async def test_only_running_pods_that_are_marked_are_engines(self, account: Path, tls: ssl.SSLContext) -> None:
        items = [
            item(1, "unmarked"),
            item(2, "loading", phase="Pending", port="1"),
            item(3, "done", phase="Succeeded", port="1"),
            item(4, "without-address", ip="", port="1"),
            item(5, "engine", port="1"),
        ]
        async with Server(answer(listing(*items)), tls=tls) as server:
            pods, problems = await asyncio.to_thread(ApiServer(account, within(server)).pods)
        assert [pod.name for pod in pods] == ["inference/engine"]
        assert problems == ()

    @pytest.mark.parametrize(
        ("told", "problem"),
        [
            ({"port": "http"}, "wattline.io/port: expected a port, found 'http'"),
            ({"port": "70000"}, "wattline.io/port: expected a port, found '70000'"),
            ({"port": "²"}, "wattline.io/port: expected a port, found '²'"),
            ({"port": "1", "scheme": "file"}, "wattline.io/scheme: expected http or https, found 'file'"),
            # The pod's own address is the only one: whoever writes annotations sends the exporter nowhere else.
            (
                {"port": "1", "path": "@elsewhere/x"},
                "wattline.io/path: expected a path such as /metrics, found '@elsewhere/x'",
            ),
            ({"port": "1", "deployment": '"x"'}, "wattline.io/deployment: expected a name of up to 64 letters"),
        ],
    )
    async def test_a_wrong_annotation_costs_that_pod_and_is_told(
        self, account: Path, tls: ssl.SSLContext, told: dict[str, str], problem: str
    ) -> None:
        items = [item(1, "wrong", **told), item(2, "right", port="1")]
        async with Server(answer(listing(*items)), tls=tls) as server:
            pods, problems = await asyncio.to_thread(ApiServer(account, within(server)).pods)
        assert [pod.name for pod in pods] == ["inference/right"]
        assert len(problems) == 1
        assert problems[0].startswith(f"pod inference/wrong: {problem}")

    @pytest.mark.parametrize(
        ("reply", "problem"),
        [
            (answer(b"{}", "403 Forbidden"), r"answers 403: the service account may not list pods \(ClusterRole\)"),
            (answer(b"", "500 Internal Server Error"), "answers 500"),
            (answer(b"", "302 Found", Location="https://127.0.0.1:1/"), "answers 302"),
            (answer(b"<html>"), "is no list of pods"),
            (answer(b'{"items": [{"metadata": {"name": 7}}]}'), "is no list of pods"),
            (b"SSH-2.0-OpenSSH_9.6\r\n", "is not reached"),
        ],
    )
    async def test_whatever_else_it_answers_is_told(
        self, account: Path, tls: ssl.SSLContext, reply: bytes, problem: str
    ) -> None:
        async with Server(reply, tls=tls) as server:
            with pytest.raises(PodsError, match=problem):
                await asyncio.to_thread(ApiServer(account, within(server)).pods)

    async def test_another_authority_does_not_get_the_token(self, account: Path) -> None:
        async with Server(answer(listing()), tls=serving(trustme.CA(), "127.0.0.1")) as server:
            with pytest.raises(PodsError, match="is not reached"):
                await asyncio.to_thread(ApiServer(account, within(server)).pods)
        assert server.requests == []

    def test_without_a_cluster_it_says_so(self, account: Path, tmp_path: Path) -> None:
        with pytest.raises(PodsError, match="NODE_NAME is not set"):
            ApiServer(account, {}).pods()
        with pytest.raises(PodsError, match="KUBERNETES_SERVICE_HOST is not set: this is no pod"):
            ApiServer(account, {"NODE_NAME": "gpu-7"}).pods()
        inside = {"NODE_NAME": "gpu-7", "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
        with pytest.raises(PodsError, match="no service account is mounted"):
            ApiServer(tmp_path / "nowhere", inside).pods()


class Told(ApiServer):
    """Tells what it is told to."""

    def __init__(self, *pods: Pod) -> None:
        self.now: tuple[Pod, ...] | PodsError = pods

    def pods(self) -> tuple[tuple[Pod, ...], tuple[str, ...]]:
        if isinstance(self.now, PodsError):
            raise self.now
        return self.now, ()


def pod(number: int, deployment: str = "inference/glm5") -> Pod:
    name = f"{deployment}-{number}"
    return Pod(UID.format(number), name, deployment, 30000, f"http://10.1.0.{number}:30000/metrics")


def group(number: int, *, systemd: bool = True) -> str:
    uid = UID.format(number)
    if systemd:
        kept = uid.replace("-", "_")
        return f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{kept}.slice/cri-containerd-aa.scope"
    return f"/kubepods/burstable/pod{uid}/aa"


def shown(resolution: Resolution) -> dict[str, tuple[list[str], object]]:
    index = {uuid(n): n for n in range(16)}
    return {
        d.name: (
            [e.name for e in d.engines if not isinstance(e, str)],
            d.gpus if not isinstance(d.gpus, tuple) else [index.get(str(g), g) for g in d.gpus],
        )
        for d in resolution.config.deployments
    }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "proc")


class TestWhatIsMadeOfThem:
    def test_all_pods_of_a_deployment_are_its_engines_and_it_has_their_name(self, host: Host) -> None:
        discoverer = Discoverer(host.root, api_server=Told(pod(1), pod(2)))
        found = discoverer.resolve(parse(PODS, "f"), conditions([[], []]))
        assert shown(found) == {"inference/glm5": (["inference/glm5-1", "inference/glm5-2"], "all")}
        assert found.notes == ()

    def test_no_process_is_looked_at_where_all_gpus_are_meant(self, tmp_path: Path) -> None:
        """So no process ids of the host are needed."""
        host = Host(tmp_path / "apart", pid_namespace="pid:[4026532999]")
        found = Discoverer(host.root, api_server=Told(pod(1))).resolve(parse(PODS, "f"), conditions([[4711]]))
        assert found.notes == ()
        assert list(shown(found)) == ["inference/glm5"]

    @pytest.mark.parametrize("systemd", [True, False])
    def test_their_processes_tell_their_gpus(self, host: Host, systemd: bool) -> None:
        for number, pids in ((1, (101, 102)), (2, (201,))):
            for pid in pids:
                host.start(pid, 1, ["sglang::scheduler"], gpu=True, group=group(number, systemd=systemd))
        host.start(300, 1, ["python3", "train.py"], gpu=True)
        api = Told(pod(1), pod(2, "inference/qwen"))
        found = Discoverer(host.root, api_server=api).resolve(
            parse(PLACED, "f"), conditions([[101], [102], [201], [300]])
        )
        assert shown(found) == {
            "inference/glm5": (["inference/glm5-1"], [0, 1]),
            "inference/qwen": (["inference/qwen-2"], [2]),
        }
        assert found.notes == ()

    def test_a_pod_whose_gpus_are_not_known_leaves_nothing_to_derive(self, host: Host) -> None:
        host.start(101, 1, ["sglang::scheduler"], gpu=True, group=group(1))
        found = Discoverer(host.root, api_server=Told(pod(1), pod(2))).resolve(
            parse(PLACED, "f"), conditions([[101], []], memory=0.5e9)
        )
        assert shown(found)["inference/glm5"][1] == [0]
        assert found.unplaced == {"inference/glm5": ("inference/glm5-2",)}
        assert [note.text for note in found.notes if note.blind] == [
            "inference/glm5-2 of inference/glm5 is on no GPU that can be read here (yet)"
        ]

    def test_in_a_process_namespace_of_its_own_it_says_what_it_needs(self, tmp_path: Path) -> None:
        host = Host(tmp_path / "apart", pid_namespace="pid:[4026532999]")
        found = Discoverer(host.root, api_server=Told(pod(1))).resolve(parse(PLACED, "f"), conditions([[4711]]))
        assert "hostPID" in " ".join(note.text for note in found.notes if note.blind)

    def test_listed_gpus_have_the_pods_that_run_on_them(self, host: Host) -> None:
        for number, pid in ((1, 101), (2, 201)):
            host.start(pid, 1, ["sglang::scheduler"], gpu=True, group=group(number))
        text = "deployments: [{name: a, engines: pods, gpus: [0]}, {name: b, engines: pods, gpus: [1]}]"
        api = Told(pod(1, "n/x"), pod(2, "n/y"), pod(3, "n/z"))
        listed = {"a": (uuid(0),), "b": (uuid(1),)}
        found = Discoverer(host.root, api_server=api).resolve(parse(text, "f"), conditions([[101], [201]]), listed)
        assert {name: engines for name, (engines, _) in shown(found).items()} == {"a": ["n/x-1"], "b": ["n/y-2"]}

    def test_a_pod_that_is_deleted_was_meant_to_go(self, host: Host) -> None:
        """Unlike a process that ends, which stays listed as an engine that is down: a drained node pages nobody."""
        api = Told(pod(1), pod(2))
        discoverer = Discoverer(host.root, api_server=api)
        config = parse(PODS, "f")
        discoverer.resolve(config, conditions([[]]))
        api.now = (pod(2),)
        assert shown(discoverer.resolve(config, conditions([[]], t=130.0))) == {
            "inference/glm5": (["inference/glm5-2"], "all")
        }
        api.now = ()
        found = discoverer.resolve(config, conditions([[]], t=160.0))
        assert [d.engines for d in found.config.deployments] == [()]

    def test_while_the_api_server_does_not_answer_nothing_is_forgotten(self, host: Host) -> None:
        api = Told(pod(1))
        discoverer = Discoverer(host.root, api_server=api)
        config = parse(PODS, "f")
        discoverer.resolve(config, conditions([[]]))
        api.now = PodsError("the API server answers 500")
        found = discoverer.resolve(config, conditions([[]], t=9999.0))
        assert shown(found) == {"inference/glm5": (["inference/glm5-1"], "all")}
        assert [(note.text, note.blind) for note in found.notes] == [("the API server answers 500", True)]

    def test_a_name_that_was_given_stays(self, host: Host) -> None:
        text = "deployments: [{name: mine, engines: pods, gpus: all}]"
        found = Discoverer(host.root, api_server=Told(pod(1))).resolve(parse(text, "f"), conditions([[]]))
        assert list(shown(found)) == ["mine"]


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"0::{group(1)}\n", UID.format(1)),
        (f"12:devices:{group(1, systemd=False)}\n0::/\n", UID.format(1)),
        # Seen from a control group namespace of one's own, the path goes up first.
        (f"0::/../..{group(1)}\n", UID.format(1)),
        ("0::/system.slice/docker-0123.scope\n", None),
        ("0::/kubepods/burstable/podshort/aa\n", None),
        ("", None),
    ],
)
def test_the_pod_of_a_process_is_in_its_control_group(host: Host, text: str, uid: str | None) -> None:
    host.start(101, 1, ["x"])
    (host.root / "101" / "cgroup").write_text(text)
    assert ProcessTable(host.root).pod(101) == uid
    assert ProcessTable(host.root).pod(4711) is None


async def test_a_session_scrapes_the_pods_and_follows_them(
    account: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "INTERVAL", 0.05)
    items: list[dict[str, Any]] = []

    async def tell(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        return answer(listing(*items))

    async with Server(answer(METRICS.encode())) as engine, Server(tell, tls=tls) as api:
        items.append(item(1, "glm5-0", ip="127.0.0.1", port=str(engine.port)))
        gpus = Gpus(2)
        config: Config = parse(PODS, "f")
        session = Session(config, gpus, discoverer=Discoverer(api_server=ApiServer(account, within(api))))
        gpus.now = session.clock
        await session.start()
        try:
            seen = await until(session, lambda s: any(e.reading is not None and e.reading.up for e in s.engines))
            assert [d.name for d in seen.deployments] == ["inference/glm5"]
            assert seen.deployments[0].gpus == (uuid(0), uuid(1))
            assert [v.up for v in seen.sources if v.name == "discovery"] == [True]
            items.clear()
            seen = await until(session, lambda s: not any(v.name.startswith("engine:") for v in s.sources))
            assert [d.name for d in seen.deployments] == [Deployment().name]
        finally:
            await session.stop()
