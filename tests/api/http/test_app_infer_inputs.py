"""Inputs of infer requests: members, sources of data, binary tensors (docs/reference/http-inference.md#request-object,
docs/reference/http-inference.md#input-data, docs/reference/http-inference.md#binary-tensors,
docs/reference/shared-memory.md#tensors-in-regions)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import orjson
import pytest
from http_fakes import HttpClient

from trireme.engine.datatypes import FP32

ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_STRING = "attempt to access JSON non-string as string"


def tensor(**members: Any) -> dict[str, Any]:
    """An FP32[2] input without data."""
    return {"name": "IN", "shape": [2], "datatype": "FP32", **members}


def binary(size: Any, **members: Any) -> dict[str, Any]:
    return tensor(parameters={"binary_data_size": size}, **members)


SOURCES = [
    (tensor(), " no field is set"),
    (tensor(parameters={}), " no field is set"),
    (tensor(parameters=1), " no field is set"),
    (1, " no field is set"),
    (None, " no field is set"),
    ({"name": 1, "shape": 1}, " no field is set"),
    (binary(8, data=[1, 2]), " set 'data' 'binary_data_size'"),
    (tensor(data=[1], parameters={"shared_memory_region": "R"}), " set 'data' 'shared_memory_region'"),
    (
        tensor(parameters={"shared_memory_region": "R", "binary_data_size": 8}),
        " set 'binary_data_size' 'shared_memory_region'",
    ),
    (
        tensor(data=[1], parameters={"shared_memory_region": "R", "binary_data_size": 8}),
        " set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
]


@pytest.mark.parametrize(("value", "text"), SOURCES)
async def test_exactly_one_source_of_data(client: HttpClient, value: Any, text: str) -> None:
    """It is checked before every other member."""
    reply = await client.infer({"inputs": [value]})
    assert (reply.status, reply.media, reply.error) == (400, "application/json", ONE_SOURCE + text)


BAD_MEMBERS = [
    ({"data": [1]}, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    ({"data": [1], "name": 1}, f"Unable to parse 'name': {NOT_STRING}"),
    (
        {"data": [1], "name": "IN", "shape": 1},
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    ({"data": [1], "name": "IN", "datatype": 1}, f"Unable to parse 'datatype': {NOT_STRING}"),
    (
        {"data": [1], "name": "IN", "datatype": "FP32"},
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    (tensor(data=[1], shape=1), "Unable to parse 'shape': attempt to access JSON non-array as array"),
    (tensor(data=[1], shape=[-1]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    (tensor(data=[1], shape=["1"]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    (tensor(data=[1], shape=[1.0]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    (tensor(data=[1], shape=[True]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    (binary("8"), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
    (binary(-8), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
    (binary(8.0), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
    (
        tensor(parameters={"shared_memory_region": 1, "shared_memory_offset": "x"}),
        f"Unable to parse 'shared_memory_region': {NOT_STRING}",
    ),
    (
        tensor(parameters={"shared_memory_region": "R", "shared_memory_byte_size": "x", "shared_memory_offset": "x"}),
        f"Unable to parse 'shared_memory_offset': {NOT_UNSIGNED}",
    ),
    (
        tensor(parameters={"shared_memory_region": "R", "shared_memory_byte_size": -1}),
        f"Unable to parse 'shared_memory_byte_size': {NOT_UNSIGNED}",
    ),
    (
        tensor(data=[1, 2], parameters={"shared_memory_offset": "x"}),
        f"Unable to parse 'shared_memory_offset': {NOT_UNSIGNED}",
    ),
    (tensor(data=1), "Unable to parse 'data': attempt to access JSON non-array as array"),
    (tensor(data=["1", 2]), "Unable to parse 'data': attempt to access JSON non-number as double"),
]


@pytest.mark.parametrize(("value", "text"), BAD_MEMBERS)
async def test_bad_members_are_internal_errors(client: HttpClient, value: Any, text: str) -> None:
    reply = await client.infer({"inputs": [value]})
    assert (reply.status, reply.media, reply.error) == (500, "application/json", text)


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        (
            tensor(parameters={"shared_memory_region": "R"}),
            404,
            "Unable to find shared memory region: 'R'",
        ),
        (tensor(datatype="FOO", data=[1]), 400, "invalid datatype for input IN"),
        (
            tensor(datatype="FP16", data=[1, 2]),
            400,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN",
        ),
        (tensor(data=[1, 2], shape=[2**32, 2**32]), 400, None),
        (tensor(data=[1, 2], shape=[2**63]), 400, None),
    ],
)
async def test_tensors_that_cannot_be_read(client: HttpClient, value: Any, status: int, text: str | None) -> None:
    reply = await client.infer({"inputs": [value]})
    assert (reply.status, reply.media) == (status, "application/json")
    if text is not None:
        assert reply.error == text


async def test_inputs_are_read_in_order(client: HttpClient) -> None:
    """The first bad input is the one that is named, whatever is wrong with later ones."""
    reply = await client.infer({"inputs": [tensor(data=[1, 2]), tensor(name="B", data=1), 1]})
    assert reply.error == "Unable to parse 'data': attempt to access JSON non-array as array"


async def test_json_input_becomes_a_tensor(client: HttpClient) -> None:
    await client.infer({"inputs": [tensor(shape=[2, 2], data=[[1, 2], [3, 4]], parameters={"unknown": []})]})
    (given,) = client.server.submitted[0].inputs
    assert (given.name, given.datatype, given.shape) == ("IN", FP32, (2, 2))
    assert given.array.tolist() == [[1.0, 2.0], [3.0, 4.0]]


async def test_zero_in_the_shape_means_that_no_data_is_read(client: HttpClient) -> None:
    for datatype in ("FP32", "FOO"):
        reply = await client.infer({"inputs": [tensor(shape=[0, 7], data="ignored", datatype=datatype)]})
        assert reply.status == 200
    first, second = (request.inputs[0] for request in client.server.submitted)
    assert (first.nbytes, second.nbytes) == (0, 0)
    assert second.datatype.name == "<invalid>"


async def test_unknown_datatype_of_a_binary_input_is_left_to_validation(client: HttpClient) -> None:
    """Which says that the model expects another one, and calls this one `<invalid>`
    (docs/reference/errors.md#request-validation)."""
    await client.infer({"inputs": [binary(0, datatype="FOO")]})
    assert client.server.submitted[0].inputs[0].datatype.name == "<invalid>"


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
async def test_binary_inputs_are_views_on_the_body(client: HttpClient, wrap: type) -> None:
    """Nothing is copied, and bytes follow one another in the order of the inputs that have them."""
    first, second = struct.pack("<2f", 1, 2), struct.pack("<3f", 3, 4, 5)
    inputs = [
        binary(8, name="INA"),
        tensor(name="INB", data=[9, 9]),
        binary(0, name="INC", shape=[0]),
        binary(12, name="IND", shape=[3]),
    ]
    text = orjson.dumps({"inputs": inputs})
    reply = await client.ask(
        "POST",
        "/v2/models/identity/infer",
        [wrap(text + first + second)],
        {"Inference-Header-Content-Length": str(len(text))},
    )
    assert reply.status == 200
    a, b, c, d = client.server.submitted[0].inputs
    assert (bytes(a.buffer), bytes(c.buffer), bytes(d.buffer)) == (first, b"", second)
    assert b.array.tolist() == [9.0, 9.0]
    assert isinstance(a.buffer, memoryview)
    assert isinstance(d.buffer, memoryview)
    assert a.buffer.obj is d.buffer.obj
    assert np.frombuffer(d.buffer, "<f4").tolist() == [3.0, 4.0, 5.0]


async def test_body_without_header_length_has_no_room_for_bytes(client: HttpClient) -> None:
    reply = await client.infer({"inputs": [binary(8)]})
    assert (reply.status, reply.media) == (400, "application/json")
    assert reply.error == "unexpected size for input 'IN', expecting 8 additional bytes for model 'identity'"


@pytest.mark.parametrize(
    ("sizes", "sent", "text"),
    [
        ([8], 5, "unexpected size for input 'IN0', expecting 3 additional bytes for model 'identity'"),
        ([8, 8], 9, "unexpected size for input 'IN1', expecting 7 additional bytes for model 'identity'"),
        (
            [2**64 - 1],
            8,
            f"unexpected size for input 'IN0', expecting {2**64 - 9} additional bytes for model 'identity'",
        ),
        ([8], 9, "unexpected additional input data for model 'identity'"),
        ([0], 1, "unexpected additional input data for model 'identity'"),
        ([], 1, "unexpected additional input data for model 'identity'"),
    ],
)
async def test_too_few_or_too_many_bytes(client: HttpClient, sizes: list[int], sent: int, text: str) -> None:
    inputs = [binary(size, name=f"IN{number}") for number, size in enumerate(sizes)]
    reply = await client.infer({"inputs": inputs}, bytes(sent))
    assert (reply.status, reply.media, reply.error) == (400, "application/json", text)


@pytest.mark.parametrize("rank", [65, 100_000])
async def test_a_shape_of_too_many_dimensions_is_refused(client: HttpClient, rank: int) -> None:
    """Before they are multiplied: the product of 150,000 large ones would take minutes."""
    reply = await client.infer({"inputs": [tensor(data=[1], shape=[2**63 - 1] * rank)]})
    assert (reply.status, reply.error) == (
        400,
        f"invalid shape for input 'IN': it has {rank} dimensions, expected at most 64, which --max-tensor-rank sets",
    )
