"""What an engine says about a model whose configuration does not
(docs/reference/model-configuration.md#completion-by-backends)."""

from __future__ import annotations

from typing import Any

import pytest
from fake_plans import double_plan, plan, tensor

from trireme.engine.backends.interface import Completion
from trireme.engine.config.model import InstanceGroup, ModelConfig
from trireme.engine.errors import TriremeError

IN = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }'


def complete(machine: Any, engine: bytes, text: str = "", tensors: str = "", group: str = "gpus: [ 0 ]") -> Completion:
    (machine.files.version_directory / "model.plan").write_bytes(engine)
    completion = machine.backend().auto_complete(machine.config(text, tensors, group), machine.files)
    assert completion is not None
    return completion


def refusal(machine: Any, engine: bytes, text: str = "", tensors: str = "", group: str = "gpus: [ 0 ]") -> str:
    with pytest.raises(TriremeError) as caught:
        complete(machine, engine, text, tensors, group)
    return caught.value.status_text


def test_everything_from_the_engine(machine: Any) -> None:
    completion = complete(machine, double_plan(element="BF16", most=16))
    assert completion.max_batch_size == 16
    assert completion.dynamic_batching
    (given,), (made,) = completion.input, completion.output
    assert (given.name, given.datatype.name, given.dims) == ("IN", "BF16", (4,))
    assert (made.name, made.datatype.name, made.dims) == ("OUT", "BF16", (4,))


def test_what_is_given_stays(machine: Any) -> None:
    completion = complete(machine, double_plan(most=16), "max_batch_size: 4", IN)
    assert completion.max_batch_size == 4
    assert completion.input == ()
    assert [tensor.name for tensor in completion.output] == ["OUT"]


def test_one_row_needs_no_batcher(machine: Any) -> None:
    assert not complete(machine, double_plan(most=1)).dynamic_batching


def test_the_profiles_in_use_count(machine: Any) -> None:
    engine = plan(
        "double",
        [tensor("IN", (-1, 4), ((1, 4), (1, 4), (2, 4)), ((1, 4), (8, 4), (32, 4)))],
        [tensor("OUT", (-1, 4))],
    )
    assert complete(machine, engine).max_batch_size == 2
    assert complete(machine, engine, group='gpus: [ 0 ] profile: [ "0", "1" ]').max_batch_size == 32
    assert refusal(machine, engine, group='gpus: [ 0 ] profile: [ "2" ]') == (
        "Internal: unable to autofill for 'm', configuration specified invalid profile 2 . Number of profiles "
        "supported by TensorRT engine: 2"
    )


def test_scalars_leave_no_room_for_batches(machine: Any) -> None:
    completion = complete(machine, plan("double", [tensor("IN", ())], [tensor("OUT", ())]))
    assert completion.max_batch_size == 0
    assert completion.input[0].dims == (1,)


def test_a_tensor_that_is_all_batch_gets_a_dimension_of_one(machine: Any) -> None:
    shapes = ((1,), (4,), (8,))
    completion = complete(machine, plan("double", [tensor("IN", (-1,), shapes)], [tensor("OUT", (-1,))]))
    assert (completion.input[0].dims, completion.input[0].reshape) == ((1,), ())


def test_shape_tensors_are_marked_and_lose_the_value_of_the_batch(machine: Any) -> None:
    engine = plan(
        "resize",
        [
            tensor("IN", (-1, 2), ((1, 2), (4, 2), (8, 2))),
            tensor("SHAPE", (2,), element="INT32", shape=True, values=[((1, 1), (4, 3), (6, 9))]),
        ],
        [tensor("OUT", (-1, -1)), tensor("OUT_SHAPE", (2,), element="INT32", shape=True)],
    )
    completion = complete(machine, engine)
    assert completion.max_batch_size == 6
    assert [(each.name, each.dims, each.is_shape_tensor) for each in (*completion.input, *completion.output)] == [
        ("IN", (2,), False),
        ("SHAPE", (1,), True),
        ("OUT", (-1,), False),
        ("OUT_SHAPE", (1,), True),
    ]


def test_full_shapes_in_the_configuration_mean_that_there_are_no_batches(machine: Any) -> None:
    whole = IN.replace("4", "-1, 4")
    assert complete(machine, double_plan(), tensors=whole).max_batch_size == 0
    assert refusal(machine, double_plan(), "max_batch_size: 2", whole) == (
        "Internal: autofill failed for model 'm': configuration specified max-batch 2 but TensorRT engine only "
        "supports max-batch 0"
    )


def test_batches_larger_than_the_engine_allows(machine: Any) -> None:
    assert refusal(machine, double_plan(most=8), "max_batch_size: 9") == (
        "Internal: autofill failed for model 'm': configuration specified max-batch 9 but TensorRT engine only "
        "supports max-batch 8"
    )


def test_batches_of_an_engine_without(machine: Any) -> None:
    engine = plan(
        "sum_difference", [tensor("A", (4,)), tensor("B", ())], [tensor("SUM", (4,)), tensor("DIFFERENCE", (4,))]
    )
    ragged = 'input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }'
    assert refusal(machine, engine, tensors=ragged) == (
        "Internal: autofill failed for model 'm': model tensor shape configuration hints for dynamic batching but the "
        "underlying engine doesn't support batching."
    )


def test_hints_that_contradict_each_other(machine: Any) -> None:
    out = 'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1, 4 ] }'
    assert refusal(machine, double_plan(), tensors=IN + out) == (
        "Internal: unable to autofill for 'm', model tensor configurations are contradicting each other in terms of "
        "whether batching is supported"
    )


@pytest.mark.parametrize("groups", [(), (InstanceGroup("m", "KIND_CPU", 1),)])
def test_nothing_is_said_where_there_is_no_gpu(machine: Any, groups: tuple[InstanceGroup, ...]) -> None:
    (machine.files.version_directory / "model.plan").write_bytes(double_plan())
    assert machine.backend().auto_complete(ModelConfig("m", instance_group=groups), machine.files) is None
