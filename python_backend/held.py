"""What a Python model instance has been given and has not answered yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine.job import ExecutionBatch, Job


@dataclass(slots=True, eq=False)
class Held:
    """A batch that is not over: the keys of its requests, and whether ``execute`` has `returned`."""

    batch: ExecutionBatch
    keys: list[int]
    returned: bool = False


@dataclass(slots=True, eq=False)
class Open:
    """An open request.

    Attributes:
        untold: responses that were taken and not reported to the process yet.
        early: what is kept under rule 5: arguments of `PythonInstance._answer`.
    """

    job: Job
    held: Held
    untold: int = 0
    early: list[tuple[memoryview, int, bool, Any]] = field(default_factory=list)
