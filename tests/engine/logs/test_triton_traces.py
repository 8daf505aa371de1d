"""Trace files, Triton's and ours, are read as logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult
from trireme.engine.logs.triton_traces import read_triton_traces


def stamps(trace: int, **times_us: int) -> list[dict[str, Any]]:
    return [{"id": trace, "timestamps": [{"name": name, "ns": us * 1000}]} for name, us in times_us.items()]


EXECUTED = {"COMPUTE_START": 70, "COMPUTE_INPUT_END": 75, "COMPUTE_OUTPUT_START": 95, "COMPUTE_END": 100}
HTTP = [
    *stamps(1, HTTP_RECV_START=1000, HTTP_RECV_END=1010),
    {"id": 1, "model_name": "m", "model_version": 2, "request_id": "not logged"},
    *stamps(1, REQUEST_START=1020, QUEUE_START=1030, **{name: 1000 + at for name, at in EXECUTED.items()}),
    *stamps(1, INFER_RESPONSE_COMPLETE=1110, REQUEST_END=1120, HTTP_SEND_START=1130),
]
GRPC = [
    {"id": 2, "model_name": "e", "model_version": -1},
    *stamps(2, REQUEST_START=1500, QUEUE_START=1501, REQUEST_END=1900),
    *stamps(2, GRPC_WAITREAD_START=1, GRPC_WAITREAD_END=1490),
    {"id": 3, "model_name": "m", "model_version": 2, "parent_id": 2},
    *stamps(3, REQUEST_START=1510, QUEUE_START=1511, REQUEST_END=1600),
]
TENSORS = [
    {"id": 4, "model_name": "m", "model_version": 1},
    {"id": 4, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "A", "data": "", "shape": "3,16", "dtype": "FP32"}},
    {"id": 4, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "B", "data": "", "shape": "3,1", "dtype": "BYTES"}},
    {"id": 4, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": {"name": "O", "data": "", "shape": "3", "dtype": "FP32"}},
    *stamps(4, REQUEST_START=900),
]


def test_requests_of_clients_are_arrivals() -> None:
    """In order, from several files, without what ensembles ask their members."""
    traffic = read_triton_traces([("a", json.dumps(GRPC)), ("b", json.dumps(HTTP + TENSORS))])
    assert traffic.requests == [
        LoggedRequest(0.0, "m", 1, rows=3, nbytes=192),
        LoggedRequest(0.0001, "m", 2, protocol="http", result=LoggedResult(120.0, 40.0, 5.0, 20.0, 5.0)),
        LoggedRequest(0.0006, "e", protocol="grpc", result=LoggedResult(400.0)),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "f: not JSON: "),
        ("{}", "f: expected an array of elements of traces, not dict"),
        ("[1]", "f: element 1: expected an object, not int"),
        ("[{}]", "f: element 1: id must be an integer, not None"),
        ('[{"id":1},{"id":"2"}]', "f: element 2: id must be an integer, not '2'"),
        ('[{"id":1,"timestamps":{}}]', "f: element 1: timestamps must be an array, not {}"),
        ('[{"id":1,"timestamps":[{}]}]', "f: element 1: expected a timestamp with a name and ns, not {}"),
        ('[{"id":1,"timestamps":[{"name":"A","ns":1.5}]}]', "f: element 1: ns must be an integer, not 1.5"),
        (
            '[{"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{"shape":"x"}}]',
            "expected a tensor with a shape and a dtype",
        ),
        (
            '[{"id":1,"activity":"TENSOR_QUEUE_INPUT"}]',
            "f: element 1: expected a tensor with a shape and a dtype, not None",
        ),
    ],
)
def test_what_is_no_trace_file_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_triton_traces([("f", text)])
    assert said in caught.value.message
