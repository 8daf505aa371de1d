"""What the metrics port answers (docs/reference/http.md#metrics-port)."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trireme.api.metrics.app import MetricsApplication


class OneGauge(Collector):
    """Counts how often it was collected."""

    def __init__(self) -> None:
        self.collected = 0

    def collect(self) -> Iterator[Metric]:
        self.collected += 1
        yield GaugeMetricFamily("g", "help", value=self.collected)


async def ask(application: MetricsApplication, method: str, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    await application({"type": "http", "method": method, "raw_path": path.encode()}, receive, send)
    start, body = messages
    return start["status"], dict(start["headers"]), body["body"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
async def test_the_metrics_as_they_are_now(path: str) -> None:
    application = MetricsApplication(OneGauge())
    for expected in (b"1", b"2"):
        status, headers, body = await ask(application, "GET", path)
        assert status == 200
        assert headers[b"Content-Type"] == b"text/plain; charset=utf-8"
        assert body == b"# HELP g help\n# TYPE g gauge\ng " + expected + b"\n"
        assert headers[b"Content-Length"] == b"%d" % len(body)


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/v2/health/live"])
async def test_any_other_path_is_empty(path: str) -> None:
    collector = OneGauge()
    status, headers, body = await ask(MetricsApplication(collector), "GET", path)
    assert (status, headers[b"Content-Type"], body) == (200, b"text/plain; charset=utf-8", b"")
    assert collector.collected == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_only_get_is_allowed(method: str) -> None:
    status, headers, body = await ask(MetricsApplication(OneGauge()), method, "/metrics")
    assert (status, headers[b"Content-Type"], body) == (405, b"text/plain", b'{"error":"Method Not Allowed"}')


async def test_head_is_refused_without_a_body() -> None:
    status, headers, body = await ask(MetricsApplication(OneGauge()), "HEAD", "/metrics")
    assert (status, headers[b"Content-Length"], body) == (405, b"30", b"")
