"""A request that does not fit its model is refused as Triton refuses it
(docs/reference/errors.md#request-validation)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine import datatypes
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES, FP32, INT32, INVALID, DataType
from trireme.engine.errors import InvalidArgumentError, TriremeError
from trireme.engine.request import InferenceRequest, RequestForm
from trireme.engine.tensor import Tensor, pack_bytes
from trireme.engine.tensor_limits import TensorLimits
from trireme.engine.validation import RequestValidator

R = "[request id: <id_unknown>] "
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def _a(
    *dims: int, datatype: DataType = FP32, reshape: tuple[int, ...] | None = None, ragged: bool = False
) -> ModelInput:
    return ModelInput("A", datatype, dims, reshape, allow_ragged_batch=ragged)


def _b(*dims: int, optional: bool = False) -> ModelInput:
    return ModelInput("B", INT32, dims, optional=optional)


def _validator(max_batch_size: int, *inputs: ModelInput) -> RequestValidator:
    outputs = tuple(ModelOutput(f"O{tensor.name}", tensor.datatype, tensor.dims) for tensor in inputs)
    return RequestValidator(ModelConfig("m", max_batch_size=max_batch_size, input=inputs, output=outputs))


def _tensor(name: str, shape: tuple[int, ...], datatype: DataType = FP32, nbytes: int | None = None) -> Tensor:
    size = math.prod(shape) * (datatype.size or 4) if nbytes is None else nbytes
    return Tensor(name, datatype, shape, bytes(size))


def _refusal(validator: RequestValidator, *inputs: Tensor, outputs: tuple[str, ...] = (), request_id: str = "") -> str:
    request = InferenceRequest("m", id=request_id, inputs=list(inputs), requested_outputs=outputs)
    with pytest.raises(InvalidArgumentError) as caught:
        validator.check(request)
    return caught.value.message


def _checked(validator: RequestValidator, *inputs: Tensor) -> tuple[dict[str, tuple[int, ...]], int]:
    checked, rows = validator.check(InferenceRequest("m", inputs=list(inputs)))
    return {name: tensor.shape for name, tensor in checked.items()}, rows


TWO = _validator(8, _a(-1, 4), _b(4))
OPTIONAL = _validator(8, _a(4), _b(4, optional=True))
ONE = _validator(8, _a(4))
UNBATCHED = _validator(0, _a(4))
VARIABLE = _validator(0, _a(-1, -1))
TWO_STRINGS = pack_bytes([b"a", b"b"])
STRINGS = _validator(0, _a(-1, datatype=BYTES))

GOOD_A = _tensor("A", (1, 1, 4))
GOOD_B = _tensor("B", (1, 4), INT32)


def test_a_form_that_has_passed_is_not_checked_again() -> None:
    """By the same validator, with as many bytes of each input; by another one it is, as after a reload."""
    form = RequestForm()
    one, other = (InferenceRequest("m", inputs=[GOOD_B, GOOD_A], form=form) for _ in range(2))
    assert TWO.recall(one) is None
    checked, rows = TWO.check(one)
    known = TWO.recall(other)
    assert known == (checked, rows, 16 + 16)
    assert known is not None
    assert list(known[0]) == list(checked)
    assert OPTIONAL.recall(other) is None
    other.inputs[0] = _tensor("B", (1, 4), INT32, nbytes=12)
    assert TWO.recall(other) is None
    assert TWO.recall(InferenceRequest("m", inputs=[GOOD_B, GOOD_A])) is None


def test_what_two_validators_found_by_turns_is_recalled_of_both() -> None:
    form = RequestForm()
    request = InferenceRequest("m", inputs=[GOOD_B, GOOD_A], form=form)
    two, again, third = (_validator(8, _a(-1, 4), _b(4)) for _ in range(3))
    for validator in (two, again, two, again):
        validator.check(request)
    found = [validator.recall(request) for validator in (two, again)]
    assert None not in found
    third.check(request)
    known = [validator.recall(request) is not None for validator in (two, again, third)]
    assert known == [False, True, True], "the latest two"


@pytest.mark.parametrize(
    ("validator", "inputs"),
    [
        (STRINGS, [Tensor("A", BYTES, (2,), TWO_STRINGS)]),
        (ONE, [_tensor("A", (0, 4), nbytes=16)]),
    ],
)
def test_what_is_looked_into_or_reshaped_is_checked_each_time(
    validator: RequestValidator, inputs: list[Tensor]
) -> None:
    request = InferenceRequest("m", inputs=inputs, form=RequestForm())
    validator.check(request)
    assert validator.recall(request) is None


def test_a_fitting_request_keeps_its_tensors() -> None:
    request = InferenceRequest("m", inputs=[GOOD_B, GOOD_A], requested_outputs=("OB", "OA", "OB"))
    checked, rows = TWO.check(request)
    assert checked == {"A": GOOD_A, "B": GOOD_B}
    assert checked["A"] is GOOD_A
    assert rows == 1


def test_duplicates_come_first() -> None:
    refusal = _refusal(TWO, GOOD_A, GOOD_A, outputs=("Q",), request_id="x")
    assert refusal == "[request id: x] input 'A' already exists in request"


def test_an_unknown_output_comes_before_the_count() -> None:
    assert _refusal(TWO, GOOD_A, outputs=("OA", "Q"), request_id="x") == "unexpected inference output 'Q' for model 'm'"


@pytest.mark.parametrize(
    ("validator", "names", "text"),
    [
        (TWO, "A", "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing ... ['B']"),
        (TWO, "Z", "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['Z'], but missing ... ['A','B']"),
        (TWO, "", "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing ... ['A','B']"),
        (TWO, "ABC", "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['C','B','A'], but missing ... ]"),
        (
            OPTIONAL,
            "",
            "BETWEEN but got 0 inputs for model 'm'. Got input(s) [], but missing ... ['A']",
        ),
        (
            OPTIONAL,
            "ABC",
            "BETWEEN but got 3 inputs for model 'm'. Got input(s) ['C','B','A'], but missing ... ]",
        ),
        (_validator(0), "A", "expected 0 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing ... ]"),
    ],
)
def test_a_wrong_number_of_inputs_lists_them(validator: RequestValidator, names: str, text: str) -> None:
    text = text.replace("...", "required input(s)").replace("BETWEEN", "expected number of inputs between 1 and 2")
    expected = f"{R}{text}. Please provide all required input(s)."
    assert _refusal(validator, *[_tensor(name, (1,)) for name in names]) == expected


def test_only_the_number_of_inputs_counts_not_which() -> None:
    assert _checked(OPTIONAL, GOOD_B) == ({"B": (1, 4)}, 1)


def test_a_model_without_inputs_takes_none() -> None:
    assert _checked(_validator(0)) == ({}, 1)
    assert _checked(_validator(4)) == ({}, 1)


def test_unknown_inputs() -> None:
    assert _refusal(UNBATCHED, _tensor("Z", (4,))) == "unexpected inference input 'Z' for model 'm'"
    assert _refusal(TWO, _tensor("A", ()), _tensor("Z", (1,))) == "unexpected inference input 'Z' for model 'm'"
    assert _refusal(TWO, _tensor("Z", (1,)), _tensor("Y", (1,))) == "unexpected inference input 'Y' for model 'm'"


def test_without_batching_names_come_first() -> None:
    """A later input is looked at earlier, but not before all names are known."""
    model = _validator(0, _a(4), _b(4))
    assert _refusal(model, _tensor("Z", (4,)), _tensor("B", (9,))) == "unexpected inference input 'Z' for model 'm'"


def test_batch_dimension_rules() -> None:
    no_shape = "has no shape but model requires batch dimension for 'm'"
    assert _refusal(TWO, _tensor("B", ()), _tensor("A", ())) == f"{R}input 'A' {no_shape}"
    assert _refusal(TWO, _tensor("A", ()), _tensor("B", ())) == f"{R}input 'B' {no_shape}"
    mismatch = "batch size does not match other inputs for 'm'"
    two, three = _tensor("B", (2, 4), INT32), _tensor("A", (3, 1, 4))
    assert _refusal(TWO, two, three) == f"{R}input 'B' {mismatch}"
    assert _refusal(TWO, three, two) == f"{R}input 'A' {mismatch}"
    too_large = f"{R}inference request batch-size must be <= 8 for 'm'"
    assert _refusal(ONE, _tensor("A", (9, 4))) == too_large
    assert _refusal(ONE, _tensor("A", (9, 5), INT32)) == too_large
    assert _refusal(ONE, _tensor("A", (2**64 - 1, 4), nbytes=0)) == too_large
    assert _checked(ONE, _tensor("A", (8, 4))) == ({"A": (8, 4)}, 8)


def test_batch_size_zero_means_one_element() -> None:
    assert (
        _refusal(ONE, _tensor("A", (0, 4)))
        == f"{R}input byte size mismatch for input 'A' for model 'm'. Expected 16, got 0"
    )
    assert _checked(ONE, _tensor("A", (0, 4), nbytes=16)) == ({"A": (1, 4)}, 1)
    zero, two = _tensor("B", (0, 4), INT32), _tensor("A", (2, 1, 4))
    assert _refusal(TWO, zero, two) == f"{R}input 'B' batch size does not match other inputs for 'm'"
    assert _refusal(TWO, two, zero) == f"{R}input byte size mismatch for input 'B' for model 'm'. Expected 32, got 0"
    strings = _validator(8, _a(1, datatype=BYTES))
    assert _refusal(strings, _tensor("A", (0, 1), BYTES)) == (
        f"{R}expected 1 string elements for inference input 'A' for model 'm', got 0"
    )
    assert _checked(strings, Tensor("A", BYTES, (0, 1), pack_bytes([b"a"]))) == ({"A": (1, 1)}, 1)


def test_datatype_comes_before_shape_and_one_input_after_the_other() -> None:
    wrong_b, wrong_a = _tensor("B", (2, 4), FP32), _tensor("A", (2, 4))
    datatype = f"{R}inference input 'B' data-type is 'FP32', but model 'm' expects 'INT32'"
    shape = f"{R}unexpected shape for input 'A' for model 'm'. Expected [-1,-1,4], got [2,4]. {NOTE}"
    assert _refusal(TWO, wrong_a, wrong_b) == datatype
    assert _refusal(TWO, wrong_b, wrong_a) == shape
    short_b = _tensor("B", (2, 4), INT32, nbytes=31)
    assert _refusal(TWO, wrong_a, short_b).startswith(f"{R}input byte size mismatch for input 'B'")
    assert _refusal(UNBATCHED, _tensor("A", (5,), INT32)).endswith("data-type is 'INT32', but model 'm' expects 'FP32'")
    assert _refusal(UNBATCHED, _tensor("A", (4,), INVALID)).endswith(
        "data-type is '<invalid>', but model 'm' expects 'FP32'"
    )
    assert _refusal(_validator(0, _a(1, datatype=BYTES)), _tensor("A", (1,))).endswith(
        "data-type is 'FP32', but model 'm' expects 'BYTES'"
    )


def test_shapes_without_batching_have_no_note() -> None:
    assert (
        _refusal(UNBATCHED, _tensor("A", (1, 4)))
        == f"{R}unexpected shape for input 'A' for model 'm'. Expected [4], got [1,4]. "
    )
    assert (
        _refusal(UNBATCHED, _tensor("A", ()))
        == f"{R}unexpected shape for input 'A' for model 'm'. Expected [4], got []. "
    )


@pytest.mark.parametrize("unset", [-1, 2**64 - 1])
def test_dimensions_must_be_set(unset: int) -> None:
    text = f"{R}All input dimensions should be specified for input 'A' for model 'm', got "
    assert _refusal(VARIABLE, _tensor("A", (unset, 5), nbytes=0)) == f"{text}[-1,5]"
    assert _refusal(VARIABLE, _tensor("A", (unset, unset), nbytes=0)) == f"{text}[-1,-1]"
    assert _refusal(ONE, _tensor("A", (1, unset), nbytes=0)) == f"{text}[1,-1]"
    assert _refusal(_validator(0, _a(4, 4)), _tensor("A", (3, unset), nbytes=0)).endswith(
        "Expected [4,4], got [3,-1]. "
    )


@pytest.mark.parametrize(("shape", "printed"), [((-2, -5), "[-2,-5]"), ((2**64 - 2, 5), "[-2,5]")])
def test_negative_dimensions_are_refused(shape: tuple[int, ...], printed: str) -> None:
    assert _refusal(VARIABLE, _tensor("A", shape, nbytes=40)) == (
        f"{R}invalid shape for input 'A': shape {printed} contains one or more invalid dimensions"
    )


@pytest.mark.parametrize("nbytes", [0, 12, 15, 17, 20])
def test_byte_size(nbytes: int) -> None:
    text = f"input byte size mismatch for input 'A' for model 'm'. Expected 16, got {nbytes}"
    assert _refusal(UNBATCHED, _tensor("A", (4,), nbytes=nbytes), request_id="7") == f"[request id: 7] {text}"


def test_huge_shapes_do_not_overflow() -> None:
    assert _refusal(VARIABLE, _tensor("A", (2**40, 2**40), nbytes=0)).endswith(f"Expected {4 << 80}, got 0")


def test_zero_sized_tensors_fit_variable_dimensions() -> None:
    assert _checked(VARIABLE, _tensor("A", (0, 5))) == ({"A": (0, 5)}, 1)
    assert _checked(STRINGS, _tensor("A", (0,), BYTES)) == ({"A": (0,)}, 1)
    assert _refusal(VARIABLE, _tensor("A", (0, 5), nbytes=4)).endswith("Expected 0, got 4")


@pytest.mark.parametrize(
    ("count", "buffer", "text"),
    [
        (1, b"\1\0", "incomplete string length indicator IN, expecting 4 TAIL"),
        (2, TWO_STRINGS + b"xx", "incomplete string length indicator IN, expecting 4 TAIL"),
        (2, pack_bytes([b"a"]), "expected 2 string elements IN, got 1"),
        (1, b"", "expected 1 string elements IN, got 0"),
        (3, TWO_STRINGS[:-1], "expected 3 string elements IN, got 2"),
        (2, pack_bytes([b"a", b"b", b"c", b"d"]) + b"xx", "unexpected number of string elements 3 IN, expecting 2"),
        (0, pack_bytes([b""]), "unexpected number of string elements 1 IN, expecting 0"),
        (1, pack_bytes([b"a"]) + b"\7\0\0\0b", "unexpected number of string elements 2 IN, expecting 1"),
    ],
)
def test_strings_are_counted(count: int, buffer: bytes, text: str) -> None:
    text = text.replace("IN", "for inference input 'A' for model 'm'")
    text = text.replace(
        "TAIL", "bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer."
    )
    assert _refusal(STRINGS, Tensor("A", BYTES, (count,), buffer)) == f"{R}{text}"


def test_a_string_that_is_cut_off_has_no_prefix() -> None:
    assert _refusal(STRINGS, Tensor("A", BYTES, (1,), b"\5\0\0\0ab")) == (
        "incomplete string data for inference input 'A', expecting string of length 5 but only 2 bytes available"
    )


def test_strings_already_unpacked_are_not_packed_to_be_counted() -> None:
    tensor = Tensor("A", BYTES, (2,), array=np.array([b"a", b"b"], dtype=object))
    assert _checked(STRINGS, tensor) == ({"A": (2,)}, 1)
    assert tensor._buffer is None
    lying = Tensor("A", BYTES, (3,), array=tensor.array)
    assert _refusal(STRINGS, lying) == f"{R}expected 3 string elements for inference input 'A' for model 'm', got 2"
    assert _refusal(_validator(0, _a(1, datatype=BYTES, reshape=None)), tensor).startswith(f"{R}unexpected shape")


def test_reshape_is_what_the_backend_sees() -> None:
    assert _checked(_validator(8, _a(1, reshape=())), _tensor("A", (2, 1))) == ({"A": (2,)}, 2)
    assert _checked(_validator(0, _a(4, reshape=(2, 2))), _tensor("A", (4,))) == ({"A": (2, 2)}, 1)
    variable = _validator(8, _a(-1, 4, -1, reshape=(-1, 2, 2, -1)))
    assert _checked(variable, _tensor("A", (2, 3, 4, 5))) == ({"A": (2, 3, 2, 2, 5)}, 2)
    assert _refusal(_validator(0, _a(4, reshape=(2, 2))), _tensor("A", (2, 2))).endswith("Expected [4], got [2,2]. ")


def test_ragged_inputs_obey_the_same_rules_within_a_request() -> None:
    ragged = _validator(8, _a(-1, ragged=True), _b(2))
    assert _checked(ragged, _tensor("A", (1, 3)), _tensor("B", (1, 2), INT32)) == ({"A": (1, 3), "B": (1, 2)}, 1)
    assert "batch size does not match" in _refusal(ragged, _tensor("A", (2, 3)), _tensor("B", (1, 2), INT32))
    assert "Expected [-1,-1], got [1]. NOTE" in _refusal(ragged, _tensor("A", (1,)), _tensor("B", (1, 2), INT32))


def test_of_inputs_configured_twice_the_first_counts() -> None:
    twice = _validator(0, _a(4), ModelInput("A", FP32, (5,), optional=True))
    assert _checked(twice, _tensor("A", (4,))) == ({"A": (4,)}, 1)
    assert _refusal(twice, _tensor("A", (5,))).endswith("Expected [4], got [5]. ")


_FUZZ_MODELS = [
    TWO,
    OPTIONAL,
    ONE,
    UNBATCHED,
    VARIABLE,
    STRINGS,
    _validator(2, _a(1, reshape=())),
    _validator(2, _a(-1, 2, -1, reshape=(2, -1, -1), datatype=datatypes.BF16)),
    _validator(2, _a(1, datatype=BYTES)),
    _validator(0),
]
_DIMS = st.integers(-2, 5) | st.sampled_from([2**63, 2**64 - 1, 2**64 - 2])
_TENSORS = st.builds(
    Tensor,
    st.sampled_from(["A", "B", "C"]),
    st.sampled_from([FP32, INT32, BYTES, datatypes.BF16, INVALID]),
    st.lists(_DIMS, max_size=4).map(tuple),
    st.binary(max_size=12) | st.integers(0, 64).map(bytes),
)


@settings(deadline=None)
@given(
    st.sampled_from(_FUZZ_MODELS),
    st.lists(_TENSORS, max_size=3),
    st.lists(st.sampled_from(["OA", "OB", "Q"]), max_size=2).map(tuple),
    st.none() | st.binary(max_size=20),
)
def test_any_request_is_refused_clearly_or_consistent(
    validator: RequestValidator, inputs: list[Tensor], outputs: tuple[str, ...], raw: bytes | None
) -> None:
    request = InferenceRequest("m", inputs=inputs, requested_outputs=outputs, raw_input=raw)
    try:
        checked, rows = validator.check(request)
    except TriremeError:
        return
    assert rows >= 1
    for name, tensor in checked.items():
        assert tensor.name == name
        assert tensor.array.shape == tensor.shape


@pytest.mark.parametrize("shape", [(4,), (2**40,)], ids=["as many as there are", "more than there are"])
def test_strings_are_counted_up_to_a_limit(shape: tuple[int, ...]) -> None:
    """However many a client announces: 63 MiB of empty strings are 16 million objects."""
    config = ModelConfig("m", input=(_a(-1, datatype=BYTES),), output=(ModelOutput("O", BYTES, (-1,)),))
    validator = RequestValidator(config, TensorLimits(max_elements=3))
    assert _refusal(validator, Tensor("A", BYTES, shape, pack_bytes([b""] * 4))) == (
        "input 'A' has more than 3 elements of type BYTES, which is the most that a tensor may have; "
        "--max-tensor-elements sets it"
    )
    assert _checked(validator, Tensor("A", BYTES, (3,), pack_bytes([b""] * 3))) == ({"A": (3,)}, 1)
