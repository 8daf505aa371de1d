"""A collector of OpenTelemetry's on a loopback port: it takes OTLP over HTTP and parses what comes."""

from __future__ import annotations

import gzip
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came over the wire; identities in hexadecimal, times in nanoseconds since the Unix epoch."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    start_ns: int
    end_ns: int
    scope: str
    resource: dict[str, Any]


@dataclass
class Receiver:
    """What has come, and how it is answered.

    Attributes:
        answers: statuses for the next exports; 200 when there are none left.
        gate: answers wait for it.
    """

    url: str = ""
    answers: list[int] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    exports: queue.Queue[list[ReceivedSpan]] = field(default_factory=queue.Queue)
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    attempts: int = 0

    def spans(self, patience_s: float = 60.0) -> list[ReceivedSpan]:
        """Those of the next export that was answered with 200."""
        return self.exports.get(timeout=patience_s)


def _values(attributes: Any) -> dict[str, Any]:
    def value(one: KeyValue) -> Any:
        kind = one.value.WhichOneof("value")
        return None if kind is None else getattr(one.value, kind)

    return {one.key: value(one) for one in attributes}


def _parse(body: bytes) -> list[ReceivedSpan]:
    message = ExportTraceServiceRequest.FromString(body)
    return [
        ReceivedSpan(
            span.name,
            span.kind,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.trace_state,
            _values(span.attributes),
            [(event.name, event.time_unix_nano) for event in span.events],
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            scoped.scope.name,
            _values(resource.resource.attributes),
        )
        for resource in message.resource_spans
        for scoped in resource.scope_spans
        for span in scoped.spans
    ]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver at work."""
    receiver = Receiver()
    receiver.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.attempts += 1
            receiver.asked.release()
            receiver.gate.wait(30)
            status = receiver.answers.pop(0) if receiver.answers else 200
            if status == 200 and self.path == "/v1/traces":
                receiver.exports.put(_parse(body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
