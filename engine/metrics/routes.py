"""Where requests for routes went, and how rollouts go. Labels come from the routes alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..routing.record import RouteRecord
from ..routing.rollout import RolloutState
from ..routing.router import ModelRouter
from .family import MetricFamily


def route_families(
    records: Iterable[RouteRecord], router: ModelRouter, updates: Mapping[str, int]
) -> Iterator[MetricFamily]:
    """Shares of targets, requests by target and outcome, states of rollouts, and updates from the file of routes."""
    share = MetricFamily("trireme_route_share_ratio", "Part of the requests that a target gets by now", "gauge")
    ready = MetricFamily("trireme_route_target_ready", "Whether a target can serve for its route", "gauge")
    requests = MetricFamily(
        "trireme_route_requests_total", "Number of requests answered, by target and what became of them", "counter"
    )
    state = MetricFamily("trireme_route_rollout_state", "1 for the state that the rollout is in", "gauge")
    entered = MetricFamily("trireme_route_rollout_changes_total", "Number of times a state was entered", "counter")
    for record in records:
        route = {"route": record.name}
        shares = dict(router.weights(record.name))
        whole = sum(shares.values()) or 1
        for target in record.route.targets:
            labels = {**route, "target": str(target)}
            share.add(labels, shares.get(target, 0) / whole)
            ready.add(labels, int(record.ready(target)))
        for (target, result), count in record.results.items():
            requests.add({**route, "target": str(target), "outcome": result.value}, count)
        rollout = router.rollout(record.name)
        if rollout is not None:
            labels = {**route, "target": str(rollout.target)}
            for each in RolloutState:
                state.add({**labels, "state": each.value}, int(each is rollout.state))
                entered.add({**labels, "state": each.value}, record.rollouts[each])
    updated = MetricFamily("trireme_route_file_updates_total", "Number of changes of the file of routes", "counter")
    for event, count in updates.items():
        updated.add({"event": event}, count)
    yield from (share, ready, requests, state, entered, updated)
