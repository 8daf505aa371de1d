"""The oracle's statement of which batch is right, against what the reference server was seen to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from trireme.engine.config.model import DynamicBatching, ModelConfig, ModelInput
from trireme.engine.datatypes import FP32, INT32
from trireme.engine.job import SealReason
from trireme.engine.tensor import Tensor
from trireme.simulations.oracle.batches import Batch, NotYet, may_share, right_batch
from trireme.simulations.oracle.observed import NEVER_S
from trireme.simulations.oracle.queues import NaiveEntry

FULL, PREFERRED, DELAY, IDLE = SealReason.FULL, SealReason.PREFERRED, SealReason.DELAY, SealReason.IDLE
SHAPE, DRAIN = SealReason.SHAPE, SealReason.DRAIN


def entry(number: int, rows: int = 1, queued_s: float = 0.0, inputs: Mapping[str, Tensor] | None = None) -> NaiveEntry:
    return NaiveEntry(number, rows, 0, number, queued_s, NEVER_S, inputs or {})


def queue(*rows: int) -> list[NaiveEntry]:
    """Requests of so many rows; the n-th came at n seconds."""
    return [entry(number, each, float(number)) for number, each in enumerate(rows)]


def fp32(name: str, *shape: int) -> Tensor:
    return Tensor(name, FP32, shape, array=np.zeros(shape, np.float32))


EIGHT = ModelConfig("m", max_batch_size=8, input=(ModelInput("IN", FP32, (4,)),))
PLAIN = DynamicBatching()
FOURS = DynamicBatching((4,))
TWOS_AND_FOURS = DynamicBatching((2, 4))
LATE_FOURS = DynamicBatching((4,), max_queue_delay_us=300_000_000)

CASES = {
    "all that is there": (PLAIN, queue(1), 0.0, False, Batch(1, IDLE)),
    "no more than may be": (PLAIN, queue(*[1] * 12), 12.0, False, Batch(8, FULL)),
    "whole requests only": (PLAIN, queue(3, 3, 3), 3.0, False, Batch(2, FULL)),
    "a preferred size of five": (FOURS, queue(1, 1, 1, 1, 1), 5.0, False, Batch(4, PREFERRED)),
    "no preferred size of three": (FOURS, queue(1, 1, 1), 3.0, False, Batch(3, IDLE)),
    "the last preferred size": (TWOS_AND_FOURS, queue(1, 1, 1, 1, 1), 5.0, False, Batch(4, PREFERRED)),
    "the only preferred size": (TWOS_AND_FOURS, queue(1, 1, 1), 5.0, False, Batch(2, PREFERRED)),
    "a preferred size that is the largest": (DynamicBatching((8,)), queue(8), 0.0, False, Batch(1, FULL)),
    "before the largest preferred size": (FOURS, queue(1, 1, 3), 3.0, False, Batch(2, FULL)),
    "a first one beyond it, alone": (FOURS, queue(5, 1), 3.0, False, Batch(1, FULL)),
    "a first one beyond it": (LATE_FOURS, queue(5), 0.0, False, Batch(1, FULL)),
    "two wait for the delay": (LATE_FOURS, queue(1, 1), 2.0, False, NotYet(300.0)),
    "two at its end": (LATE_FOURS, queue(1, 1), 300.0, False, Batch(2, DELAY)),
    "four do not wait": (LATE_FOURS, queue(1, 1, 1, 1), 4.0, False, Batch(4, PREFERRED)),
    "six go as four": (LATE_FOURS, queue(*[1] * 6), 6.0, False, Batch(4, PREFERRED)),
    "six go together when it is over": (LATE_FOURS, queue(*[1] * 6), 300.0, False, Batch(6, DELAY)),
    "nine do not go together when it is over": (LATE_FOURS, queue(*[1] * 9), 300.0, False, Batch(8, FULL)),
    "the delay of the oldest, not of the first": (
        LATE_FOURS, [entry(1, queued_s=9.0), entry(2, queued_s=2.0)], 10.0, False, NotYet(302.0),
    ),
    "a model that drains waits for no delay": (LATE_FOURS, queue(1, 1), 2.0, True, Batch(2, DRAIN)),
}  # fmt: skip


@pytest.mark.parametrize(("batching", "line", "now_s", "stopping", "right"), CASES.values(), ids=CASES)
def test_the_right_batch(
    batching: DynamicBatching, line: Sequence[NaiveEntry], now_s: float, stopping: bool, right: Batch | NotYet
) -> None:
    assert right_batch(EIGHT, batching, line, now_s, stopping) == right


def test_shapes_that_differ_end_a_batch_and_none_overtakes() -> None:
    config = ModelConfig("m", max_batch_size=8, input=(ModelInput("IN", FP32, (-1,)),))
    line = [entry(number, inputs={"IN": fp32("IN", 1, size)}) for number, size in enumerate((1, 2, 2, 1))]
    executed = []
    while line:
        batch = right_batch(config, PLAIN, line, 0.0, False)
        assert isinstance(batch, Batch)
        executed.append((batch.count, batch.reason))
        line = line[batch.count :]
    assert executed == [(1, SHAPE), (2, SHAPE), (1, IDLE)]


SHARING = {
    "fixed shapes": (ModelInput("IN", FP32, (4,)), fp32("IN", 1, 4), fp32("IN", 3, 4), True),
    "equal variable shapes": (ModelInput("IN", FP32, (-1,)), fp32("IN", 1, 4), fp32("IN", 3, 4), True),
    "variable shapes": (ModelInput("IN", FP32, (-1,)), fp32("IN", 1, 4), fp32("IN", 1, 5), False),
    "ragged": (ModelInput("IN", FP32, (-1,), allow_ragged_batch=True), fp32("IN", 1, 4), fp32("IN", 1, 5), True),
    "optional, both": (ModelInput("IN", FP32, (4,), optional=True), fp32("IN", 1, 4), fp32("IN", 1, 4), True),
    "optional, neither": (ModelInput("IN", FP32, (4,), optional=True), None, None, True),
    "optional, one": (ModelInput("IN", FP32, (4,), optional=True), fp32("IN", 1, 4), None, False),
}


@pytest.mark.parametrize(("declared", "first", "other", "together"), SHARING.values(), ids=SHARING)
def test_who_may_share_a_batch(
    declared: ModelInput, first: Tensor | None, other: Tensor | None, together: bool
) -> None:
    config = ModelConfig("m", max_batch_size=8, input=(declared,))
    one = entry(1, inputs={} if first is None else {"IN": first})
    two = entry(2, inputs={} if other is None else {"IN": other})
    assert may_share(config, one, two) is together


def test_shape_tensors_have_one_content_in_a_batch() -> None:
    config = ModelConfig("m", max_batch_size=8, input=(ModelInput("IN", INT32, (2,), is_shape_tensor=True),))
    one, same, other = (
        entry(1, inputs={"IN": Tensor("IN", INT32, (2,), array=np.array(values, np.int32))})
        for values in ((1, 2), (1, 2), (1, 3))
    )
    assert may_share(config, one, same)
    assert not may_share(config, one, other)
