"""Rows that fill gaps: a direct batch has a row for each slot up to the last one that is ready
(docs/reference/sequences.md#direct-strategy).

A null job looks like a request, so that backends need not know; its READY control says that it is none. It has inputs
of its own, made of nothing (never another client's data), asks for no answer, and counts in no statistics, but in the
size of its batch.
"""

from __future__ import annotations

from ...job import Job, Outcome
from ...request import InferenceRequest
from .controls import Controls
from .state import zeros


class _NoReply:
    """Takes the answers of padding rows, and drops them."""

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        return False


class NullJob(Job):
    """A row without a request.

    Args:
        like: the first request of the batch, which says what inputs must look like; controls and state added.
        controls: the model's.
    """

    __slots__ = ()
    is_null = True

    def __init__(self, like: Job, controls: Controls) -> None:
        inputs = {name: zeros(name, tensor.datatype, tensor.shape) for name, tensor in like.inputs.items()}
        inputs.update(controls.null)
        request = InferenceRequest(like.model_name, like.model_version)
        super().__init__(request, inputs, like.rows, like.model_name, like.model_version, _NoReply())
        if like.state is not None:
            self.state = like.state.scratch()
            inputs.update(self.state.inputs)
