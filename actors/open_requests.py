"""The requests that instances hold and have not answered, for people to look at; found when a frame is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ..engine.job import Job
from ..engine.metrics.batch_tap import TappedRequest
from .model import Model

OpenRequests = dict[tuple[str, str, int], list[TappedRequest]]
"""By namespace, name and version of their models."""


def open_requests(models: Iterable[Model], most: int) -> OpenRequests:
    """The first `most` of each model version. Ensembles have none: their members have them."""
    found: OpenRequests = {}
    for model in models:
        if model.instances is not None and (some := list(islice(_tapped(model.instances.open_jobs()), most))):
            found[model.source.namespace, model.name, model.version] = some
    return found


def _tapped(jobs: Iterable[Job]) -> Iterator[TappedRequest]:
    for job in jobs:
        batch = job.batch  # a thread may be about to take it away
        if batch is not None:
            yield TappedRequest(job.received_ns, batch.marks[0], -1, instance=batch.instance_name)
