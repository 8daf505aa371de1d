"""Everything a server can tell, as metric families in the order in which they are printed; and the endpoint that prints
them (docs/reference/http.md#metrics-port)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ...engine.clock import Clock, SystemClock
from ...engine.errors import TriremeError
from ...engine.metrics.access import access_families
from ...engine.metrics.adaptive import adaptive_families
from ...engine.metrics.encoding import encoding_families
from ...engine.metrics.families import (
    HostReadings,
    cpu_families,
    gpu_families,
    latency_families,
    model_families,
    pinned_memory_families,
    sealed_families,
)
from ...engine.metrics.family import MetricFamily
from ...engine.metrics.generation import generation_families
from ...engine.metrics.page import DEFAULT_QUANTILES, Scrape, Section, write_text
from ...engine.metrics.refusals import refused_families
from ..access import AccessChecks, needed
from ..http.exchange import JSON, TEXT, Answer, Exchange, error_answer, method_not_allowed

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from ...engine.description import ModelActorStatistics


class ServerCollector:
    """Collects from a server whenever it is asked; can be registered with any prometheus-client registry.

    Args:
        host: reads the machine; called at each collection.
        counter_latencies: see `model_families`.
        quantiles: what summaries show, of those models that keep them.
        clock: the server's, if that is not the machine's.
    """

    def __init__(
        self,
        server: InferenceServer,
        host: Callable[[], HostReadings],
        *,
        counter_latencies: bool = True,
        quantiles: Sequence[float] = DEFAULT_QUANTILES,
        clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._host = host
        self._counter_latencies = counter_latencies
        self._quantiles = tuple(quantiles)
        self._clock = clock or SystemClock()

    def describe(self) -> Iterable[MetricFamily]:
        """No names in advance: a registry would collect once to learn them."""
        return ()

    def collect(self) -> Iterator[MetricFamily]:
        entries = self._server.statistics() if self._server.started else []
        added = self._server.metrics
        scrape = Scrape(entries, self._clock.now_ns(), self._counter_latencies, self._quantiles)
        host = self._host()
        gpu_uuids = host.gpu_uuids
        yield from model_families(entries, counter_latencies=self._counter_latencies, gpu_uuids=gpu_uuids)
        yield from pinned_memory_families(host)
        yield from added.families(Section.MODEL_COUNTERS, scrape)
        yield from latency_families(entries, self._quantiles, scrape.now_ns, gpu_uuids)
        yield from added.families(Section.SUMMARIES, scrape)
        yield from gpu_families(host.gpus)
        yield from cpu_families(host.cpu)
        yield from added.families(Section.LAST, scrape)
        yield from sealed_families(entries)
        yield from refused_families(entries, self._server.refusal_statistics())
        if self._server.access is not None:
            yield from access_families(self._server.access.control)
        yield from adaptive_families(entries)
        yield from generation_families(entries)
        yield from encoding_families(entries)
        yield from _instance_families(self._server.model_statistics())
        budget = self._server.budget_statistics()
        yield MetricFamily(
            "trireme_inflight_requests", "Number of requests accepted and not yet answered", "gauge", budget.requests
        )
        yield MetricFamily("trireme_inflight_bytes", "Size of their inputs, in bytes", "gauge", budget.bytes)


def _instance_families(models: Iterable[ModelActorStatistics]) -> Iterator[MetricFamily]:
    alive = MetricFamily("trireme_instance_count", "Number of instances that can execute batches", "gauge")
    restarts = MetricFamily(
        "trireme_instance_restart_count", "Number of times that an instance died and was replaced", "counter"
    )
    for model in models:
        namespace = {"namespace": model.namespace} if model.namespace else {}
        labels = {**namespace, "model": model.name, "version": str(model.version)}
        alive.add(labels, model.instances_alive)
        restarts.add(labels, model.restarts)
    yield alive
    yield restarts


_PATHS = (b"/metrics", b"/metrics/")
_PAGE = TEXT + b"; charset=utf-8"


class Collector(Protocol):
    def collect(self) -> Iterable[MetricFamily]: ...


class Pages(Protocol):
    """Answers paths of its own."""

    def covers(self, path: bytes) -> bool: ...
    async def __call__(self, exchange: Exchange) -> None: ...


class MetricsApplication:
    """Answers GET with the metrics; every path is known, and all but /metrics and the console's are empty.

    Args:
        access: finds out who asks; None if anyone may.
        console: answers under ``/console``; None if there is none.
    """

    def __init__(self, collector: Collector, access: AccessChecks | None = None, console: Pages | None = None) -> None:
        self._collector = collector
        self._access = access
        self._console = console

    async def __call__(self, exchange: Exchange) -> None:
        if self._console is not None and self._console.covers(exchange.path):
            await self._console(exchange)
            return
        if self._access is not None:
            need, name = needed("metrics"), "GET /metrics"
            try:
                await self._access.authorise(exchange.identity(), "metrics", need, name, exchange.address)
            except TriremeError as error:
                await exchange.respond(error_answer(error, JSON))
                return
        if exchange.method != "GET":
            await exchange.respond(method_not_allowed(TEXT))
            return
        await exchange.respond(Answer(200, _PAGE, self.page() if exchange.path in _PATHS else b""))

    def page(self) -> bytes:
        """The metrics as they are now."""
        return write_text(self._collector.collect()).encode()
