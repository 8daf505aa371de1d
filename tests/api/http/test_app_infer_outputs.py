"""Outputs of infer requests, and the answer that holds them (docs/reference/http-inference.md#outputs,
docs/reference/http-inference.md#response)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from http_fakes import HttpClient, fp32_request

from trireme.engine.request import ParameterValue

NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_BOOL = "attempt to access JSON non-boolean as boolean"
NOT_STRING = "attempt to access JSON non-string as string"

JSON_OUT = {"name": "OUT", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}
BINARY_OUT = {"name": "OUT", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
BLOB = struct.pack("<2f", 1, 2)

TWO = {
    "inputs": [
        {"name": "INPUT0", "shape": [2], "datatype": "INT32", "data": [5, 6]},
        {"name": "INPUT1", "shape": [2], "datatype": "INT32", "data": [1, 2]},
    ]
}


def out(**parameters: Any) -> dict[str, Any]:
    return {"name": "OUT", "parameters": parameters}


@pytest.mark.parametrize(
    "outputs", [[], [{"name": "OUT"}], [{"name": "OUT", "parameters": 1}], [out()], [out(binary_data=False)]]
)
async def test_json_is_the_default_form(client: HttpClient, outputs: list[Any]) -> None:
    reply = await client.infer(fp32_request(outputs=outputs))
    assert (reply.status, reply.media, reply.json["outputs"]) == (200, "application/json", [JSON_OUT])


@pytest.mark.parametrize(
    "members", [{"outputs": [out(binary_data=True)]}, {"parameters": {"binary_data_output": True}}]
)
async def test_binary_form(client: HttpClient, members: dict[str, Any]) -> None:
    reply = await client.infer(fp32_request(**members))
    assert (reply.status, reply.media) == (200, "application/octet-stream")
    assert set(reply.headers) == {"content-type", "content-length", "inference-header-content-length"}
    assert reply.headers["content-length"] == str(len(reply.body))
    assert reply.body == (
        b'{"model_name":"identity","model_version":"3",'
        b'"outputs":[{"name":"OUT","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}' + BLOB
    )


async def test_binary_data_output_is_not_for_listed_outputs(client: HttpClient) -> None:
    parameters = {"binary_data_output": True}
    reply = await client.infer(fp32_request(parameters=parameters, outputs=[{"name": "OUT"}]))
    assert (reply.media, reply.json["outputs"]) == ("application/json", [JSON_OUT])


async def test_of_an_output_listed_twice_the_first_counts(client: HttpClient) -> None:
    reply = await client.infer(fp32_request(outputs=[out(binary_data=True), {"name": "OUT"}]))
    assert reply.head["outputs"] == [BINARY_OUT]
    reply = await client.infer(fp32_request(outputs=[{"name": "OUT"}, out(binary_data=True)]))
    assert reply.json["outputs"] == [JSON_OUT]
    assert [request.requested_outputs for request in client.server.submitted] == [("OUT",), ("OUT",)]


async def test_outputs_stand_in_the_models_order_each_in_its_form(client: HttpClient) -> None:
    outputs = [{"name": "OUTPUT1", "parameters": {"binary_data": True}}, {"name": "OUTPUT0"}]
    reply = await client.infer({**TWO, "outputs": outputs}, model="add_sub")
    assert [output["name"] for output in reply.head["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    assert reply.head["outputs"][0]["data"] == [6, 8]
    assert reply.blobs == struct.pack("<2i", 4, 4)
    reply = await client.infer({**TWO, "parameters": {"binary_data_output": True}}, model="add_sub")
    assert reply.blobs == struct.pack("<4i", 6, 8, 4, 4)


async def test_outputs_not_listed_are_not_asked_for(client: HttpClient) -> None:
    reply = await client.infer({**TWO, "outputs": [{"name": "OUTPUT1"}]}, model="add_sub")
    assert client.server.submitted[0].requested_outputs == ("OUTPUT1",)
    assert [output["name"] for output in reply.json["outputs"]] == ["OUTPUT1"]


async def test_binary_output_of_no_bytes_makes_no_binary_answer(client: HttpClient) -> None:
    request = {
        "inputs": [{"name": "IN", "shape": [0], "datatype": "FP32", "data": []}],
        "parameters": {"binary_data_output": True},
    }
    reply = await client.infer(request)
    assert (reply.status, reply.media) == (200, "application/json")
    assert "inference-header-content-length" not in reply.headers
    assert reply.json["outputs"] == [
        {"name": "OUT", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    ]


async def test_strings_in_both_forms(client: HttpClient) -> None:
    request = {"inputs": [{"name": "IN", "shape": [2], "datatype": "BYTES", "data": ["a\n", "é"]}]}
    reply = await client.infer(request, model="strings")
    assert b'"data":["a\\n","\xc3\xa9"]' in reply.body
    reply = await client.infer({**request, "parameters": {"binary_data_output": True}}, model="strings")
    assert reply.blobs == b"\x02\0\0\0a\n\x02\0\0\0\xc3\xa9"


BAD_OUTPUTS = [
    (1, 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    ({}, 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    ({"name": 1}, 500, f"Unable to parse 'name': {NOT_STRING}"),
    (out(classification="x"), 500, f"Unable to set 'classification': {NOT_UNSIGNED}"),
    (out(classification=-1), 500, f"Unable to set 'classification': {NOT_UNSIGNED}"),
    (out(classification=1.0), 500, f"Unable to set 'classification': {NOT_UNSIGNED}"),
    (out(classification=None), 500, f"Unable to set 'classification': {NOT_UNSIGNED}"),
    (out(binary_data=1), 500, f"Unable to parse 'binary_data': {NOT_BOOL}"),
    (out(binary_data="true"), 500, f"Unable to parse 'binary_data': {NOT_BOOL}"),
    (out(binary_data=None), 500, f"Unable to parse 'binary_data': {NOT_BOOL}"),
    (out(binary_data=1, classification="x"), 500, f"Unable to set 'classification': {NOT_UNSIGNED}"),
    (out(binary_data=1, shared_memory_offset="x"), 500, f"Unable to parse 'shared_memory_offset': {NOT_UNSIGNED}"),
    (out(shared_memory_region=1), 500, f"Unable to parse 'shared_memory_region': {NOT_STRING}"),
    (
        out(shared_memory_region="R", shared_memory_offset="x", shared_memory_byte_size="x"),
        500,
        f"Unable to parse 'shared_memory_offset': {NOT_UNSIGNED}",
    ),
    (
        out(shared_memory_region="R", shared_memory_byte_size=-1),
        500,
        f"Unable to parse 'shared_memory_byte_size': {NOT_UNSIGNED}",
    ),
    (out(shared_memory_region="R", binary_data=3), 500, f"Unable to set 'binary_data': {NOT_BOOL}"),
    (out(shared_memory_region="R"), 404, "Unable to find shared memory region: 'R'"),
    (out(shared_memory_region="R", binary_data=False), 404, "Unable to find shared memory region: 'R'"),
    (
        out(shared_memory_region="R", binary_data=True, shared_memory_offset="x"),
        400,
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
    (
        out(shared_memory_region=1, classification="x"),
        400,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        out(shared_memory_region="R", binary_data=True, classification=0),
        400,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
]


@pytest.mark.parametrize(("value", "status", "text"), BAD_OUTPUTS)
async def test_bad_outputs(client: HttpClient, value: Any, status: int, text: str) -> None:
    reply = await client.infer(fp32_request(outputs=[value]))
    assert (reply.status, reply.media, reply.error) == (status, "application/json", text)
    assert client.server.submitted == []


@pytest.mark.parametrize(("name", "datatype"), [("OUT", "FP16"), ("BRAIN", "BF16")])
async def test_half_floats_have_no_json_form(client: HttpClient, name: str, datatype: str) -> None:
    """Found out after the execution, so the answer is plain text."""
    reply = await client.infer({"inputs": [], "outputs": [{"name": name}]}, model="half")
    assert (reply.status, reply.media) == (400, "text/plain")
    assert reply.error == (
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    )
    outputs = [{"name": name, "parameters": {"binary_data": True}}]
    reply = await client.infer({"inputs": [], "outputs": outputs}, model="half")
    assert (reply.status, reply.blobs) == (200, bytes(4))


async def test_response_parameters_stand_before_the_outputs(client: HttpClient) -> None:
    client.server.parameters = {"b": True, "i": -1, "d": 0.5, "s": 'a"'}
    reply = await client.infer(fp32_request(id="x"))
    assert reply.body.startswith(
        b'{"id":"x","model_name":"identity","model_version":"3",'
        b'"parameters":{"b":true,"i":-1,"d":0.5,"s":"a\\""},"outputs":[{'
    )


async def test_response_parameters_of_bytes_are_not_supported(client: HttpClient) -> None:
    foreign: dict[str, Any] = {"p": b"x"}
    parameters: dict[str, ParameterValue] = foreign
    client.server.parameters = parameters
    reply = await client.infer(fp32_request())
    assert (reply.status, reply.media) == (501, "text/plain")
    assert reply.error == ("Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported")
