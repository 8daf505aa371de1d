"""Bugs of stateful models, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...engine.datatypes import BYTES
from ...engine.job import Job
from ...engine.scheduling.core import Action, InstanceId, Wait, WaitUntil
from ...engine.scheduling.dispatcher import Dispatcher
from ...engine.scheduling.sequence.backlog import Backlog
from ...engine.scheduling.sequence.batcher import SequenceBatcher
from ...engine.scheduling.sequence.controls import Controls
from ...engine.scheduling.sequence.state import SequenceState
from ...engine.scheduling.sequence.strategies import DirectHost, NullJob
from ...engine.tensor import Tensor


def _reaper_never_rests(original: Any, batcher: SequenceBatcher, now: float) -> Action:
    """When the last sequence is over, there is no sequence to wait for, and the reaper looks again without end."""
    action = original(batcher, now)
    return WaitUntil(now) if isinstance(action, Wait) and batcher._sequences and not batcher.active else action


def _state_written_in_place(original: Any, state: SequenceState, output: Tensor) -> None:
    """A state is written where it is; and that is where all sequences begin."""
    del original
    (tensor,) = state.inputs.values()
    np.copyto(tensor.array, output.array)


def _text_not_written(original: Any, state: SequenceState, output: Tensor) -> None:
    """A text that is to be kept in one place is not, if it is longer than the one that is there."""
    (tensor,) = state.inputs.values()
    in_place = state._layout.states[0].same_buffer and output.datatype is BYTES
    if in_place and 0 < len(tensor.array.flat[0]) < len(output.array.flat[0]):
        return
    original(state, output)


def _last_comes_first(original: Any, backlog: Backlog) -> Any:
    """The sequence that came last to the backlog gets the slot."""
    del original
    return backlog._sequences.popitem(last=True)[0]


def _one_slot_less(original: Any, host: DirectHost, *arguments: Any) -> None:
    """One slot less than the minimum utilization asks for is enough."""
    original(host, *arguments)
    host._enough = max(0, host._enough - 1)


def _padding_of_a_client(original: Any, job: NullJob, like: Job, controls: Controls) -> None:
    """Rows that fill gaps hold what the first request of the batch holds."""
    original(job, like, controls)
    job.inputs = {**job.inputs, **{name: like.inputs[name] for name in job.inputs if name.startswith("INPUT")}}


def _forgotten_beside_a_queue(original: Any, dispatcher: Dispatcher, instance: InstanceId, *its: Any) -> None:
    """An instance of a stateful model that has executed is forgotten while several requests are queued."""
    sequences = dispatcher.sequences
    if sequences is None or sequences.queued < 3 or sequences.active < 3:
        original(dispatcher, instance, *its)


SEQUENCE_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "reaper-never-rests": (SequenceBatcher, "next_action", _reaper_never_rests),
    "state-written-in-place": (SequenceState, "write", _state_written_in_place),
    "text-not-written": (SequenceState, "write", _text_not_written),
    "last-comes-first": (Backlog, "pop", _last_comes_first),
    "one-slot-less": (DirectHost, "__init__", _one_slot_less),
    "padding-of-a-client": (NullJob, "__init__", _padding_of_a_client),
    "forgotten-beside-a-queue": (Dispatcher, "_has_credit", _forgotten_beside_a_queue),
}
