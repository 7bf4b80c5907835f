"""As much of Docker's engine as Compose needs to start a bundle: it remembers what is asked for, and runs nothing."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

API_VERSION = "1.44"
SERVICE = "com.docker.compose.service"


@dataclass
class Engine:
    """What there is, and what was asked for."""

    images: set[str]
    """Those that need not be pulled."""
    registry: set[str] = field(default_factory=set)
    """Those that can be."""
    no_gpus: bool = False
    """A container that asks for a device cannot start."""
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    networks: dict[str, dict[str, Any]] = field(default_factory=dict)
    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    """Services, in their order."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, asked: dict[str, str], body: Any) -> tuple[int, Any]:
        """Do what is asked for; 404 for what is not known."""
        with self.lock:
            for pattern, action in ROUTES:
                if match := re.fullmatch(pattern, f"{method} {path}"):
                    answered: tuple[int, Any] = action(self, asked, body, *map(unquote, match.groups()))
                    return answered
        return _missing(f"{method} {path}")

    def image(self, _asked: dict[str, str], _body: Any, name: str) -> tuple[int, Any]:
        known = {image for image in self.images if name in (image, image.removeprefix("docker.io/"))}
        return (HTTPStatus.OK, {"Id": f"sha256:{name}", "RepoTags": [name], "Config": {}}) if known else _missing(name)

    def pull(self, asked: dict[str, str], _body: Any) -> tuple[int, Any]:
        name = f"{asked['fromImage']}:{asked['tag']}"
        self.pulled.append(name)
        if name not in self.registry:
            return _missing(name)
        self.images.add(name)
        return HTTPStatus.OK, {"status": "Downloaded newer image"}

    def create(self, asked: dict[str, str], body: Any) -> tuple[int, Any]:
        number = f"{next(self.numbers):064x}"
        self.containers[number] = {
            "Id": number,
            "Name": f"/{asked['name']}",
            "Names": [f"/{asked['name']}"],
            "Image": body["Image"],
            "Labels": body["Labels"],
            "State": {"Status": "created", "ExitCode": 0},
            "Config": body,
            "HostConfig": body["HostConfig"],
            "NetworkSettings": {"Networks": {}},
            "Mounts": [],
        }
        return HTTPStatus.CREATED, {"Id": number, "Warnings": []}

    def start(self, _asked: dict[str, str], _body: Any, number: str) -> tuple[int, Any]:
        container = self.containers[number]
        if self.no_gpus and container["HostConfig"].get("DeviceRequests"):
            said = 'could not select device driver "nvidia" with capabilities: [[gpu utility]]'
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"message": said}
        self.started.append(container["Labels"][SERVICE])
        once = container["HostConfig"]["RestartPolicy"]["Name"] == "no"
        container["State"] = {"Status": "exited" if once else "running", "Running": not once, "ExitCode": 0}
        return HTTPStatus.NO_CONTENT, None

    def listed(self, asked: dict[str, str], _body: Any) -> tuple[int, Any]:
        labels = _filters(asked).get("label", {})
        found = [
            each | {"State": each["State"]["Status"], "Status": "", "ImageID": each["Image"]}
            for each in self.containers.values()
            if all(_has(each["Labels"], label) for label in labels)
        ]
        return HTTPStatus.OK, found

    def inspected(self, _asked: dict[str, str], _body: Any, name: str) -> tuple[int, Any]:
        found = [each for each in self.containers.values() if name in (each["Id"], each["Name"].strip("/"))]
        return (HTTPStatus.OK, found[0]) if found else _missing(name)

    def network(self, _asked: dict[str, str], _body: Any, name: str) -> tuple[int, Any]:
        found = [each for each in self.networks.values() if name in (each["Id"], each["Name"])]
        return (HTTPStatus.OK, found[0]) if found else _missing(name)

    def create_network(self, _asked: dict[str, str], body: Any) -> tuple[int, Any]:
        number = f"{next(self.numbers):064x}"
        self.networks[number] = {"Id": number, "Name": body["Name"], "Driver": "bridge", "Labels": body["Labels"]}
        return HTTPStatus.CREATED, {"Id": number}

    def volume(self, _asked: dict[str, str], _body: Any, name: str) -> tuple[int, Any]:
        return (HTTPStatus.OK, self.volumes[name]) if name in self.volumes else _missing(name)

    def create_volume(self, _asked: dict[str, str], body: Any) -> tuple[int, Any]:
        self.volumes[body["Name"]] = {"Name": body["Name"], "Driver": "local", "Labels": body["Labels"]}
        return HTTPStatus.CREATED, self.volumes[body["Name"]]


def _fixed(value: Any) -> Any:
    return lambda *_: (HTTPStatus.OK, value)


ROUTES: tuple[tuple[str, Any], ...] = (
    (r"(?:GET|HEAD) /_ping", _fixed("OK")),
    (r"GET /version", _fixed({"Version": "27.0.0", "ApiVersion": API_VERSION, "MinAPIVersion": "1.24", "Os": "linux"})),
    (r"GET /info", _fixed({"ID": "engine", "OSType": "linux", "Driver": "overlay2", "DriverStatus": []})),
    (r"GET /images/(.+)/json", Engine.image),
    (r"POST /images/create", Engine.pull),
    (r"GET /containers/json", Engine.listed),
    (r"POST /containers/create", Engine.create),
    (r"POST /containers/(\w+)/start", Engine.start),
    (r"GET /containers/(.+)/json", Engine.inspected),
    (r"GET /networks", lambda self, *_: (HTTPStatus.OK, list(self.networks.values()))),
    (r"POST /networks/create", Engine.create_network),
    (r"POST /networks/(?:.+)/connect", lambda *_: (HTTPStatus.OK, None)),
    (r"GET /networks/(.+)", Engine.network),
    (r"POST /volumes/create", Engine.create_volume),
    (r"GET /volumes/(.+)", Engine.volume),
)


def _missing(what: str) -> tuple[int, Any]:
    return HTTPStatus.NOT_FOUND, {"message": f"there is no {what}"}


def _filters(asked: dict[str, str]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(asked.get("filters", "{}"))
    return read


def _has(labels: dict[str, str], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in labels and (not equals or labels[name] == value)


@contextmanager
def serving(engine: Engine, socket: Path) -> Iterator[None]:
    """Answer on a socket."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = urlsplit(self.path)
            status, value = engine.answer(
                self.command,
                re.sub(r"^/v\d+\.\d+", "", asked.path),
                {name: values[0] for name, values in parse_qs(asked.query).items()},
                json.loads(body) if body else None,
            )
            text = b"" if value is None or self.command == "HEAD" else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("API-Version", API_VERSION)
            self.send_header("OSType", "linux")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_HEAD = do_POST = handle_any  # noqa: N815 - the base class calls them so

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: object) -> None:
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    server = Server(str(socket), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
