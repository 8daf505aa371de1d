"""Shape tensors: values that TensorRT reads on the host, once a batch."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from fake_gpu import Misuse
from fake_plans import plan, tensor

from trireme.engine.datatypes import FP32, INT32
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.tensor import Tensor

BATCHING = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "SHAPE" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT_SHAPE" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true }
"""
WHOLE = (
    BATCHING.replace("dims: [ 2 ]", "dims: [ -1, 2 ]")
    .replace("dims: [ 1 ]", "dims: [ 2 ]")
    .replace("[ -1 ]", "[ -1, -1 ]")
)


def resize(most: int = 9) -> bytes:
    """OUT is IN, repeated or cut to fit into SHAPE; OUT_SHAPE is SHAPE."""
    return plan(
        "resize",
        [
            tensor("IN", (-1, 2), ((1, 2), (4, 2), (8, 2))),
            tensor("SHAPE", (2,), element="INT32", shape=True, values=[((1, 1), (4, 3), (8, most))]),
        ],
        [tensor("OUT", (-1, -1)), tensor("OUT_SHAPE", (2,), element="INT32", shape=True)],
    )


def request(rows: int, *shape: int, start: float = 0) -> list[Tensor]:
    values = np.arange(start, start + rows * 2, dtype=np.float32).reshape(rows, 2)
    return [
        Tensor("IN", FP32, values.shape, values.tobytes()),
        Tensor("SHAPE", INT32, (len(shape),), np.array(shape, np.int32).tobytes()),
    ]


def test_a_model_that_does_not_batch_gets_them_as_they_are(machine: Any) -> None:
    runner = machine.start(resize(), machine.config("", WHOLE))
    (answer,) = runner.run(request(2, 3, 3))
    assert answer["OUT"].tolist() == [[0, 1, 2], [3, 0, 1], [2, 3, 0]]
    assert answer["OUT_SHAPE"].tolist() == [3, 3]


def test_a_batch_has_its_rows_in_front(machine: Any) -> None:
    """Each request says its own number of rows; the engine is told that of the batch, and answers lose it again."""
    runner = machine.start(resize(), machine.config(tensors=BATCHING))
    first, second = runner.run(request(1, 1, 3), request(2, 2, 3, start=2))
    assert first["OUT"].tolist() == [[0, 1, 2]]
    assert second["OUT"].tolist() == [[3, 4, 5], [0, 1, 2]]
    assert first["OUT_SHAPE"].tolist() == [[3]]
    assert second["OUT_SHAPE"].tolist() == [[3], [3]]


def test_two_batches_in_flight_do_not_share_them(machine: Any) -> None:
    """What the engine reads of the host's memory, and writes there, is each batch's own until it has landed."""
    runner = machine.start(resize(), machine.config(tensors=BATCHING))
    first = runner.launch(request(1, 1, 2))
    second = runner.launch(request(1, 1, 5, start=7))
    gc.collect()
    machine.gpus.run()
    assert first.collect()[0]["OUT_SHAPE"].tolist() == [[2]]
    (answer,) = second.collect()
    assert answer["OUT_SHAPE"].tolist() == [[5]]
    assert answer["OUT"].tolist() == [[7, 8, 7, 8, 7]]


def test_the_stand_in_notices_values_that_go_back_early(machine: Any) -> None:
    runner = machine.start(resize(), machine.config(tensors=BATCHING))
    flying = runner.launch(request(1, 1, 2))
    flying.launched[0].host_inputs["SHAPE"][1] = 3
    with pytest.raises(Misuse, match="have changed"):
        machine.gpus.run()


def test_values_beyond_the_profile_are_refused(machine: Any) -> None:
    runner = machine.start(resize(most=4), machine.config(tensors=BATCHING))
    with pytest.raises(InvalidArgumentError) as caught:
        runner.launch(request(1, 1, 5))
    assert str(caught.value) == "The shape value at index 1 is expected to be in range from 1 to 4, Got: 5"


def test_a_scalar_is_one_number_without_batches(machine: Any) -> None:
    shape = tensor("SHAPE", (), element="INT32", shape=True, values=[((1,), (3,), (8,))])
    outputs = [tensor("OUT", (-1, -1)), tensor("OUT_SHAPE", (), element="INT32", shape=True)]
    engine = plan("stretch", [tensor("IN", (-1, 2), ((1, 2), (4, 2), (8, 2))), shape], outputs)
    runner = machine.start(engine, machine.config("", WHOLE.replace("dims: [ 2 ]", "dims: [ 1 ]")))
    (answer,) = runner.run(request(1, 3))
    assert answer["OUT"].tolist() == [[0, 1, 0]]
    assert answer["OUT_SHAPE"].tolist() == [3]
    assert "shape expected by framework [] doesn't match model configuration shape [1]" in str(
        machine.refusal(engine, machine.config(tensors=BATCHING))
    )


def test_values_that_no_shape_can_be_inferred_from(machine: Any) -> None:
    runner = machine.start(resize(), machine.config("", WHOLE))
    with pytest.raises(InternalError) as caught:
        runner.run(request(2, 8, 9))
    assert str(caught.value) == (
        "unable to infer shapes for m_0: shape inference failed: inferShapes: [8, 9] is too large"
    )


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 3), "shape tensor 'SHAPE' for model 'm' must begin with the batch size 1, got 2"),
        ((3,), "unexpected shape for input 'SHAPE' for model 'm'. Expected [2], got [1]. NOTE: A shape tensor of "),
    ],
)
def test_requests_that_do_not_say_their_batch_size(machine: Any, shape: tuple[int, ...], text: str) -> None:
    runner = machine.start(resize(), machine.config(tensors=BATCHING))
    with pytest.raises(InvalidArgumentError) as caught:
        runner.launch(request(1, *shape))
    assert str(caught.value).startswith(f"[request id: <id_unknown>] {text}")
