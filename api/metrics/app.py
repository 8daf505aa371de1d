"""The metrics endpoint (docs/reference/http.md#metrics-port)."""

from __future__ import annotations

from prometheus_client.registry import Collector

from ...engine.metrics.page import write_text
from ..http.errors import method_not_allowed
from ..http.exchange import TEXT, Answer, Exchange

_PATHS = (b"/metrics", b"/metrics/")
_PAGE = TEXT + b"; charset=utf-8"


class MetricsApplication:
    """Answers GET with the metrics; every path is known, and all but /metrics are empty."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.method != "GET":
            await exchange.respond(method_not_allowed(TEXT))
            return
        text = write_text(self._collector.collect()) if exchange.path in _PATHS else ""
        await exchange.respond(Answer(200, _PAGE, text.encode()))
