"""What the server adds to a request of a sequence before a backend sees it: controls and implicit state."""

from __future__ import annotations

from ...job import Job
from .controls import Controls
from .state import SequenceState, StateLayout


class InputAdder:
    """Completes the inputs of one model's requests.

    Args:
        states: the model's implicit states; None if it has none.
    """

    __slots__ = ("_states", "controls")

    def __init__(self, controls: Controls, states: StateLayout | None) -> None:
        self.controls = controls
        self._states = states

    def check_start(self) -> None:
        """
        Raises:
            InvalidArgumentError: no sequence of the model can start (`StateLayout.check`).
        """
        if self._states is not None:
            self._states.check()

    def complete(self, job: Job, state: SequenceState | None) -> SequenceState | None:
        """Add controls and state to a request; doing it twice changes nothing.

        The values of the state are those of this moment, so all requests before it must be done with.

        Args:
            state: what the requests before it have left behind; None for a sequence that begins.

        Returns:
            The state that it has got, for the next one.
        """
        request = job.request
        inputs = {
            **job.inputs,
            **self.controls.inputs(request.correlation_id, request.sequence_start, request.sequence_end),
        }
        if self._states is not None:
            state = job.state = state or self._states.start()
            inputs.update(state.inputs)
        job.inputs = inputs
        return state
