"""Implicit state: what a model remembers of a sequence from one request to the next
(docs/reference/sequences.md#implicit-state).

The server keeps it, as tensors; the model itself has no memory. A request that is handed to a backend carries its
sequence's `SequenceState` as ``job.state``, and has the state's tensors among its ``inputs`` already. What the backend
has to do is to give the new values back, with `keep_states`, before it answers.

Rules:
 1. A START begins with a fresh state, whatever was there before. A state lives as long as its sequence: it is shared
    with no other, not even with the next one in the slot.
 2. What a request leaves behind is what the next one gets, with the type and the shape that it has, which may be others
    than the configuration says. A state that a request does not write, or a request that fails, leaves the old value.
 3. A state with ``use_same_buffer_for_input_output`` keeps its array, and is written in place, as long as type and
    shape stay the same: a backend may then produce the output right where the input is.
 4. The rows that fill gaps get a state of their own, of the right shapes, that is thrown away.

Only one request of a sequence is executed at a time, and the event loop looks at a state only between two of them, so a
state needs no lock, though it is written on an instance's thread and read on the loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...config.sequence import ImplicitState
from ...datatypes import BYTES, DataType
from ...errors import InternalError, InvalidArgumentError
from ...job import Job
from ...tensor import Tensor


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The states of a model, and how each of them begins. Made by `initial_state.state_layout`.

    Attributes:
        states: in the order of the configuration.
        initial: the tensors of a sequence that starts, by input name, batch dimension included; read-only.
        unusable: why no sequence can start: a state's file of strings does not hold what it should. Empty if one can.
    """

    states: tuple[ImplicitState, ...]
    initial: Mapping[str, Tensor]
    unusable: str = ""

    def start(self) -> SequenceState:
        """The state of a sequence that starts (rule 1). That one can is checked when its request is admitted."""
        return SequenceState(self, self.initial)


class SequenceState:
    """The state of one sequence.

    Attributes:
        inputs: by input name, the tensors for the next request.
    """

    __slots__ = ("_layout", "inputs")

    def __init__(self, layout: StateLayout, tensors: Mapping[str, Tensor]) -> None:
        self._layout = layout
        self.inputs = dict(tensors)
        for state in layout.states:
            if state.same_buffer:
                name = state.input_name
                old = self.inputs[name]
                self.inputs[name] = Tensor(name, old.datatype, old.shape, array=old.array.copy())

    def write(self, output: Tensor) -> None:
        """What a request leaves behind (rules 2 and 3); the data is copied.

        Args:
            output: named as the configuration's ``output_name``, batch dimension included.

        Raises:
            InvalidArgumentError: the model has no such state.
        """
        state = next((state for state in self._layout.states if state.output_name == output.name), None)
        if state is None:
            raise InvalidArgumentError(f"state '{output.name}' is not a valid state name.")
        name = state.input_name
        old = self.inputs[name]
        if state.same_buffer and (old.datatype, old.shape) == (output.datatype, output.shape):
            array = old.array
            np.copyto(array, output.array)
        else:
            array = np.array(output.array)
        self.inputs[name] = Tensor(name, output.datatype, output.shape, array=array)

    def scratch(self) -> SequenceState:
        """A state with tensors of the same types and shapes, and nothing in them (rule 4)."""
        return SequenceState(
            self._layout, {name: zeros(name, tensor.datatype, tensor.shape) for name, tensor in self.inputs.items()}
        )

    @property
    def signature(self) -> Hashable:
        """Requests whose states have equal signatures can share a batch."""
        return tuple((tensor.datatype.number, tensor.shape) for tensor in self.inputs.values())

    def __repr__(self) -> str:
        return f"<SequenceState {', '.join(map(repr, self.inputs.values()))}>"


def keep_arrays(jobs: Sequence[Job], states: Iterable[tuple[ImplicitState, np.ndarray]], batching: bool) -> None:
    """`keep_states`, of arrays as a framework gives them."""
    named = [(state.output_name, state.datatype, array) for state, array in states]
    keep_states(jobs, [Tensor(name, datatype, array.shape, array=array) for name, datatype, array in named], batching)


def keep_states(jobs: Sequence[Job], outputs: Iterable[Tensor], batching: bool) -> None:
    """Give each job's sequence its share of a batch's state outputs, or none of them. For backends, before they answer.

    Args:
        jobs: those that were executed, in batch order; for those that have failed already, rule 2 counts.
        outputs: state outputs of the whole batch, named as the configuration's ``output_name``.
        batching: whether dim 0 is the batch.

    Raises:
        InvalidArgumentError: the model has no such state, or none at all.
        InternalError: an output has fewer rows than the batch.
    """
    outputs = list(outputs)
    for output in outputs:
        _check_output(jobs, output, batching)
    for output in outputs:
        start = 0
        for job in jobs:
            end = start + job.rows
            part = output
            if batching:
                shape = (job.rows, *output.shape[1:])
                part = Tensor(output.name, output.datatype, shape, array=output.array[start:end])
            if not job.answered:
                job.state.write(part)
            start = end


def _check_output(jobs: Sequence[Job], output: Tensor, batching: bool) -> None:
    for job in jobs:
        if job.state is None:
            raise InvalidArgumentError(
                f"unable to add state '{output.name}'. State configuration is missing for model '{job.model_name}'."
            )
    rows = sum([job.rows for job in jobs])
    if batching and (not output.shape or output.shape[0] < rows):
        raise InternalError(
            f"state '{output.name}' of model '{jobs[0].model_name}' must have a row for each request of the batch, but "
            f"has the shape {list(output.shape)}"
        )


def zeros(name: str, datatype: DataType, shape: tuple[int, ...]) -> Tensor:
    """A tensor of zeros, or of empty strings."""
    array = np.full(shape, b"", object) if datatype is BYTES else np.zeros(shape, datatype.storage)
    return Tensor(name, datatype, shape, array=array)
