"""What came of a planned run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.job import SealReason
from .generated_run import GeneratedRun, merged_texts

Seconds = NDArray[np.float64]
Numbers = NDArray[np.int64]


_OF_REQUESTS = ("model", "rows", "sent_s", "admitted_s", "answered_s", "batch", "refusal")


@dataclass(frozen=True, eq=False)
class PlayedRun:
    """Arrays with an entry for each request, in the order in which they came to be, and for each execution.

    Times are virtual seconds since the beginning; NaN for what did not happen.

    Attributes:
        models: names; what `model` and `batch_model` count.
        refusals: why requests were not answered well; what `refusal` counts. The first is "", for those that were.
        model, rows: of each request.
        sent_s: when its client sent it.
        admitted_s: when the event loop had taken it in.
        answered_s: when its client had the answer, or the refusal.
        batch: its execution, the last if there were several; -1 for none. Of a request to an ensemble always -1.
        batch_model, batch_instance: who executed; instances are counted from 0, by the model.
        batch_requests, batch_rows: how many.
        batch_reason: why it was closed, counted as in `reasons`.
        batch_begun_s: when it was formed, and given to its executor.
        batch_started_s, batch_ended_s: when the computing began and ended.
        batch_heard_s: when the event loop knew of the end.
        loop_busy_s: seconds for which the event loop worked.
        cores_busy_s: seconds of cores that what else computes was given; 0 if cores were not counted.
        ended_s: when everything was over.
        generated: what came of requests for generated text; None if there were none.
        front_ends_busy_s: seconds for which each front end worked, or waited for a core; their mean.
    """

    models: tuple[str, ...]
    refusals: tuple[str, ...]
    reasons: tuple[SealReason, ...]
    model: Numbers
    rows: Numbers
    sent_s: Seconds
    admitted_s: Seconds
    answered_s: Seconds
    batch: Numbers
    refusal: Numbers
    batch_model: Numbers
    batch_instance: Numbers
    batch_requests: Numbers
    batch_rows: Numbers
    batch_reason: Numbers
    batch_begun_s: Seconds
    batch_started_s: Seconds
    batch_ended_s: Seconds
    batch_heard_s: Seconds
    loop_busy_s: float
    cores_busy_s: float
    ended_s: float
    generated: GeneratedRun | None = None
    front_ends_busy_s: float = 0.0

    def __len__(self) -> int:
        """How many requests there were."""
        return len(self.sent_s)

    def _index(self, model: str) -> int:
        """
        Raises:
            ValueError: there is no such model.
        """
        return self.models.index(model)

    @property
    def dispatched_s(self) -> Seconds:
        """When each request's batch was formed."""
        return self._of_batch(self.batch_begun_s)

    @property
    def computed_s(self) -> Seconds:
        """When the computing of each request's batch ended."""
        return self._of_batch(self.batch_ended_s)

    def _of_batch(self, column: Seconds) -> Seconds:
        times = np.append(column, np.nan)  # which -1 leads to
        return times[self.batch]

    def well(self, model: str = "") -> NDArray[np.bool_]:
        """Which requests were answered well; with a name, those of that model only."""
        well = self.refusal == 0
        return well & (self.model == self._index(model)) if model else well

    def latencies_s(self, model: str = "") -> Seconds:
        """How long each request took that was answered well, in the order in which they were sent."""
        well = self.well(model)
        return self.answered_s[well] - self.sent_s[well]

    def refused(self, model: str = "") -> Counter[str]:
        """How many requests were not answered well, by reason."""
        numbers = self.refusal if not model else self.refusal[self.model == self._index(model)]
        counts = np.bincount(numbers, minlength=len(self.refusals))
        return Counter({self.refusals[number]: int(count) for number, count in enumerate(counts) if number and count})

    @property
    def span_s(self) -> float:
        """Seconds from the first request that was sent to the end of all: what comes before is none of the run's."""
        return self.ended_s - (float(self.sent_s.min()) if len(self) else 0.0)

    def throughput(self, model: str = "") -> float:
        """Requests a second that were answered well, from the first that was sent to the end of all."""
        return float(self.well(model).sum()) / self.span_s if self.span_s > 0 else 0.0

    def mean_batch_rows(self, model: str) -> float:
        """Rows of an execution; NaN if there was none."""
        rows = self.batch_rows[self.batch_model == self._index(model)]
        return float(rows.mean()) if len(rows) else float("nan")

    def utilisation(self, model: str, instances: int) -> float:
        """The part of the time for which an instance of a model executed, of so many."""
        its = self.batch_model == self._index(model)
        busy_s = float(np.nansum(self.batch_heard_s[its] - self.batch_begun_s[its]))
        return busy_s / (instances * self.span_s) if self.span_s > 0 else 0.0


def merged_runs(runs: Sequence[PlayedRun]) -> PlayedRun:
    """Several servers with the same models as if they were one, whose loop and cores are the mean of theirs."""
    if len(runs) == 1:
        return runs[0]
    refusals = tuple(dict.fromkeys(text for run in runs for text in run.refusals))
    names = [*_OF_REQUESTS, *(each.name for each in fields(PlayedRun) if each.name.startswith("batch_"))]
    made: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    batches = instances = 0
    for run in runs:
        changed = {
            "batch": np.where(run.batch >= 0, run.batch + batches, -1),
            "batch_instance": run.batch_instance + instances,
            "refusal": np.array([refusals.index(text) for text in run.refusals], np.int64)[run.refusal],
        }
        for name, parts in made.items():
            parts.append(changed.get(name, getattr(run, name)))
        batches += len(run.batch_rows)
        instances += int(run.batch_instance.max(initial=-1)) + 1
    joined: dict[str, Any] = {name: np.concatenate(parts) for name, parts in made.items()}
    order = np.argsort(joined["sent_s"], kind="stable")
    of_requests = {name: joined[name][order] for name in _OF_REQUESTS}
    return replace(
        runs[0],
        refusals=refusals,
        **(joined | of_requests),
        loop_busy_s=sum(run.loop_busy_s for run in runs) / len(runs),
        cores_busy_s=sum(run.cores_busy_s for run in runs) / len(runs),
        front_ends_busy_s=sum(run.front_ends_busy_s for run in runs) / len(runs),
        ended_s=max(run.ended_s for run in runs),
        generated=merged_texts([(run.generated, len(run)) for run in runs], order),
    )


def columns(**lists: Sequence[float]) -> dict[str, NDArray[np.generic]]:
    """Arrays of what was written down: of 64 bits each."""
    return {name: np.array(values, np.float64 if name.endswith("_s") else np.int64) for name, values in lists.items()}
