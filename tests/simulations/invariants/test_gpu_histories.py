"""The invariants of GPUs, on histories written by hand."""

from __future__ import annotations

import pytest

from trireme.simulations.events import (
    BatchSealed,
    Event,
    ExecutionEnded,
    ExecutionStarted,
    FaultStruck,
    InstanceDetached,
    KernelEnded,
    KernelStarted,
)
from trireme.simulations.history import Recorder
from trireme.simulations.invariants import Violation
from trireme.simulations.invariants.gpus import STAGES, PipelineOrder, SicknessIsAFault

IN, COMPUTE, OUT = STAGES


class Clock:
    def now_ns(self) -> int:
        return 0


def broken(invariant: type[PipelineOrder] | type[SicknessIsAFault], *events: Event) -> list[str]:
    complaints: list[Violation] = []
    recorder = Recorder(Clock())
    recorder.listen(invariant(complaints.append).handlers())
    for event in events:
        recorder.record(event)
    return [each.text for each in complaints]


def begun(batch: int, instance: str = "m_0") -> list[Event]:
    return [BatchSealed(0, batch, "m", 1, instance, "full", (batch,), 1), ExecutionStarted(0, batch)]


def start(batch: int, engine: str, stream: int) -> KernelStarted:
    return KernelStarted(0, "g", stream, "x", engine, 1, batch)


def whole(batch: int, engine: str, stream: int) -> list[Event]:
    return [start(batch, engine, stream), KernelEnded(0, "g", stream, "x", batch)]


def test_batches_that_overlap_on_streams_of_their_own_are_in_order() -> None:
    events = [
        *begun(1),
        *begun(2),
        *whole(1, IN, 0),
        start(1, COMPUTE, 1),
        *whole(2, IN, 0),
        KernelEnded(0, "g", 1, "x", 1),
        *whole(1, OUT, 2),
        InstanceDetached(0, "m", "m_0"),
        *begun(3),
        *whole(3, IN, 5),  # of its next life
        *whole(2, COMPUTE, 1),  # what is left of the life before
    ]
    assert broken(PipelineOrder, *events) == []


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([start(1, COMPUTE, 1)], "compute begins after nothing"),
        ([*whole(1, IN, 0), start(1, OUT, 2)], "copy out begins after copy in"),
        ([start(1, IN, 0), start(1, COMPUTE, 1)], "compute begins during copy in"),
        ([*whole(1, IN, 0), *whole(1, COMPUTE, 0)], "compute of ('m', 'm_0', 0) is on a stream of"),
        ([*whole(1, IN, 0), *whole(2, IN, 7)], "is on stream ('g', 7), and was on ('g', 0)"),
        ([*whole(2, IN, 0), *whole(1, IN, 0)], "batch 1 is overtaken"),
        ([*whole(1, IN, 0), *begun(3, "m_1"), start(3, IN, 0)], "copy in of ('m', 'm_1', 0) is on a stream of"),
    ],
)
def test_what_is_out_of_order_is_noticed(events: list[Event], text: str) -> None:
    (first, *_) = broken(PipelineOrder, *begun(1), *begun(2), *events)
    assert text in first


def test_a_sick_gpu_needs_a_fault() -> None:
    ended = ExecutionEnded(0, 1, "SickDeviceError")
    assert broken(SicknessIsAFault, ended) == ["batch 1 was lost to a sick GPU; all are well"]
    assert broken(SicknessIsAFault, FaultStruck(0, "GPU falls ill in silence", "m", 1), ended) == []
