"""What a Python model instance has been given and has not answered yet."""

from __future__ import annotations

from typing import Any

from ..engine.execution import ExecutionBatch
from ..engine.job import Job


class Held:
    """A batch that is not over.

    Attributes:
        keys: of its requests.
        returned: ``execute`` has.
    """

    __slots__ = ("batch", "keys", "returned")

    def __init__(self, batch: ExecutionBatch, keys: list[int]) -> None:
        self.batch = batch
        self.keys = keys
        self.returned = False


class Open:
    """An open request.

    Attributes:
        held: its batch.
        untold: responses that were taken and not reported to the process yet.
        early: what is kept under rule 5: arguments of `PythonInstance._answer`.
    """

    __slots__ = ("early", "held", "job", "untold")

    def __init__(self, job: Job, held: Held) -> None:
        self.job = job
        self.held = held
        self.untold = 0
        self.early: list[tuple[memoryview, int, bool, Any]] = []
