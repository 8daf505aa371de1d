"""Batches through an engine: what goes in, what comes out, and what happens in between."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from fake_gpu import Operation
from fake_plans import double_plan, plan, tensor

from trireme.engine.datatypes import BY_NAME, INT32
from trireme.engine.errors import InternalError
from trireme.engine.gpu.device import OutOfDeviceMemoryError, SickDeviceError
from trireme.engine.job import Phase
from trireme.engine.tensor import Tensor


def given(name: str, values: Any, datatype: str = "FP32") -> Tensor:
    """A tensor as a request brings it."""
    kind = BY_NAME[datatype]
    array = np.array(values, kind.storage)
    return Tensor(name, kind, array.shape, array.tobytes())


def row(value: float) -> list[Tensor]:
    return [given("IN", [[value] * 4])]


def test_requests_run_together_and_get_their_own_rows(machine: Any) -> None:
    runner = machine.start(double_plan())
    answers = runner.run([given("IN", [[1, 2, 3, 4]] * 2)], [given("IN", [[5, 6, 7, 8]])])
    assert [answer["OUT"].tolist() for answer in answers] == [[[2.0, 4.0, 6.0, 8.0]] * 2, [[10.0, 12.0, 14.0, 16.0]]]


def test_two_batches_fly_at_once_in_one_context(machine: Any) -> None:
    """The second is enqueued before the device has begun the first, and neither changes the other, whatever their
    sizes; one context serves both."""
    runner = machine.start(double_plan())
    first = runner.launch(row(1), row(2), row(3))
    second = runner.launch(row(10))
    (context,) = machine.trt.contexts
    assert context.flying == 2
    gc.collect()
    machine.gpus.run()
    assert [answer["OUT"][0, 0] for answer in first.collect()] == [2, 4, 6]
    assert [answer["OUT"][0, 0] for answer in second.collect()] == [20]


def test_answers_stay_what_they_are_when_the_next_batch_runs(machine: Any) -> None:
    runner = machine.start(double_plan())
    (first,) = runner.run(row(1))
    runner.run(row(9))
    assert first["OUT"].tolist() == [[2.0] * 4]


def test_the_phases_take_as_long_as_the_device_says(machine: Any) -> None:
    runner = machine.start(double_plan())
    flying = runner.launch(row(1))
    machine.gpus.run()
    flying.collect()
    marks = flying.batch.marks
    assert marks[Phase.OUTPUT_START] - marks[Phase.INFER_START] >= 5000


@pytest.mark.parametrize(
    ("element", "datatype"),
    [
        ("FLOAT", "FP32"),
        ("HALF", "FP16"),
        ("BF16", "BF16"),
        ("INT8", "INT8"),
        ("UINT8", "UINT8"),
        ("INT32", "INT32"),
        ("INT64", "INT64"),
        ("BOOL", "BOOL"),
    ],
)
def test_every_type_goes_through(machine: Any, element: str, datatype: str) -> None:
    tensors = f"""
        input {{ name: "IN" data_type: TYPE_{datatype} dims: [ 4 ] }}
        output {{ name: "OUT" data_type: TYPE_{datatype} dims: [ 4 ] }}
    """
    runner = machine.start(double_plan(element=element), machine.config(tensors=tensors))
    (answer,) = runner.run([given("IN", [[0, 1, 0, 1]], datatype)])
    assert answer["OUT"].dtype == BY_NAME[datatype].storage
    assert answer["OUT"].astype(int).tolist() == [[0, 1, 0, 1]] if datatype == "BOOL" else [[0, 2, 0, 2]]


def test_models_that_do_not_batch_take_scalars(machine: Any) -> None:
    """What configurations call [1] is a scalar in the engine."""
    tensors = """
        input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
    """
    runner = machine.start(plan("double", [tensor("IN", ())], [tensor("OUT", ())]), machine.config("", tensors))
    (answer,) = runner.run([given("IN", [21])])
    assert answer["OUT"].tolist() == [42.0]


def test_tensors_without_elements_have_an_address_all_the_same(machine: Any) -> None:
    tensors = """
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
    """
    shapes = ((0,), (4,), (8,))
    runner = machine.start(
        plan("double", [tensor("IN", (-1,), shapes)], [tensor("OUT", (-1,))]), machine.config("", tensors)
    )
    (answer,) = runner.run([given("IN", [])])
    assert answer["OUT"].shape == (0,)


NONZERO = """
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
"""


def nonzero() -> bytes:
    return plan("nonzero", [tensor("IN", (-1,), ((1,), (4,), (8,)))], [tensor("OUT", (-1,), element="INT64")])


def test_outputs_whose_shape_only_the_computation_knows(machine: Any) -> None:
    """TensorRT asks for their memory while it enqueues, batch after batch, of the same allocator."""
    runner = machine.start(nonzero(), machine.config("", NONZERO))
    for values in ([0, 1, 0, 2, 3], [5], [0, 0]):
        (answer,) = runner.run([given("IN", values)])
        assert answer["OUT"].tolist() == np.flatnonzero(values).tolist()


def test_no_memory_for_an_output_of_unknown_shape(machine: Any) -> None:
    """TensorRT learns only that there is none; the batch is told why."""
    runner = machine.start(nonzero(), machine.config("", NONZERO))
    growing = np.array([1] * 8)
    free = machine.gpus.memory_bytes

    def exhaust() -> None:
        machine.gpus.memory_bytes = 0

    machine.gpus.enqueue(runner.instance._pipeline.compute.handle, Operation("exhaust", exhaust))
    flying = runner.launch([given("IN", growing)])
    machine.gpus.run()
    with pytest.raises(OutOfDeviceMemoryError):
        flying.collect()
    machine.gpus.memory_bytes = free
    assert runner.run([given("IN", growing)])[0]["OUT"].tolist() == list(range(8))


def test_an_output_of_unknown_shape_that_fails_otherwise(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = machine.start(nonzero(), machine.config("", NONZERO))
    with monkeypatch.context() as patch:
        patch.setattr(machine.trt.contexts[0], "execute_async_v3", lambda stream: machine.trt.error("no kernel"))
        with pytest.raises(InternalError, match=r"^unable to enqueue for inference m_0: no kernel$"):
            runner.run([given("IN", [0, 1])])
    assert runner.run([given("IN", [0, 1])])[0]["OUT"].tolist() == [1]


def test_an_output_whose_shape_tensorrt_does_not_tell(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = machine.start(nonzero(), machine.config("", NONZERO))
    runner.run([given("IN", [0, 1])])
    monkeypatch.setattr(machine.trt.contexts[0], "execute_async_v3", lambda stream: True)
    with pytest.raises(InternalError, match=r"^TensorRT told no shape of the output 'OUT'$"):
        runner.run([given("IN", [0, 1])])


def test_ragged_inputs_and_what_is_made_from_the_batch(machine: Any) -> None:
    tensors = """
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
        batch_input {
            kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "IN"
        }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
        batch_output { target_name: "OUT" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "IN" }
    """
    engine = plan(
        "scaled_rows",
        [tensor("IN", (-1,), ((1,), (8,), (64,))), tensor("ENDS", (-1,), ((1,), (4,), (8,)), element="INT32")],
        [tensor("OUT", (-1,))],
    )
    runner = machine.start(engine, machine.config(tensors=tensors))
    answers = runner.run([given("IN", [[1, 1, 1]])], [given("IN", [[2]])], [given("IN", [[3, 3]])])
    assert [answer["OUT"].tolist() for answer in answers] == [[[0, 0, 0]], [[2]], [[6, 6]]]


def test_a_batch_without_room_fails_and_the_instance_lives_on(machine: Any) -> None:
    runner = machine.start(double_plan())
    free, machine.gpus.memory_bytes = machine.gpus.memory_bytes, 0
    flying = runner.launch(row(1))
    machine.gpus.run()
    with pytest.raises(OutOfDeviceMemoryError):
        flying.collect()
    machine.gpus.memory_bytes = free
    assert runner.run(row(1))[0]["OUT"][0, 0] == 2


def test_the_device_of_an_instance_is_the_current_one_when_its_batches_are_enqueued(machine: Any) -> None:
    runner = machine.start(double_plan(), machine.config(group="gpus: [ 1 ]"), device=1)
    assert runner.run(row(4))[0]["OUT"].tolist() == [[8.0] * 4]


def test_what_a_failed_batch_has_enqueued_writes_to_no_other_batchs_memory(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that fails may have enqueued half of its work: the memory that this writes to stays taken until then."""
    runner = machine.start(double_plan())
    (context,) = machine.trt.contexts

    def fail(stream: int) -> bool:
        target = context._addresses["OUT"]
        machine.gpus.enqueue(stream, Operation("half", lambda: machine.gpus.memory(target, 16).fill(1)))
        return False

    with machine.held_up(runner.instance._pipeline.compute):
        with monkeypatch.context() as patch:
            patch.setattr(context, "execute_async_v3", fail)
            failing = runner.launch(row(1))
        gc.collect()
        good = runner.launch(row(3))
    machine.gpus.run()
    with pytest.raises(InternalError, match=r"^unable to enqueue for inference m_0$"):
        failing.collect()
    assert good.collect()[0]["OUT"].tolist() == [[6.0] * 4]


def test_a_batch_that_tensorrt_does_not_take_fails_with_what_it_logs(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = machine.start(double_plan())
    (context,) = machine.trt.contexts

    def execute(stream: int) -> bool:
        machine.trt.error("Error Code 1: Cask (no kernel image)")
        return False

    monkeypatch.setattr(context, "execute_async_v3", execute)
    flying = runner.launch(row(1))
    machine.gpus.run()
    with pytest.raises(InternalError, match=r"^unable to enqueue for inference m_0: Error Code 1: Cask"):
        flying.collect()
    monkeypatch.undo()


def test_a_sick_device_is_noticed(machine: Any) -> None:
    runner = machine.start(double_plan())
    flying = runner.launch(row(1))
    runner.instance.healthy(flying.launched)
    machine.gpus.sick = 700
    with pytest.raises(SickDeviceError):
        runner.instance.healthy(flying.launched)


def test_a_batch_larger_than_the_configuration_allows(machine: Any) -> None:
    runner = machine.start(double_plan(), machine.config("max_batch_size: 2"))
    with pytest.raises(InternalError, match=r"^batch size 3 for 'm_0', max allowed is 2$"):
        runner.launch(row(1), row(2), row(3))


def test_what_a_profile_does_not_allow_is_refused_before_anything_is_enqueued(machine: Any) -> None:
    runner = machine.start(double_plan(most=2))
    with pytest.raises(InternalError) as caught:
        runner.launch(row(1), row(2), row(3))
    assert str(caught.value) == (
        "request specifies invalid shape for input 'IN' for m_0. Error details: model expected the shape of dimension "
        "0 to be between 1 and 2 but received 3"
    )


def test_states_come_out_and_go_in_again(machine: Any) -> None:
    """What a batch leaves behind is written to its sequence's state."""
    tensors = """
        input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
        output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
        sequence_batching {
            state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [ 1 ] }
        }
    """
    rows = ((1, 1), (8, 1), (8, 1))
    engine = plan(
        "count",
        [tensor("IN", (-1, 1), rows, element="INT32"), tensor("STATE_IN", (-1, 1), rows, element="INT32")],
        [tensor("OUT", (-1, 1), element="INT32"), tensor("STATE_OUT", (-1, 1), element="INT32")],
    )
    runner = machine.start(engine, machine.config(tensors=tensors))
    kept: list[Tensor] = []

    class State:
        write = staticmethod(kept.append)

    flying_state = {"STATE_IN": given("STATE_IN", [[5]], "INT32")}
    flying = runner.launch([given("IN", [[3]], "INT32")], server=flying_state)
    flying.batch.jobs[0].state = State()
    machine.gpus.run()
    (answer,) = flying.collect()
    assert answer.keys() == {"OUT"}
    assert answer["OUT"].tolist() == [[8]]
    assert [(state.name, state.datatype, state.array.tolist()) for state in kept] == [("STATE_OUT", INT32, [[8]])]


def test_closing_gives_everything_back(machine: Any) -> None:
    runner = machine.start(double_plan())
    runner.run(row(1))
    runner.instance.close()
    machine.loaded.close()
    assert not machine.loaded._made
