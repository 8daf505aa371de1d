"""What the server adds to a request of a sequence before a backend sees it: implicit state, and control inputs, which
tell a stateful model about the request (docs/reference/sequences.md#control-inputs).

Rules:
 1. A control is an input of shape [1], [1,1] for a model that batches. Clients do not send it.
 2. START and END tell where in its sequence a request stands. READY is true for every request, and false, like all the
    others, for a row that only fills a gap (`strategies.NullJob`).
 3. CORRID is the correlation id; 0, or an empty string, in a row that fills a gap. Of a number that is too long for the
    control's type, the low bits count.
 4. A CORRID of strings takes only string ids, one of numbers only numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...config.sequence import ControlKind, SequenceControl
from ...datatypes import BYTES, UINT64
from ...errors import InvalidArgumentError, UnsupportedError, request_prefix
from ...job import Job
from ...tensor import Tensor
from .slot import CorrelationId
from .state import SequenceState, StateLayout

MAX_ID_BYTES = 128
"""A string id has at most so many bytes as UTF-8."""


class Controls:
    """The control inputs of one model.

    Args:
        batching: whether the model's tensors have a batch dimension.
        states: the model's implicit states; None if it has none.

    Attributes:
        null: those of a row that fills a gap, by name.
    """

    __slots__ = ("_by_position", "_correlation", "_shape", "null", "states")

    def __init__(self, controls: Sequence[SequenceControl], batching: bool, states: StateLayout | None = None) -> None:
        self.states = states
        self._shape = (1, 1) if batching else (1,)
        self._correlation = next((control for control in controls if control.kind is ControlKind.CORRID), None)
        flags = [control for control in controls if control.kind is not ControlKind.CORRID]
        self._by_position = {
            (start, end): self._flags(flags, {ControlKind.START: start, ControlKind.END: end, ControlKind.READY: True})
            for start in (False, True)
            for end in (False, True)
        }
        self.null: Mapping[str, Tensor] = {
            **self._flags(flags, dict.fromkeys(ControlKind, False)),
            **self._correlation_input(""),
        }

    def check(self, job: Job) -> None:
        """Whether the model can take the job's correlation id.

        Raises:
            UnsupportedError: it is a string that is too long.
            InvalidArgumentError: it is a number where the model wants a string, or the other way round.
        """
        given = job.request.correlation_id
        if isinstance(given, str) and len(given.encode(errors="surrogatepass")) > MAX_ID_BYTES:
            raise UnsupportedError("string correlation ID cannot be longer than 128 characters")
        control = self._correlation
        if control is not None and given and isinstance(given, str) is not (control.datatype is BYTES):
            type_given = BYTES if isinstance(given, str) else UINT64
            raise InvalidArgumentError(
                f"{request_prefix(job.id)}sequence batching control '{control.name}' data-type is '{type_given.name}', "
                f"but model '{job.model_name}' expects '{control.datatype.name}'"
            )

    def inputs(self, correlation_id: CorrelationId, start: bool, end: bool) -> dict[str, Tensor]:
        """The control inputs of a request with this id, at this place in its sequence, by name."""
        return {**self._by_position[start, end], **self._correlation_input(correlation_id)}

    def complete(self, job: Job, state: SequenceState | None) -> SequenceState | None:
        """Add controls and state to a request; doing it twice changes nothing.

        The values of the state are those of this moment, so all requests before it must be done with.

        Args:
            state: what the requests before it have left behind; None for a sequence that begins.

        Returns:
            The state that it has got, for the next one.
        """
        request = job.request
        controls = self.inputs(request.correlation_id, request.sequence_start, request.sequence_end)
        job.inputs = {**job.inputs, **controls}
        if self.states is not None:
            state = job.state = state or self.states.start()
            job.inputs.update(state.inputs)
        return state

    def _flags(self, flags: Sequence[SequenceControl], values: Mapping[ControlKind, bool]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for control in flags:
            value = control.true if values[control.kind] else control.false
            array = np.full(self._shape, value, control.datatype.storage)
            array.flags.writeable = False  # all requests share it
            tensors[control.name] = Tensor(control.name, control.datatype, self._shape, array=array)
        return tensors

    def _correlation_input(self, correlation_id: CorrelationId) -> dict[str, Tensor]:
        control = self._correlation
        if control is None:
            return {}
        datatype = control.datatype
        if datatype is BYTES:
            array = np.empty(self._shape, object)
            array[...] = str(correlation_id).encode(errors="surrogatepass")
            return {control.name: Tensor(control.name, datatype, self._shape, array=array)}
        bits = (correlation_id if isinstance(correlation_id, int) else 0) & ((1 << 8 * datatype.size) - 1)
        return {control.name: Tensor(control.name, datatype, self._shape, bits.to_bytes(datatype.size, "little"))}
