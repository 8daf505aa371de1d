"""The metrics of a gateway (docs/gateway.md#metrics). Those of models are their replicas'."""

from __future__ import annotations

from collections.abc import Iterator

from ..engine.metrics.access import access_families
from ..engine.metrics.family import MetricFamily
from ..engine.metrics.refusals import refused_families
from .server import FleetServer

STATES = ("joining", "starting", "ready", "draining", "lost")


class FleetCollector:
    """Collects whenever it is asked; see `api.metrics.collector`."""

    def __init__(self, server: FleetServer) -> None:
        self._server = server

    def collect(self) -> Iterator[MetricFamily]:
        server = self._server
        replicas = server.replicas.values()
        state = MetricFamily("trireme_fleet_replica_state", "1 for the state that a replica is in", "gauge")
        inflight = MetricFamily("trireme_fleet_inflight_requests", "Number of requests at a replica", "gauge")
        ends = MetricFamily(
            "trireme_fleet_requests_total", "Number of requests sent to a replica, by outcome", "counter"
        )
        retries = MetricFamily(
            "trireme_fleet_retries_total", "Number of requests sent to a replica after another refused them", "counter"
        )
        ejected = MetricFamily(
            "trireme_fleet_replica_ejected", "1 while a replica that fails gets nothing new", "gauge"
        )
        sequences = MetricFamily("trireme_fleet_sequences", "Number of sequences that are at a replica", "gauge")
        known = server.router.statistics(server.clock.now_s())
        for replica in replicas:
            labels = {"replica": replica.name}
            for each in STATES:
                state.add({**labels, "state": each}, int(each == replica.state))
            inflight.add(labels, replica.sent)
            for end, count in replica.ends.items():
                ends.add({**labels, "outcome": end.value}, count)
            retries.add(labels, replica.retries)
            if replica.name in known:
                ejected.add(labels, int(known[replica.name].ejected))
                sequences.add(labels, known[replica.name].sequences)
        yield from (state, ejected, inflight, sequences, ends, retries)
        yield MetricFamily(
            "trireme_fleet_waiting_requests", "Number of requests that wait for a replica", "gauge", server.waiting
        )
        yield from refused_families((), server.refusals.counts)
        if server.access is not None:
            yield from access_families(server.access.control)
        budget = server.budget_statistics()
        yield MetricFamily(
            "trireme_inflight_requests", "Number of requests accepted and not yet answered", "gauge", budget.requests
        )
        yield MetricFamily("trireme_inflight_bytes", "Size of their inputs, in bytes", "gauge", budget.bytes)
