"""Requests and connections that were refused, by reason: ``trireme_refused_total``.

Rules:
 1. A refusal is counted once, where it is decided or where it becomes an answer: an error that was counted is marked.
    Nothing is counted on the way of a request that is accepted.
 2. What is refused for a model version is counted with that version's statistics, and gone with them. Everything else
    is counted without a model: names that clients make up must not become labels.
 3. A request that a queue has taken in counts if the queue rejects it: its time there is over, or the model ends.
    What fails when it is executed, or is cancelled by its client, was not refused.
 4. The members of an ensemble count the steps that they refuse, and models the requests of other models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from ..errors import RefusalReason, TriremeError
from .families import model_labels
from .family import MetricFamily
from .statistics import ModelStatisticsEntry

_NAME = "trireme_refused_total"

Counts = MutableMapping[RefusalReason, int]


def count_refusal(counts: Counts, error: TriremeError) -> None:
    """Count the refusal of one request, and mark the error."""
    error.refusal_counted = True
    reason = error.refusal_reason
    if reason is not None:
        counts[reason] = counts.get(reason, 0) + 1


def reason_to_count(why: TriremeError | RefusalReason) -> RefusalReason | None:
    """Why a request was refused, if that is to be counted; None for an error that was counted, or refuses nothing. The
    error is marked (rule 1)."""
    if isinstance(why, RefusalReason):
        return why
    if why.refusal_counted:
        return None
    why.refusal_counted = True
    return why.refusal_reason


class RefusalCounts:
    """What was refused that was for no model that is served.

    Attributes:
        counts: by reason.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(RefusalReason, 0)

    def count(self, reason: RefusalReason, of_model: Counts | None = None, times: int = 1) -> None:
        """A request or a connection was refused, or several; by a model version, if `of_model` are its counts."""
        counts = self.counts if of_model is None else of_model
        counts[reason] = counts.get(reason, 0) + times


def refused_families(
    entries: Iterable[ModelStatisticsEntry], others: Mapping[RefusalReason, int]
) -> Iterator[MetricFamily]:
    """The series of models have only reasons that have occurred; those without a model have them all."""
    family = MetricFamily(_NAME, "Number of requests and connections that were refused, by reason", "counter")
    for reason, count in others.items():
        family.add({"reason": reason.value}, count)
    for entry in entries:
        for reason, count in entry.statistics.refused.items():
            family.add({**model_labels(entry), "reason": reason.value}, count)
    yield family
