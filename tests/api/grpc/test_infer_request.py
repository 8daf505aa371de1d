"""What a request means as a whole, and in which order its faults are found (docs/reference/errors.md#model-lookup,
docs/reference/grpc.md#input-tensors)."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_requests import Request, an_input, decode, describe, refusal, with_parameters

from trireme.api.grpc.infer_request import parse_version, read_infer_request
from trireme.engine.description import ModelDescription
from trireme.engine.errors import InternalError, InvalidArgumentError, UnsupportedError, shown
from trireme.engine.request import LATEST


def test_everything_arrives() -> None:
    given = Request(
        model_name="m",
        model_version="3",
        id="request",
        inputs=[an_input("A", "FP32", [2, 1]), an_input("B", "BYTES", [1])],
        outputs=[Request.InferRequestedOutputTensor(name=name) for name in ("Y", "X", "Y")],
        raw_input_contents=[b"12345678", b"\x00\x00\x00\x00"],
    )
    with_parameters(given, own=("int64_param", -1), sequence_id=("string_param", "s"))
    decoded = decode(given)
    request = decoded.request
    assert (request.model_name, request.model_version, request.id) == ("m", 3, "request")
    assert decoded.version_text == "3"
    assert decoded.model.name == "m"
    assert request.requested_outputs == ("Y", "X")
    assert request.parameters == {"own": -1}
    assert request.correlation_id == "s"
    assert repr(request.inputs) == "[<Tensor A FP32[2, 1]>, <Tensor B BYTES[1]>]"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("", LATEST),
        *(("1", 1), ("01", 1), (" 1", 1), ("\t\n\v\f\r1", 1), ("+1", 1), ("1x", 1), ("1.5", 1), ("-0", 0), ("0x1", 0)),
        ("9223372036854775807", 2**63 - 1),
        ("0" * 5000 + "7", 7),
    ],
)
def test_versions(text: str, version: int) -> None:
    """As C++ reads numbers: what follows one is ignored."""
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["x", "é", "-", "+-1", " ", "9223372036854775808", "-9223372036854775809", "9" * 5000])
def test_no_version(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_version(text)
    assert caught.value.message == (
        f"failed to get model version from specified version string '{shown(text)}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("text", ["-1", " -5x", "-9223372036854775808"])
def test_negative_versions(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_version(text)
    assert caught.value.message == (
        f"invalid model version specified '{text}' , version should be an integral value > 0"
    )


@pytest.mark.parametrize("message", [b"\xff" * 12, b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"\x0b", b"\x00\x01"])
def test_what_is_no_protobuf(message: bytes) -> None:
    with pytest.raises(InternalError, match=r"^Unable to parse request$"):
        read_infer_request(message)


def test_a_number_too_long_is_no_protobuf() -> None:
    """Also where it has not been looked at yet."""
    given = Request(inputs=[an_input()])
    message = given.SerializeToString() + b"\x2a\x11\x2a\x0f\x12\x0d" + b"\x80" * 12 + b"\x00"
    with pytest.raises(InternalError, match=r"^Unable to parse request$"):
        read_infer_request(message)


def test_inputs_given_twice() -> None:
    given = Request(model_name="m", inputs=[an_input(), an_input()], raw_input_contents=[b"1234", b"1234"])
    assert refusal(given).message == "[request id: <id_unknown>] input 'IN' already exists in request"
    given.id = "name"
    assert refusal(given).message == "[request id: name] input 'IN' already exists in request"


def test_the_first_fault_is_the_one_that_triton_finds_first() -> None:
    """A request with every fault; each is put right once it has been found."""
    given: Any = Request(model_name="none", model_version="x", inputs=[an_input(), an_input()])
    with_parameters(given, own=(None, None))
    with_parameters(given.outputs.add(name="OUT"), classification=("bool_param", True))

    def find(name: str, version: int) -> ModelDescription:
        if name == "none":
            raise UnsupportedError("no such model")
        return describe(name, version)

    found = []

    def put_right() -> None:
        found.append(refusal(given, find).message.split(" for ")[0].split(", ")[0])

    put_right()
    given.model_version = ""
    put_right()
    given.model_name = "m"
    put_right()
    given.parameters.clear()
    put_right()
    given.inputs[1].name = "OTHER"
    put_right()
    given.raw_input_contents[:] = [b"", b""]
    put_right()
    assert found == [
        "failed to get model version from specified version string 'x' (details: stol)",
        "no such model",
        "invalid value type",
        "[request id: <id_unknown>] input 'IN' already exists in request",
        "unable to find data",
        "invalid value type",
    ]
    given.outputs[0].parameters.clear()
    assert decode(given, find).request.requested_outputs == ("OUT",)
