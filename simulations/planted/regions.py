"""Bugs around inputs in shared memory, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.admission.large_requests import RegionReaders
from ...engine.errors import InvalidArgumentError
from ...engine.memory.tensors import RegionTensor
from ...engine.scheduling.batch_regions import RegionBatch
from ...front_ends.regions import RegionTable


def _left_by_all(original: Any, readers: RegionReaders, tensor: RegionTensor, request: Any) -> bool:
    """Inputs are left in shared memory whatever the model, and however few they are."""
    return True


def _loss_unnoticed(original: Any, tensor: RegionTensor) -> None:
    """Whether what was read was the client's until the end is not looked at."""


def _lost_with_all(original: Any, regions: RegionBatch, job: Any) -> None:
    """A job whose input cannot be read fails the whole batch."""
    original(regions, job)
    if job.answered:
        for other in regions.jobs:
            if not other.answered:
                other.fail(InvalidArgumentError("shared memory region of another one has lost its memory"))


def _never_gone(original: Any, table: RegionTable) -> list[Any]:
    """Front ends are not told that a region is gone."""
    return [row for row in original(table) if len(row) > 1]


REGION_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "left-by-all": (RegionReaders, "take", _left_by_all),
    "loss-unnoticed": (RegionTensor, "check", _loss_unnoticed),
    "region-never-gone": (RegionTable, "refresh", _never_gone),
    "lost-with-all": (RegionBatch, "_borrow", _lost_with_all),
}
