"""Which requests of sequences may share a batch."""

from __future__ import annotations

from collections.abc import Hashable

from ...job import Job
from ..compatibility import Compatibility


class SequenceCompatibility(Compatibility):
    """As for other requests; and implicit states of variable shape, which are inputs as well, must agree in shape.

    Args:
        inputs: what the requests' own inputs must agree on; None for nothing.
    """

    __slots__ = ("_inputs",)

    def __init__(self, inputs: Compatibility | None) -> None:
        super().__init__(())
        self._inputs = inputs

    def signature(self, job: Job) -> Hashable:
        """Of a job whose inputs are complete."""
        return None if self._inputs is None else self._inputs.signature(job), job.state.signature
