"""An API server of Kubernetes that knows EndpointSlices: lists and watches, over TLS, with tokens and roles."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from authority import Authority
from serve_process import PATIENCE_S

SERVICE, NAMESPACE = "replicas", "models"
_KIND = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1"}


def endpoint(name: str, *addresses: str, **conditions: bool) -> dict[str, Any]:
    """A pod's; ready unless `conditions` say otherwise."""
    given = {"ready": True, "serving": True, "terminating": False} | conditions
    return {"addresses": list(addresses), "conditions": given, "targetRef": {"kind": "Pod", "name": name}}


def endpoint_slice(name: str, *endpoints: dict[str, Any], port: int = 8001, kind: str = "IPv4") -> dict[str, Any]:
    """One without a version, with the port `grpc`, and one for metrics."""
    labels = {"kubernetes.io/service-name": SERVICE}
    ports = [{"name": "metrics", "port": 8002, "protocol": "TCP"}, {"name": "grpc", "port": port, "protocol": "TCP"}]
    about = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {**_KIND, "metadata": about, "addressType": kind, "endpoints": list(endpoints), "ports": ports}


def with_version(document: Mapping[str, Any], version: int) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}


class FakeApiServer:
    """See above.

    Attributes:
        tokens: that are accepted.
        verbs: that the role of the service account has.
        asked: verbs of requests that came, accepted or not.
        watching: watches that go on.
    """

    def __init__(self, authority: Authority | None) -> None:
        self.tokens = {"first"}
        self.verbs = {"list", "watch"}
        self.asked: list[str] = []
        self.watching = 0
        self._slices: dict[str, dict[str, Any]] = {}
        self._version = 1
        self._oldest = 0  # versions before this one are forgotten
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._epoch = 0  # of connections
        self._changed = threading.Condition()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.address = f"{'https' if authority else 'http'}://localhost:{self.port}"
        if authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.certificate, authority.key)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    @contextmanager
    def running(self) -> Iterator[FakeApiServer]:
        self._thread.start()
        try:
            yield self
        finally:
            self.disconnect()
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()

    # What happens in the cluster.

    def put(self, document: dict[str, Any]) -> None:
        """A slice is new, or different."""
        name = document["metadata"]["name"]
        with self._changed:
            self._tell("MODIFIED" if name in self._slices else "ADDED", document)
            self._slices[name] = with_version(document, self._version)

    def remove(self, name: str) -> None:
        with self._changed:
            self._tell("DELETED", self._slices.pop(name))

    def bookmark(self) -> None:
        """Other objects have changed: the version goes on."""
        with self._changed:
            self._tell("BOOKMARK", {**_KIND, "metadata": {}})

    def forget(self) -> None:
        """Watches from before now are too old; those that go on are told so."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
            self._history.clear()
            self._changed.notify_all()

    def disconnect(self) -> None:
        """All watches are cut off, in the middle of their answers."""
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def until(self, count: int, verb: str = "watch") -> None:
        """Wait until so many have been asked for."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked.count(verb) >= count, PATIENCE_S), self.asked

    def _tell(self, kind: str, document: dict[str, Any]) -> None:
        self._version += 1
        self._history.append((self._version, {"type": kind, "object": with_version(document, self._version)}))
        self._changed.notify_all()

    # What is asked.

    def refusal(self, verb: str, authorization: str | None) -> tuple[int, str] | None:
        with self._changed:
            self.asked.append(verb)
            self._changed.notify_all()
            if authorization not in {f"Bearer {token}" for token in self.tokens}:
                return 401, "Unauthorized"
            if verb not in self.verbs:
                return 403, f'endpointslices.discovery.k8s.io is forbidden: User "gateway" cannot {verb} resource'
        return None

    def list(self) -> dict[str, Any]:
        with self._changed:
            return {
                "kind": "EndpointSliceList",
                "metadata": {"resourceVersion": str(self._version)},
                "items": list(self._slices.values()),
            }

    def events(self, version: int) -> Iterator[dict[str, Any]]:
        """Until the watch is cut off, or too old."""
        with self._changed:
            epoch = self._epoch
            self.watching += 1
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(partial(self._has_news, epoch, version), PATIENCE_S)
                    if epoch != self._epoch:
                        raise ConnectionAbortedError
                    if version < self._oldest:
                        status = {"kind": "Status", "code": 410, "message": f"too old resource version: {version}"}
                        yield {"type": "ERROR", "object": status}
                        return
                    new = [each for each in self._history if each[0] > version]
                    version = self._version
                yield from (event for _, event in new)
        finally:
            with self._changed:
                self.watching -= 1

    def _has_news(self, epoch: int, version: int) -> bool:
        latest = self._history[-1][0] if self._history else 0
        return epoch != self._epoch or version < max(self._oldest, latest)


def _handler(server: FakeApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing is written."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            assert parts.path == f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
            assert query["labelSelector"] == f"kubernetes.io/service-name={SERVICE}"
            verb = "watch" if query.get("watch") == "1" else "list"
            refused = server.refusal(verb, self.headers["Authorization"])
            if refused is not None:
                self._answer(refused[0], {"kind": "Status", "code": refused[0], "message": refused[1]})
            elif verb == "list":
                self._answer(200, server.list())
            else:
                assert query["allowWatchBookmarks"] == "true"
                assert 300 <= int(query["timeoutSeconds"]) < 600
                self._stream(int(query["resourceVersion"]))

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, version: int) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(ConnectionError, ssl.SSLError):
                for event in server.events(version):
                    line = json.dumps(event).encode() + b"\n"
                    middle = len(line) // 2  # events come in pieces
                    for piece in (line[:middle], line[middle:]):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

    return Handler


def write_account(folder: Path, authority: Authority, token: str = "first") -> None:
    """As a pod has it."""
    (folder / "namespace").write_text(NAMESPACE)
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(authority.root.read_bytes())
