"""Request and output parameters: which choices are taken, and what is said of the others
(docs/reference/grpc.md#request-parameters)."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_requests import Request, an_input, decode, refusal, with_parameters

from trireme.engine.errors import InvalidArgumentError, NotFoundError

Parameters = dict[str, tuple[str | None, Any]]

CHOICES: dict[str | None, Any] = {
    "bool_param": True,
    "int64_param": 5,
    "string_param": "text",
    "double_param": 1.5,
    "uint64_param": 5,
    None: None,
}

ALLOWED: dict[str, tuple[tuple[str, ...], str]] = {
    "sequence_id": (("int64_param", "string_param"), "int64_param or string_param."),
    "sequence_start": (("bool_param",), "bool_param."),
    "sequence_end": (("bool_param",), "bool_param."),
    "priority": (("int64_param", "uint64_param"), "int64_param or uint64_param."),
    "timeout": (("int64_param",), "int64_param."),
    "triton_enable_empty_final_response": (("bool_param",), "bool_param."),
    "custom": (
        ("bool_param", "int64_param", "string_param", "double_param"),
        "int64_param, bool_param, or string_param.",
    ),
}
REFUSED = [(name, choice) for name, (allowed, _) in ALLOWED.items() for choice in CHOICES if choice not in allowed]


def request(**parameters: tuple[str | None, Any]) -> Any:
    return with_parameters(Request(model_name="m"), **parameters)


@pytest.mark.parametrize(("name", "choice"), REFUSED)
def test_other_choices_are_refused(name: str, choice: str | None) -> None:
    error = refusal(request(**{name: (choice, CHOICES[choice])}))
    assert isinstance(error, InvalidArgumentError)
    assert error.message == f"invalid value type for '{name}' parameter, expected {ALLOWED[name][1]}"


@pytest.mark.parametrize("choice", ["bool_param", "int64_param", "string_param", "double_param"])
@pytest.mark.parametrize("name", ["custom", "headers", "binary_data_output", "classification", "", "sequence"])
def test_custom_parameters_go_to_the_model(name: str, choice: str) -> None:
    """Names that mean something over HTTP mean nothing here; the type stays what it was."""
    decoded = decode(request(**{name: (choice, CHOICES[choice])}))
    assert decoded.request.parameters == {name: CHOICES[choice]}
    assert type(decoded.request.parameters[name]) is type(CHOICES[choice])


@pytest.mark.parametrize("choice", CHOICES)
def test_reserved_names_are_refused_whatever_the_type(choice: str | None) -> None:
    error = refusal(request(triton_other=(choice, CHOICES[choice])))
    assert isinstance(error, InvalidArgumentError)
    assert error.message == (
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("int64_param", 5), 5),
        (("int64_param", -5), 2**64 - 5),
        (("string_param", "abc"), "abc"),
        (("string_param", ""), ""),
    ],
)
def test_sequence_id(given: tuple[str, Any], expected: int | str) -> None:
    """64 bits of a negative number are taken as unsigned."""
    assert decode(request(sequence_id=given)).request.correlation_id == expected


def test_sequence_flags() -> None:
    for start in (False, True):
        said = decode(request(sequence_start=("bool_param", start), sequence_end=("bool_param", not start))).request
        assert (said.sequence_start, said.sequence_end) == (start, not start)


@pytest.mark.parametrize("given", [("int64_param", 3), ("uint64_param", 3)])
def test_priority(given: tuple[str, int]) -> None:
    priority = decode(request(priority=given)).request.priority
    assert (priority, type(priority)) == (3, int)


def test_priority_bounds() -> None:
    assert decode(request(priority=("uint64_param", 2**64 - 1))).request.priority == 2**64 - 1
    assert refusal(request(priority=("int64_param", -1))).message == (
        "invalid value for 'priority', expected value >= 0."
    )


def test_timeout() -> None:
    assert decode(request(timeout=("int64_param", 1_000))).request.timeout_us == 1_000
    assert decode(request(timeout=("int64_param", -5))).request.timeout_us == 2**64 - 5


def test_empty_final_response() -> None:
    for wanted in (False, True):
        decoded = decode(request(triton_enable_empty_final_response=("bool_param", wanted)))
        assert decoded.enable_empty_final_response is wanted
        assert decoded.request.parameters == {}
    assert not decode(request()).enable_empty_final_response


# Outputs and shared memory.

REGION: Parameters = {"shared_memory_region": ("string_param", "rg")}
BYTE_SIZE: Parameters = {"shared_memory_byte_size": ("int64_param", 4)}
OFFSET: Parameters = {"shared_memory_offset": ("int64_param", 0)}


def outputs(*parameters: Parameters) -> Any:
    made = [with_parameters(Request.InferRequestedOutputTensor(name="T"), **given) for given in parameters]
    return Request(model_name="m", outputs=made)


def inputs(parameters: Parameters) -> Any:
    return Request(model_name="m", inputs=[with_parameters(an_input("T"), **parameters)], raw_input_contents=[b"1234"])


def both_ways(parameters: Parameters) -> list[Any]:
    return [inputs(parameters), outputs(parameters)]


@pytest.mark.parametrize("parameters", [REGION | BYTE_SIZE, REGION | BYTE_SIZE | OFFSET])
def test_unknown_regions_are_not_found(parameters: Parameters) -> None:
    """There are no regions yet."""
    for given in both_ways(parameters):
        error = refusal(given)
        assert isinstance(error, NotFoundError)
        assert error.message == "Unable to find shared memory region: 'rg'"


TYPE = "invalid value type for '%s' parameter for tensor 'T', expected %s"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (REGION, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor"),
        (OFFSET, "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor"),
        (BYTE_SIZE, "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for"),
        (
            {"shared_memory_byte_size": (None, None)} | OFFSET,
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'T'",
        ),
        ({"shared_memory_region": ("int64_param", 1)}, TYPE % ("shared_memory_region", "string_param.")),
        ({"shared_memory_region": (None, None)} | BYTE_SIZE, TYPE % ("shared_memory_region", "string_param.")),
        (REGION | {"shared_memory_offset": ("string_param", "4")}, TYPE % ("shared_memory_offset", "int64_param.")),
        (REGION | {"shared_memory_byte_size": ("uint64_param", 4)}, TYPE % ("shared_memory_byte_size", "int64_param.")),
        (
            REGION | dict.fromkeys(("shared_memory_byte_size", "shared_memory_offset"), ("bool_param", True)),
            TYPE % ("shared_memory_offset", "int64_param."),
        ),
    ],
)
def test_shared_memory_parameters_must_be_complete(parameters: Parameters, text: str) -> None:
    """Region, offset, size: the first that is wrong is named."""
    for given in both_ways(parameters):
        error = refusal(given)
        assert isinstance(error, InvalidArgumentError)
        assert error.message.startswith(text)
        assert error.message.endswith(("for tensor 'T'", "_param."))


def test_region_and_contents() -> None:
    given = inputs(REGION | BYTE_SIZE)
    given.inputs[0].contents.SetInParent()
    assert refusal(given).message == (
        "unexpected 'content' provided when using shared memory for input tensor 'T' for model 'm'"
    )


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice != "int64_param"])
def test_classification_is_a_number(choice: str | None) -> None:
    error = refusal(outputs({"classification": (choice, CHOICES[choice])}))
    assert error.message == "invalid value type for 'classification' parameter, expected int64_param"


@pytest.mark.parametrize("count", [0, -1])
def test_classification_is_positive(count: int) -> None:
    error = refusal(outputs({"classification": ("int64_param", count)}))
    assert isinstance(error, InvalidArgumentError)
    assert error.message == "invalid value for 'classification' parameter, expected >= 0"


def test_class_counts() -> None:
    """Of an output listed twice the first count is taken; 32 bits of it."""
    twice = outputs({}, {"classification": ("int64_param", 2)}, {"classification": ("int64_param", 3)})
    decoded = decode(twice)
    assert (decoded.class_counts, decoded.request.requested_outputs) == ({"T": 2}, ("T",))
    assert decode(outputs({"classification": ("int64_param", 2**32 + 1)})).class_counts == {"T": 1}
    assert decode(outputs({"other": (None, None)}, {})).class_counts == {}


def test_region_and_classification() -> None:
    error = refusal(outputs(REGION | BYTE_SIZE | {"classification": ("int64_param", 2)}))
    assert error.message == "output can't set both 'shared_memory_region' and 'classification'"
    error = refusal(outputs(REGION | BYTE_SIZE | {"classification": ("int64_param", 0)}))
    assert error.message == "invalid value for 'classification' parameter, expected >= 0"
