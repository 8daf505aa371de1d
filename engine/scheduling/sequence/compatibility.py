"""Which requests of sequences may share a batch."""

from __future__ import annotations

from collections.abc import Hashable

from ...job import Job
from ..compatibility import Compatibility


class SequenceCompatibility(Compatibility):
    """As for other requests; and implicit states, which are inputs as well, must agree in type and shape. These may be
    others than the configuration says: a model decides what it leaves behind.

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
