"""The pods of this node that serve a model, as Kubernetes' API server tells them: the only file that asks it.

One list of the pods that run on this node is read, with the service account of this exporter's own pod. Anybody who may
start a pod may write annotations, so none of them names an address: only a port, a path and a scheme at the pod's own.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from wattline.discovery.sockets import host_and_port
from wattline.engines.target import bad_name

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts the token and the authority of the API server."""
PORT = "wattline.io/port"
"""The annotation that makes a pod an engine: the port of its metrics."""
PATH = "wattline.io/path"
SCHEME = "wattline.io/scheme"
DEPLOYMENT = "wattline.io/deployment"
NAMES = ("app.kubernetes.io/instance", "app.kubernetes.io/name", "app")
"""Labels that say what a pod is one of; the first that it has."""
TIMEOUT_SECONDS = 5.0
MAX_BODY_BYTES = 64 * 2**20

_GOOD_PATH = re.compile(r"/[A-Za-z0-9._~/-]{0,200}")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with an engine in it."""

    uid: str
    name: str
    """With its namespace, as in ``inference/glm5-0``: unique in the cluster."""
    deployment: str
    """By its annotation; else its namespace and the label that it shares with its like."""
    port: int
    url: str


class PodsError(Exception):
    """The API server did not tell; the message says why, and what helps."""


class _Metadata(Struct):
    name: str
    namespace: str
    uid: str
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class _Status(Struct, rename={"pod_ip": "podIP"}):
    phase: str = ""
    pod_ip: str = ""


class _Item(Struct):
    metadata: _Metadata
    status: _Status


class _List(Struct):
    items: list[_Item]


class ApiServer:
    """Kubernetes' API server, seen from within a pod.

    Args:
        account: folder with ``token`` and ``ca.crt``.
        environment: variables; the kubelet sets where the server is, the chart the name of the node.
    """

    def __init__(self, account: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> None:
        self._account = account
        self._environment = environment

    def pods(self) -> tuple[tuple[Pod, ...], tuple[str, ...]]:
        """The engines that run on this node in the order of their names, and what is wrong with annotations. Blocks.

        Raises:
            PodsError: the list could not be had.
        """
        node = self._variable("NODE_NAME", "set it from the field spec.nodeName")
        query = urlencode({"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}, quote_via=quote)
        try:
            listed = msgspec.json.decode(self._get(f"/api/v1/pods?{query}"), type=_List)
        except msgspec.MsgspecError as error:
            raise PodsError(f"the API server's answer is no list of pods ({error})") from None
        found, problems = [], []
        for item in sorted(listed.items, key=lambda i: (i.metadata.namespace, i.metadata.name)):
            if PORT in item.metadata.annotations and item.status.phase == "Running" and item.status.pod_ip:
                try:
                    found.append(_pod(item))
                except ValueError as error:
                    problems.append(f"pod {item.metadata.namespace}/{item.metadata.name}: {error}")
        return tuple(found), tuple(problems)

    def _variable(self, name: str, hint: str) -> str:
        value = self._environment.get(name)
        if not value:
            raise PodsError(f"the variable {name} is not set: {hint}")
        return value

    def _get(self, path: str) -> bytes:
        host = self._variable("KUBERNETES_SERVICE_HOST", "this is no pod")
        port = self._environment.get("KUBERNETES_SERVICE_PORT", "443")
        try:
            # Both are renewed while the pod lives.
            token = (self._account / "token").read_text("ascii").strip()
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except (OSError, UnicodeError) as error:
            raise PodsError(f"no service account is mounted at {self._account} ({type(error).__name__})") from None
        # Follows no redirect, which would carry the token away.
        connection = http.client.HTTPSConnection(host, int(port), timeout=TIMEOUT_SECONDS, context=context)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.FORBIDDEN:
                raise PodsError("the API server answers 403: the service account may not list pods (ClusterRole)")
            if answer.status != http.HTTPStatus.OK:
                raise PodsError(f"the API server answers {answer.status}")
            body = answer.read(MAX_BODY_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PodsError(f"the API server at {host_and_port(host, int(port))} is not reached ({error})") from None
        finally:
            connection.close()
        if len(body) > MAX_BODY_BYTES:
            raise PodsError(f"the API server's answer is longer than {MAX_BODY_BYTES >> 20} MiB")
        return body


def _pod(item: _Item) -> Pod:
    """Raises ValueError where an annotation is not as it must be."""
    told, labels = item.metadata.annotations, item.metadata.labels
    port = told[PORT]
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{PORT}: expected a port, found {port[:20]!r}")
    if (scheme := told.get(SCHEME, "http")) not in ("http", "https"):
        raise ValueError(f"{SCHEME}: expected http or https, found {scheme[:20]!r}")
    if not _GOOD_PATH.fullmatch(path := told.get(PATH, "/metrics")):
        raise ValueError(f"{PATH}: expected a path such as /metrics, found {path[:60]!r}")
    shared = next((labels[label] for label in NAMES if labels.get(label)), item.metadata.name)
    name = told.get(DEPLOYMENT, f"{item.metadata.namespace}/{shared}"[:128])
    if DEPLOYMENT in told and (problem := bad_name(name)):
        raise ValueError(f"{DEPLOYMENT}: {problem}")
    return Pod(
        uid=item.metadata.uid,
        name=f"{item.metadata.namespace}/{item.metadata.name}",
        deployment=name,
        port=int(port),
        url=f"{scheme}://{host_and_port(item.status.pod_ip, int(port))}{path}",
    )
