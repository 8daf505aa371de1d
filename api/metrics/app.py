"""The metrics endpoint as an ASGI application (http.md §9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client.registry import Collector

from ...engine.metrics_text import write_text

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_PATHS = ("/metrics", "/metrics/")


class MetricsApplication:
    """Answers GET with the metrics; every path is known, and all but /metrics are empty."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "GET":
            await _answer(send, 405, b"text/plain", b'{"error":"Method Not Allowed"}')
            return
        text = write_text(self._collector.collect()) if scope["path"] in _PATHS else ""
        await _answer(send, 200, b"text/plain; charset=utf-8", text.encode())


async def _answer(send: Send, status: int, media: bytes, body: bytes) -> None:
    headers = [(b"content-type", media), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
