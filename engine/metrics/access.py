"""What callers have asked for and been refused (docs/access.md#metrics). Labels come from the access file alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..access.control import AccessControl
from ..errors import RefusalReason
from .family import MetricFamily

UNIDENTIFIED = ""
"""The label of requests of which it is not known whose they are."""


def access_families(control: AccessControl) -> Iterator[MetricFamily]:
    """Requests by caller, refusals by caller and reason, and updates of rules and keys."""
    requests = MetricFamily("trireme_caller_requests_total", "Number of requests admitted, by caller", "counter")
    in_flight = MetricFamily("trireme_caller_in_flight", "Number of requests in flight, by caller", "gauge")
    refused = MetricFamily(
        "trireme_caller_refused_total", "Number of requests refused, by caller and reason", "counter"
    )
    updates = MetricFamily("trireme_access_updates_total", "Number of updates of access rules and keys", "counter")
    for usage in control.usages():
        labels = {"caller": usage.name}
        requests.add(labels, usage.requests)
        in_flight.add(labels, usage.in_flight)
        _add_refused(refused, usage.name, usage.refused)
    _add_refused(refused, UNIDENTIFIED, control.unidentified)
    for event, count in control.updates.items():
        updates.add({"event": event}, count)
    yield from (requests, in_flight, refused, updates)


def _add_refused(family: MetricFamily, name: str, counts: Mapping[RefusalReason, int]) -> None:
    for reason, count in counts.items():
        family.add({"caller": name, "reason": reason.value}, count)
