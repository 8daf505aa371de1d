"""Real models on the real ONNX Runtime: what goes in, what comes out."""

from __future__ import annotations

import weakref
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.config.model import BatchInput, BatchOutput, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BF16, BYTES, DATATYPES, FP32, INT32, INT64, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.job import Phase


def config(
    *,
    datatype: DataType = FP32,
    dims: tuple[int, ...] = (4,),
    max_batch_size: int = 8,
    inputs: tuple[ModelInput, ...] = (),
    outputs: tuple[ModelOutput, ...] = (),
    **rest: Any,
) -> ModelConfig:
    return ModelConfig(
        "m",
        max_batch_size=max_batch_size,
        input=inputs or (ModelInput("X", datatype, dims),),
        output=outputs or (ModelOutput("Y", datatype, dims),),
        **rest,
    )


@pytest.mark.parametrize("datatype", DATATYPES, ids=repr)
def test_every_type_makes_the_round_trip_in_a_batch(models: Any, start: Any, tensor: Any, datatype: DataType) -> None:
    models.unary(datatype=datatype.name)
    runner = start(config(datatype=datatype))
    if datatype is BYTES:
        rows = [[b"", b"a", "é\0x".encode(), b"b" * 300], [b"1", b"2", b"3", b"4"], [b"5", b"6", b"7", b"8"]]
    elif datatype.name == "BOOL":
        rows = [[True, False, True, True], [False, False, True, False], [True, True, True, True]]
    else:
        rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 100]]
    one, two = runner.run({"X": tensor("X", datatype, rows[:2])}, {"X": tensor("X", datatype, rows[2:])}, rows=[2, 1])
    assert one["Y"].dtype == datatype.storage
    assert one["Y"].tolist() == rows[:2]
    assert two["Y"].tolist() == rows[2:]


def test_bf16_values_are_computed_with_not_only_carried(models: Any, start: Any, tensor: Any) -> None:
    models.graph(
        [
            helper.make_node("Cast", ["X"], ["F"], to=TensorProto.FLOAT),
            helper.make_node("Neg", ["F"], ["N"]),
            helper.make_node("Cast", ["N"], ["Y"], to=TensorProto.BFLOAT16),
        ],
        [helper.make_tensor_value_info("X", TensorProto.BFLOAT16, ["n", 2])],
        [
            helper.make_tensor_value_info("Y", TensorProto.BFLOAT16, ["n", 2]),
            helper.make_tensor_value_info("N", TensorProto.FLOAT, ["n", 2]),
        ],
    )
    outputs = (ModelOutput("N", FP32, (2,)), ModelOutput("Y", BF16, (2,)))
    runner = start(config(datatype=BF16, dims=(2,), outputs=outputs))
    bits = np.array([[1.5, -3.25]], dtype=ml_dtypes.bfloat16).view(np.uint16)
    (answer,) = runner.run({"X": tensor("X", BF16, bits)})
    assert answer["Y"].view(ml_dtypes.bfloat16).astype(float).tolist() == [[-1.5, 3.25]]
    assert answer["N"].tolist() == [[-1.5, 3.25]]


def test_bf16_in_and_strings_out_go_together(models: Any, start: Any, tensor: Any) -> None:
    models.graph(
        [
            helper.make_node("Cast", ["X"], ["Y"], to=TensorProto.FLOAT),
            helper.make_node("Identity", ["S"], ["T"]),
        ],
        [
            helper.make_tensor_value_info("X", TensorProto.BFLOAT16, ["n"]),
            helper.make_tensor_value_info("S", TensorProto.STRING, ["n"]),
        ],
        [
            helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("T", TensorProto.STRING, ["n"]),
        ],
    )
    runner = start(
        config(
            max_batch_size=0,
            inputs=(ModelInput("X", BF16, (-1,)), ModelInput("S", BYTES, (-1,))),
            outputs=(ModelOutput("Y", FP32, (-1,)), ModelOutput("T", BYTES, (-1,))),
        )
    )
    (answer,) = runner.run({"X": tensor("X", BF16, [0x3F80]), "S": tensor("S", BYTES, [b"s"])})
    assert (answer["Y"].tolist(), answer["T"].tolist()) == ([1.0], [b"s"])


def test_a_string_that_is_not_utf8_fails_its_request_alone(models: Any, start: Any, tensor: Any) -> None:
    models.unary(datatype="BYTES", shape=("n", 2))
    runner = start(config(datatype=BYTES, dims=(2,)))
    good, bad, also_good = runner.run(
        {"X": tensor("X", BYTES, [[b"a", b"b"]])},
        {"X": tensor("X", BYTES, [[b"c", b"\xc3"]])},
        {"X": tensor("X", BYTES, [[b"e", b"f"]])},
        ids=["1", "2", "3"],
    )
    assert good["Y"].tolist() == [[b"a", b"b"]]
    assert also_good["Y"].tolist() == [[b"e", b"f"]]
    assert isinstance(bad, InvalidArgumentError)
    assert bad.message == (
        "[request id: 2] input 'X' must hold UTF-8 text, but its element 1 is not: unexpected end of data at byte 0"
    )


def test_nothing_runs_when_no_request_of_the_batch_is_good(models: Any, start: Any, tensor: Any) -> None:
    models.unary(datatype="BYTES", shape=("n", 1))
    runner = start(config(datatype=BYTES, dims=(1,)))
    (error,) = runner.run({"X": tensor("X", BYTES, [[b"\xff"]])})
    assert isinstance(error, InvalidArgumentError)
    assert runner.batch.marks[Phase.INFER_START] <= 0, "no run was marked"


def test_dynamic_dimensions_may_differ_from_run_to_run(models: Any, start: Any, tensor: Any) -> None:
    models.unary(shape=("n", "a", 2))
    runner = start(config(dims=(-1, 2)))
    for size in (1, 3, 0):
        values = np.arange(2 * size * 2, dtype=np.float32).reshape(2, size, 2)
        (answer,) = runner.run({"X": tensor("X", FP32, values)}, rows=[2])
        assert answer["Y"].shape == values.shape
        assert answer["Y"].tolist() == values.tolist()


@pytest.mark.parametrize("datatype", [FP32, BYTES, BF16], ids=repr)
def test_scalars_have_dimensions_of_one_for_clients(models: Any, start: Any, tensor: Any, datatype: DataType) -> None:
    models.unary(shape=(), datatype=datatype.name)
    inputs = (ModelInput("X", datatype, (1,)),)
    outputs = (ModelOutput("Y", datatype, (1, 1)),)
    runner = start(config(max_batch_size=0, inputs=inputs, outputs=outputs))
    value = b"a" if datatype is BYTES else 3
    (answer,) = runner.run({"X": tensor("X", datatype, [value])})
    assert answer["Y"].tolist() == [[value]]


def test_an_optional_input_overrides_its_initialiser_when_it_is_there(models: Any, start: Any, tensor: Any) -> None:
    models.graph(
        [helper.make_node("Add", ["X", "B"], ["Y"])],
        [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("B", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("B", TensorProto.FLOAT, [2], [10, 20])],
    )
    inputs = (ModelInput("X", FP32, (2,)), ModelInput("B", FP32, (2,), optional=True))
    runner = start(config(max_batch_size=0, dims=(2,), inputs=inputs))
    given = {"X": tensor("X", FP32, [1, 2])}
    assert runner.run(given)[0]["Y"].tolist() == [11, 22]
    assert runner.run({**given, "B": tensor("B", FP32, [5, 6])})[0]["Y"].tolist() == [6, 8]


def test_reshaped_tensors(models: Any, start: Any, tensor: Any) -> None:
    """The graph knows [n] where clients see [n, 1]; inputs arrive reshaped."""
    models.unary(shape=("n",))
    inputs = (ModelInput("X", FP32, (1,), reshape=()),)
    outputs = (ModelOutput("Y", FP32, (1,), reshape=()),)
    runner = start(config(inputs=inputs, outputs=outputs))
    answers = runner.run({"X": tensor("X", FP32, [1, 2])}, {"X": tensor("X", FP32, [3])}, rows=[2, 1])
    assert [answer["Y"].tolist() for answer in answers] == [[[1], [2]], [[3]]]


def test_outputs_may_be_a_subset_of_the_graphs(models: Any, start: Any, tensor: Any) -> None:
    models.graph(
        [helper.make_node("Neg", ["X"], ["A"]), helper.make_node("Abs", ["X"], ["B"])],
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1]) for name in "AB"],
    )
    runner = start(config(dims=(1,), outputs=(ModelOutput("B", FP32, (1,)),)))
    (answer,) = runner.run({"X": tensor("X", FP32, [[-7]])})
    assert {name: array.tolist() for name, array in answer.items()} == {"B": [[7]]}


def test_ragged_inputs_batch_inputs_and_batch_outputs_with_a_real_model(models: Any, start: Any, tensor: Any) -> None:
    """Each request has its own length; the model gets all elements flat, and where each request ends."""
    models.graph(
        [helper.make_node("Neg", ["X"], ["Y"]), helper.make_node("Identity", ["ENDS"], ["E"])],
        [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, ["all"]),
            helper.make_tensor_value_info("ENDS", TensorProto.INT32, ["n"]),
        ],
        [
            helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["all"]),
            helper.make_tensor_value_info("E", TensorProto.INT32, ["n"]),
        ],
    )
    runner = start(
        config(
            inputs=(ModelInput("X", FP32, (-1,), allow_ragged_batch=True),),
            outputs=(ModelOutput("Y", FP32, (-1,)), ModelOutput("E", INT32, (1,), reshape=())),
            batch_input=(BatchInput("BATCH_ACCUMULATED_ELEMENT_COUNT", ("ENDS",), INT32, ("X",)),),
            batch_output=(BatchOutput("BATCH_SCATTER_WITH_INPUT_SHAPE", ("Y",), ("X",)),),
        )
    )
    answers = runner.run({"X": tensor("X", FP32, [[1, 2, 3]])}, {"X": tensor("X", FP32, [[4]])})
    assert [answer["Y"].tolist() for answer in answers] == [[[-1, -2, -3]], [[-4]]]
    assert [answer["E"].tolist() for answer in answers] == [[[3]], [[4]]]


def test_an_error_of_the_run_is_told_without_cpp_noise(models: Any, start: Any, tensor: Any) -> None:
    models.graph(
        [helper.make_node("Gather", ["T", "X"], ["Y"])],
        [helper.make_tensor_value_info("X", TensorProto.INT64, ["n", 1])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor("T", TensorProto.FLOAT, [4], [1, 2, 3, 4])],
    )
    inputs = (ModelInput("X", INT64, (1,)),)
    runner = start(config(dims=(1,), inputs=inputs))
    with pytest.raises(InternalError, match=r"^onnx runtime error 2: .*indices element out of data bounds, idx=9"):
        runner.run({"X": tensor("X", INT64, [[9]])})
    assert runner.run({"X": tensor("X", INT64, [[2]])})[0]["Y"].tolist() == [[3]], "the instance lives on"


def test_a_batch_larger_than_allowed_is_refused(models: Any, start: Any, tensor: Any) -> None:
    models.unary()
    runner = start(config(max_batch_size=2))
    with pytest.raises(InternalError) as caught:
        runner.run({"X": tensor("X", FP32, np.zeros((3, 4)))}, rows=[3])
    assert caught.value.message == "batch size 3 for 'm_0', max allowed is 2"


def test_the_phases_of_a_batch_are_marked(models: Any, start: Any, tensor: Any) -> None:
    models.unary()
    runner = start(config())
    runner.run({"X": tensor("X", FP32, [[1, 2, 3, 4]])})
    assert 0 < runner.batch.marks[Phase.INFER_START] <= runner.batch.marks[Phase.OUTPUT_START]


def test_a_closed_instance_gives_its_session_back(models: Any) -> None:
    models.unary()
    loaded = OnnxRuntimeBackend({}).load(config(), models.files)
    instance = loaded.create_instance(InstanceSpec("m_0"))
    session = weakref.ref(instance.session)
    instance.close()
    loaded.close()
    assert session() is None


def test_every_instance_has_a_session_of_its_own_and_the_one_made_to_check_is_not_wasted(
    models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.unary()
    made: list[Any] = []
    real = onnxruntime.InferenceSession

    def counted(*args: Any, **options: Any) -> Any:
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    loaded = OnnxRuntimeBackend({}).load(config(), models.files)
    assert [loaded.create_instance(InstanceSpec(f"m_{at}")).session for at in range(3)] == made
    assert len(set(map(id, made))) == 3
