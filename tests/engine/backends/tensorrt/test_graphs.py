"""CUDA graphs: captured for the shapes that the configuration asks for, launched for the batches that they serve."""

from __future__ import annotations

import gc
import logging
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeEvent, Operation
from fake_plans import double_plan, plan, tensor

from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError
from trireme.engine.gpu.device import OutOfDeviceMemoryError
from trireme.engine.tensor import Tensor

GRAPHS = "optimization { cuda { graphs: true } }"
WIDE = """
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def graphs(most: int, spec: str) -> str:
    return f"max_batch_size: {most} optimization {{ cuda {{ graphs: true {spec} }} }}"


def request(*values: list[float]) -> list[Tensor]:
    array = np.array(values, np.float32)
    return [Tensor("IN", FP32, array.shape, array.tobytes())]


def rows(*values: float) -> list[Tensor]:
    return request(*[[value] * 4 for value in values])


def enqueued(machine: Any) -> int:
    """How often a context has enqueued, since this was last read; graphs are enqueued by the device."""
    machine.gpus.run()
    count = sum(context.enqueued for context in machine.trt.contexts)
    for context in machine.trt.contexts:
        context.enqueued = 0
    return count


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }", [1, 2, 4, 8]),
        ("max_batch_size: 5", [1, 2, 3, 4, 5]),
    ],
)
def test_batches_of_the_sizes_that_were_captured_need_no_enqueueing(machine: Any, text: str, sizes: list[int]) -> None:
    runner = machine.start(double_plan(), machine.config(f"{text} {GRAPHS}"))
    enqueued(machine)
    served = []
    for size in range(1, 6 if "5" in text else 9):
        (answer,) = runner.run(rows(*range(size)))
        assert answer["OUT"][:, 0].tolist() == [2 * row for row in range(size)]
        if not enqueued(machine):
            served.append(size)
    assert served == sizes


def test_two_batches_on_one_graph_do_not_mix(machine: Any) -> None:
    """The second is launched before the device has begun the first: the graph's own memory is written and read in the
    order of the stream, and what comes out is each batch's own."""
    runner = machine.start(double_plan(), machine.config(f"max_batch_size: 1 {GRAPHS}"))
    machine.gpus.run()
    first, second = runner.launch(rows(1)), runner.launch(rows(5))
    gc.collect()
    machine.gpus.run()
    assert first.collect()[0]["OUT"].tolist() == [[2.0] * 4]
    assert second.collect()[0]["OUT"].tolist() == [[10.0] * 4]


def test_results_that_are_copied_late_are_not_the_next_batchs(machine: Any) -> None:
    """The graph is launched for the second batch before the results of the first have left the device."""
    runner = machine.start(double_plan(), machine.config(f"max_batch_size: 1 {GRAPHS}"))
    machine.gpus.run()
    with machine.held_up(runner.instance._pipeline._copies_out):
        first, second = runner.launch(rows(1)), runner.launch(rows(5))
    machine.gpus.run()
    assert first.collect()[0]["OUT"].tolist() == [[2.0] * 4]
    assert second.collect()[0]["OUT"].tolist() == [[10.0] * 4]


def test_a_graph_serves_smaller_batches_down_to_its_lower_bound(machine: Any) -> None:
    """They are filled up, and the surplus is dropped."""
    spec = "graph_spec { batch_size: 6 graph_lower_bound { batch_size: 3 } }"
    runner = machine.start(double_plan(), machine.config(graphs(8, spec)))
    enqueued(machine)
    runner.run(rows(9, 9, 9, 9, 9, 9))
    first, second = runner.run(rows(1, 2), rows(3))
    assert first["OUT"][:, 0].tolist() == [2, 4]
    assert second["OUT"][:, 0].tolist() == [6]
    assert enqueued(machine) == 0
    (captured,) = runner.instance._graphs[0]._choice.graphs
    memory = machine.gpus.memory(captured.inputs["IN"].data.ptr, 6 * 4 * 4).view(np.float32).reshape(6, 4)
    assert memory[:, 0].tolist() == [1, 2, 3, 0, 0, 0]
    runner.run(rows(1, 2))
    assert enqueued(machine) == 1


def test_open_dimensions_are_captured_at_the_optimum_of_the_profile(machine: Any) -> None:
    engine = plan("double", [tensor("IN", (-1, -1), ((1, 1), (4, 3), (8, 9)))], [tensor("OUT", (-1, -1))])
    runner = machine.start(engine, machine.config(f"max_batch_size: 1 {GRAPHS}", WIDE))
    enqueued(machine)
    assert runner.run(request([1, 2, 3]))[0]["OUT"].tolist() == [[2, 4, 6]]
    assert enqueued(machine) == 0
    assert runner.run(request([1, 2]))[0]["OUT"].tolist() == [[2, 4]]
    assert enqueued(machine) == 1


def test_open_dimensions_may_be_given_by_a_graph_spec(machine: Any) -> None:
    engine = plan("double", [tensor("IN", (-1, -1), ((1, 1), (4, 3), (8, 9)))], [tensor("OUT", (-1, -1))])
    spec = 'graph_spec { batch_size: 2 input { key: "IN" value { dim: [ 5 ] } } }'
    runner = machine.start(engine, machine.config(graphs(2, spec), WIDE))
    enqueued(machine)
    runner.run(request([1] * 5, [2] * 5))
    assert enqueued(machine) == 0
    runner.run(request([1] * 3, [2] * 3))
    assert enqueued(machine) == 1


def test_models_that_do_not_batch(machine: Any) -> None:
    tensors = WIDE.replace("-1", "4")
    runner = machine.start(plan("double", [tensor("IN", (4,))], [tensor("OUT", (4,))]), machine.config(GRAPHS, tensors))
    enqueued(machine)
    (answer,) = runner.run([Tensor("IN", FP32, (4,), np.array([1, 2, 3, 4], np.float32).tobytes())])
    assert answer["OUT"].tolist() == [2, 4, 6, 8]
    assert enqueued(machine) == 0


def test_what_cannot_be_captured_is_executed_without(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    tensors = WIDE.replace('"OUT" data_type: TYPE_FP32', '"OUT" data_type: TYPE_INT64')
    engine = plan("nonzero", [tensor("IN", (-1,), ((1,), (4,), (8,)))], [tensor("OUT", (-1,), element="INT64")])
    with caplog.at_level(logging.WARNING):
        runner = machine.start(engine, machine.config(GRAPHS, tensors))
    assert caplog.messages == [
        "unable to record CUDA graph for m_0: the shape of output 'OUT' depends on what is computed"
    ]
    (answer,) = runner.run([Tensor("IN", FP32, (4,), np.array([0, 1, 0, 1], np.float32).tobytes())])
    assert answer["OUT"].tolist() == [1, 3]


def test_what_a_failed_capture_has_enqueued_writes_to_no_other_batchs_memory(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the attempt has been done when the first batch comes."""
    hindrance = FakeEvent(0)
    hindrance.pending = True
    new_stream = machine.gpus.new_stream

    def held_up(device: int, priority: int) -> Any:
        stream = new_stream(device, priority)
        if len(machine.gpus._streams) == 2:  # where batches are computed
            stream.queue.append(Operation("wait", lambda: None, 0, hindrance))
        return stream

    monkeypatch.setattr(machine.gpus, "new_stream", held_up)
    monkeypatch.setattr("trireme.engine.gpu.cupy_device.CupyDevice.capture", refuse)
    runner = machine.start(double_plan(), machine.config(f"max_batch_size: 1 {GRAPHS}"))
    gc.collect()
    flying = runner.launch(rows(3))
    machine.gpus.run()
    hindrance.pending = False
    machine.gpus.run()
    assert flying.collect()[0]["OUT"].tolist() == [[6.0] * 4]
    runner.run(rows(1))
    assert runner.instance._graphs[0]._held == []


def refuse(*_: Any) -> Any:
    raise InternalError("operation not permitted when stream is capturing")


def test_sizes_that_the_profile_does_not_allow_are_not_captured(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    machine.start(double_plan(most=2), machine.config(f"max_batch_size: 4 {GRAPHS}"))
    assert len(caplog.messages) == 2
    assert "dimension 0 to be between 1 and 2 but received 4" in caplog.messages[0]


def test_a_batch_without_room_for_its_results_fails_alone(machine: Any) -> None:
    runner = machine.start(double_plan(), machine.config(f"max_batch_size: 1 {GRAPHS}"))
    machine.gpus.run()
    free, machine.gpus.memory_bytes = machine.gpus.memory_bytes, 0
    flying = runner.launch(rows(1))
    machine.gpus.run()
    with pytest.raises(OutOfDeviceMemoryError):
        flying.collect()
    machine.gpus.memory_bytes = free
    assert runner.run(rows(4))[0]["OUT"].tolist() == [[8.0] * 4]
