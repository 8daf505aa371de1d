"""TorchScript modules (docs/reference/backends.md#torchscript), with the real PyTorch."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch_modules import (
    AddSub,
    GradientSpy,
    Keeper,
    Lengths,
    ListOfTensors,
    Moody,
    Scale,
    Tensors,
    Texts,
    TwoDicts,
)

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.datatypes import BY_NAME, BYTES, FP32, INT64
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
from trireme.engine.tensor import Tensor


def tensors(*names: str, kind: str = "FP32", outputs: tuple[str, ...] = ("Y",), made: str = "") -> str:
    """Text of a configuration's inputs and outputs, all of one dimension."""
    text = "".join(f'input {{ name: "{name}" data_type: TYPE_{kind} dims: [ -1 ] }} ' for name in names)
    return text + "".join(
        f'output {{ name: "{name}" data_type: TYPE_{made or kind} dims: [ -1 ] }} ' for name in outputs
    )


# Which tensor is which


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("left", "right"), ("OUTPUT__0", "OUTPUT__1")),
        (("right", "left"), ("SUM__0", "DIFFERENCE__1")),
        (("A__0", "B__1"), ("OUT__0", "OUT__1")),
        (("B__1", "A__0"), ("SUM", "DIFFERENCE")),
        (("ONE", "TWO"), ("SUM", "DIFFERENCE")),
    ],
)
def test_names_are_arguments_or_indices_or_an_order(
    script: Any, begin: Any, pytorch_config: Any, tensor: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    script(AddSub())
    runner = begin(pytorch_config("max_batch_size: 4", tensors(*inputs, outputs=outputs)))
    left = next(name for name in inputs if name in ("left", "A__0", "ONE"))
    values = {name: [[5.0] if name == left else [2.0]] for name in inputs}
    (answer,) = runner.run({name: tensor(name, FP32, value) for name, value in values.items()})
    assert [answer[name].tolist() for name in outputs] == [[[7.0]], [[3.0]]]


def test_an_output_index_may_come_in_any_order_and_leave_some_out(
    script: Any, begin: Any, pytorch_config: Any, tensor: Any
) -> None:
    script(AddSub())
    runner = begin(pytorch_config("", tensors("left", "right", outputs=("OUT__1", "OUT__0"))))
    (answer,) = runner.run({"left": tensor("left", FP32, [5]), "right": tensor("right", FP32, [2])})
    assert (answer["OUT__1"].tolist(), answer["OUT__0"].tolist()) == ([3.0], [7.0])


def test_a_dictionary_gets_every_input_under_its_name(
    script: Any, begin: Any, pytorch_config: Any, tensor: Any
) -> None:
    script(Tensors())
    runner = begin(pytorch_config("", tensors("A", "B")))
    (answer,) = runner.run({"A": tensor("A", FP32, [1, 2]), "B": tensor("B", FP32, [3, 4])})
    assert answer["Y"].tolist() == [13.0, 24.0]


def refusal(begin: Any, config: Any, kind: type[TriremeError] = InvalidArgumentError) -> str:
    with pytest.raises(kind) as caught:
        begin(config)
    return str(caught.value)


def test_two_dictionaries_are_refused(script: Any, begin: Any, pytorch_config: Any) -> None:
    script(TwoDicts())
    assert refusal(begin, pytorch_config("", tensors("A", "B"))) == (
        "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is supported."
    )


def test_every_argument_must_be_configured(script: Any, begin: Any, pytorch_config: Any) -> None:
    script(AddSub())
    assert (
        refusal(begin, pytorch_config()) == "unable to load model 'm', configuration expects 1 inputs, model provides 2"
    )


# Batches


def test_requests_run_together_and_get_their_own_rows(
    script: Any, begin: Any, pytorch_config: Any, tensor: Any
) -> None:
    script(Scale())
    runner = begin(pytorch_config("max_batch_size: 4"))
    answers = runner.run({"X": tensor("X", FP32, [[1], [2]])}, {"X": tensor("X", FP32, [[3]])}, rows=[2, 1])
    assert [answer["Y"].tolist() for answer in answers] == [[[2.0], [4.0]], [[6.0]]]


@pytest.mark.parametrize("name", ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"])
def test_every_type_goes_through_unchanged(
    script: Any, begin: Any, pytorch_config: Any, tensor: Any, name: str
) -> None:
    script(torch.nn.Identity())
    datatype = BY_NAME[name]
    runner = begin(pytorch_config("", tensors("X", kind=name)))
    (answer,) = runner.run({"X": tensor("X", datatype, [0, 1, 1])})
    assert answer["Y"].dtype == datatype.storage
    assert answer["Y"].tolist() == np.array([0, 1, 1], datatype.storage).tolist()


@pytest.mark.parametrize("name", ["UINT16", "UINT32", "UINT64", "BF16"])
def test_types_that_torch_lacks_are_refused(script: Any, begin: Any, pytorch_config: Any, name: str) -> None:
    script(torch.nn.Identity())
    assert refusal(begin, pytorch_config("", tensors("X", kind=name))) == (
        f"unsupported datatype TYPE_{name} for input 'X' for model 'm'"
    )


def test_inputs_are_never_changed_by_the_model(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    script(InPlace())
    runner = begin(pytorch_config())
    given = tensor("X", FP32, [1, 2])
    (answer,) = runner.run({"X": given})
    assert (given.array.tolist(), answer["Y"].tolist()) == ([1.0, 2.0], [2.0, 3.0])


# Strings


def test_strings_are_lists_of_text(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(Texts())
    runner = begin(pytorch_config("", tensors("text", kind="STRING")))
    (answer,) = runner.run({"text": tensor("text", BYTES, ["größe".encode(), b""])})
    assert answer["Y"].tolist() == ["größe!".encode(), b"!"]


def test_strings_of_a_batch_are_one_list(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(Lengths())
    config = pytorch_config(
        "max_batch_size: 4",
        'input { name: "text" data_type: TYPE_STRING dims: [ 1 ] } '
        'output { name: "Y" data_type: TYPE_INT64 dims: [ 1 ] }',
    )
    answers = begin(config).run({"text": tensor("text", BYTES, [[b"ab"]])}, {"text": tensor("text", BYTES, [[b"c"]])})
    assert [answer["Y"].tolist() for answer in answers] == [[[2]], [[1]]]


def test_strings_have_one_dimension(script: Any, begin: Any, pytorch_config: Any) -> None:
    script(Texts())
    text = tensors("text", kind="STRING").replace("-1", "2, 2")
    assert refusal(begin, pytorch_config("", text)) == (
        "Triton only supports 1 dimensional List of String as input for 'text' for model 'm'"
    )


# What models do wrong


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "output 'Y' is a scalar which is not supported."),
        (2, "configuration expects datatype TYPE_FP32 for output 'Y', model provides TYPE_INT32"),
    ],
)
def test_outputs_are_held_to_the_configuration(
    script: Any, begin: Any, pytorch_config: Any, tensor: Any, value: float, text: str
) -> None:
    script(Moody())
    runner = begin(pytorch_config())
    with pytest.raises(InvalidArgumentError) as caught:
        runner.run({"X": tensor("X", FP32, [value])})
    assert str(caught.value) == text
    (answer,) = runner.run({"X": tensor("X", FP32, [0])})
    assert answer["Y"].tolist() == [0.0], "the instance goes on"


def test_an_exception_is_the_answer(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(Moody())
    with pytest.raises(InternalError, match=r"(?s)^PyTorch execute failure: .*a bad day"):
        begin(pytorch_config()).run({"X": tensor("X", FP32, [3])})


def test_a_list_of_tensors_is_no_output(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(ListOfTensors())
    with pytest.raises(InternalError) as caught:
        begin(pytorch_config()).run({"X": tensor("X", FP32, [3])})
    assert str(caught.value) == (
        "PyTorch execute failure: output must be of type Tensor, List[str] or Tuple containing one of these two types. "
        "It should not be a List / Dictionary of Tensors or a Scalar"
    )


def test_fewer_outputs_than_configured_are_named(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(Scale())
    runner = begin(pytorch_config("", tensors("X", outputs=("Y__0", "Y__1"))))
    with pytest.raises(InternalError, match="the model returned 1 outputs, the configuration expects 2"):
        runner.run({"X": tensor("X", FP32, [3])})


def test_an_answer_stays_what_it_was_when_the_model_writes_to_what_it_has_returned(
    script: Any, begin: Any, pytorch_config: Any, tensor: Any
) -> None:
    """It is still being sent when the next batch is executed."""
    script(Keeper())
    runner = begin(pytorch_config("max_batch_size: 1"))
    (first,), (second,) = (runner.run({"X": tensor("X", FP32, [[value, value]])}) for value in (1.0, 2.0))
    assert (first["Y"].tolist(), second["Y"].tolist()) == ([[10.0, 10.0]], [[20.0, 20.0]])


def test_what_a_model_does_to_its_inputs_no_other_sees(script: Any, begin: Any, pytorch_config: Any) -> None:
    """What comes from another model, as an array, may be the input of a third one too."""
    script(Keeper())
    array = np.ones((1, 2), np.float32)
    (answer,) = begin(pytorch_config("max_batch_size: 1")).run({"X": Tensor("X", FP32, array.shape, array=array)})
    assert answer["Y"].tolist() == [[10.0, 10.0]]
    assert array.tolist() == [[1.0, 1.0]]


# Files and parameters


def test_a_missing_file_is_named(begin: Any, pytorch_config: Any, models: Any) -> None:
    path = models.files.version_directory / "model.pt"
    assert refusal(begin, pytorch_config(), UnavailableError) == f"unable to find '{path}' for model instance 'm'"


def test_a_file_that_is_no_model_is_refused(begin: Any, pytorch_config: Any, models: Any) -> None:
    (models.files.version_directory / "model.pt").write_bytes(b"rubbish")
    assert refusal(begin, pytorch_config(), InternalError).startswith("failed to load model 'm': ")


def test_no_gradients_are_kept(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(GradientSpy())
    for text, expected in (("", [[0.0, 1.0]]), (parameter("INFERENCE_MODE", "false"), [[0.0, 0.0]])):
        (answer,) = begin(pytorch_config(f"max_batch_size: 1 {text}")).run({"X": tensor("X", FP32, [[1, 1]])})
        assert answer["Y"].tolist() == expected


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("INFERENCE_MODE", "maybe", "failed to convert 'maybe' to boolean"),
        ("INTRA_OP_THREAD_COUNT", "many", "failed to convert 'many' to integral number"),
        ("AUTOMATIC_MIXED_PRECISION", "FP8", "AUTOMATIC_MIXED_PRECISION must be BF16, FP16 or OFF, got 'FP8'"),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "[1]", "TORCH_COMPILE_OPTIONAL_PARAMETERS must be a JSON object"),
    ],
)
def test_wrong_parameters_are_load_errors(
    script: Any, begin: Any, pytorch_config: Any, key: str, value: str, text: str
) -> None:
    script(Scale())
    assert refusal(begin, pytorch_config(parameter(key, value))) == text


def test_mixed_precision_computes_in_fewer_bits(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    torch.manual_seed(0)
    script(torch.nn.Linear(64, 1, bias=False))
    row = {"X": tensor("X", FP32, np.linspace(0, 1, 64).reshape(1, 64))}
    text = tensors("X").replace("-1", "64", 1)
    (exact,) = begin(pytorch_config("max_batch_size: 1", text)).run(row)
    halved = begin(pytorch_config(f"max_batch_size: 1 {parameter('AUTOMATIC_MIXED_PRECISION', 'BF16')}", text))
    with pytest.raises(InvalidArgumentError, match="model provides bfloat16"):
        halved.run(row)  # the result is BF16 then; a model that wants FP32 back converts it
    assert exact["Y"].shape == (1, 1)


def test_instances_share_weights_only_if_told(script: Any, models: Any, pytorch_config: Any) -> None:
    script(Scale())
    for text, shared in (("", False), (parameter("ENABLE_WEIGHT_SHARING", "true"), True)):
        loaded = PyTorchBackend({}).load(pytorch_config(text), models.files)
        one, two = (cast(Any, loaded.create_instance(InstanceSpec(f"m_{n}"))) for n in range(2))
        assert (one._runner.program is two._runner.program) is shared


def test_a_model_without_torch_says_what_to_install(
    script: Any, begin: Any, pytorch_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(Scale())
    monkeypatch.setitem(sys.modules, "torch", None)
    text = refusal(begin, pytorch_config(), UnavailableError)
    assert text.startswith("the backend 'pytorch' needs the package torch: pip install trireme-server[torch]")


def test_a_gpu_that_is_not_there_is_a_load_error(script: Any, begin: Any, pytorch_config: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    script(Scale())
    config = pytorch_config("instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }")
    assert "is to run on a GPU: torch" in refusal(begin, config)


def test_kind_model_leaves_the_module_where_it_is(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(Scale())
    runner = begin(pytorch_config("instance_group { kind: KIND_MODEL count: 1 }"), kind="KIND_MODEL")
    (answer,) = runner.run({"X": tensor("X", FP32, [4])})
    assert answer["Y"].tolist() == [8.0]


def test_no_elements_at_all_are_as_good_as_any(script: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    script(torch.nn.Identity())
    runner = begin(pytorch_config("", tensors("X", kind="INT64")))
    (answer,) = runner.run({"X": tensor("X", INT64, [])})
    assert answer["Y"].shape == (0,)
