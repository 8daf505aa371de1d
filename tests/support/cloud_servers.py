"""The front ends of cloud platforms over a real server, on a loopback port, and a plain client of them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from loop_thread import Opened, call_from_thread, loop_thread
from serve_process import PATIENCE_S

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.options import ServerOptions


@dataclass(frozen=True)
class CloudReply:
    """What came back; `media` is its Content-Type."""

    status: int
    media: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        document = self.json
        assert list(document) == ["error"], document
        return document["error"]


@contextmanager
def connected(port: int) -> Iterator[http.client.HTTPConnection]:
    """A connection for `ask`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        yield connection
    finally:
        connection.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str) -> CloudReply:
    """One request; a body that is no bytes is sent as JSON. In names of headers ``_`` stands for ``-``."""
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, content, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    given = {name.lower(): value for name, value in response.getheaders()}
    return CloudReply(response.status, given.get("content-type", ""), given, response.read())


def call(port: int, method: str, path: str, body: Any = None, **headers: str) -> CloudReply:
    """One request on a connection of its own; see `ask`."""
    with connected(port) as connection:
        return ask(connection, method, path, body, **headers)


@dataclass(frozen=True)
class CloudServer:
    """A server that has one front end. `run` calls a function on its event loop."""

    port: int
    server: InferenceServer
    run: Callable[..., Any]

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> CloudReply:
        """See the function."""
        return call(self.port, method, path, body, **headers)


@contextmanager
def serving_cloud(
    repository: Path, make: Callable[[InferenceServer], HttpApplication], **options: Any
) -> Iterator[CloudServer]:
    """Serve a repository by the front end that `make` makes; `options` are those of the server."""

    async def serve(opened: Opened[CloudServer]) -> None:
        async with (
            InferenceServer(ServerOptions(model_repository=(repository,), **options)) as server,
            trio.open_nursery() as nursery,
        ):
            service = HttpService(make(server), ServiceOptions(("127.0.0.1:0",)))
            (port,) = await nursery.start(service.serve)
            await opened(CloudServer(port, server, call_from_thread()))
            service.close()

    with loop_thread(serve) as live:
        yield live


VALUES = [0.5 * each for each in range(16)]


def fp32(values: list[float] | None = None, **members: Any) -> dict[str, Any]:
    """A request to ``identity_fp32``."""
    data = VALUES if values is None else values
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(data)], "data": data}
    return {"inputs": [tensor], **members}
