"""The metrics endpoint as an ASGI application (docs/reference/http.md#metrics-port)."""

from __future__ import annotations

from prometheus_client.registry import Collector

from ...engine.metrics.page import write_text
from ..http.asgi import Message, Receive, Scope, Send

_PATHS = (b"/metrics", b"/metrics/")


class MetricsApplication:
    """Answers GET with the metrics; every path is known, and all but /metrics are empty."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            text = write_text(self._collector.collect()) if scope["raw_path"] in _PATHS else ""
            await _answer(send, {"status": 200}, b"text/plain; charset=utf-8", text.encode())
        else:
            body = b'{"error":"Method Not Allowed"}'
            start: Message = {"status": 405, "reason": b"Not Allowed"}
            await _answer(send, start, b"text/plain", body, with_body=scope["method"] != "HEAD")


async def _answer(send: Send, start: Message, media: bytes, body: bytes, *, with_body: bool = True) -> None:
    headers = [(b"Content-Type", media), (b"Content-Length", b"%d" % len(body))]
    await send({"type": "http.response.start", "headers": headers, **start})
    await send({"type": "http.response.body", "body": body if with_body else b""})
