"""What the metrics port answers (docs/reference/http.md#metrics-port)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_fakes import FakeExchange, HttpReply

from trireme.api.metrics.collector import MetricsApplication
from trireme.engine.metrics.family import MetricFamily


class OneGauge:
    """Counts how often it was collected."""

    def __init__(self) -> None:
        self.collected = 0

    def collect(self) -> Iterator[MetricFamily]:
        self.collected += 1
        yield MetricFamily("g", "help", "gauge", self.collected)


async def ask(application: MetricsApplication, method: str, path: str) -> HttpReply:
    exchange = FakeExchange(method, path)
    await application(exchange)
    return HttpReply(exchange)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
async def test_the_metrics_as_they_are_now(path: str) -> None:
    application = MetricsApplication(OneGauge())
    for expected in (b"1", b"2"):
        reply = await ask(application, "GET", path)
        assert (reply.status, reply.media) == (200, "text/plain; charset=utf-8")
        assert reply.body == b"# HELP g help\n# TYPE g gauge\ng " + expected + b"\n"


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/v2/health/live"])
async def test_any_other_path_is_empty(path: str) -> None:
    collector = OneGauge()
    reply = await ask(MetricsApplication(collector), "GET", path)
    assert (reply.status, reply.media, reply.body) == (200, "text/plain; charset=utf-8", b"")
    assert collector.collected == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_only_get_is_allowed(method: str) -> None:
    reply = await ask(MetricsApplication(OneGauge()), method, "/metrics")
    assert (reply.status, reply.media, reply.error) == (405, "text/plain", "Method Not Allowed")


async def test_head_is_refused_without_a_body() -> None:
    reply = await ask(MetricsApplication(OneGauge()), "HEAD", "/metrics")
    assert (reply.status, reply.body) == (405, b"")
