"""Tensors that are made up fit what models take, and have the sizes that the log tells of."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_messages import MESSAGES

from trireme.clients.connections import RefusedError
from trireme.clients.model_inputs import InputDescription, ModelInputs, make_inputs
from trireme.clients.prepared import RequestPreparer
from trireme.clients.target import LoadProtocol, LoadTarget
from trireme.engine.datatypes import BY_NAME, BYTES, DATATYPES, FP16, FP32, INT64
from trireme.engine.logs.request_log import LoggedRequest

INPUTS = st.builds(
    InputDescription,
    name=st.just("I"),
    datatype=st.sampled_from(DATATYPES),
    dims=st.lists(st.sampled_from((-1, 1, 2, 3)), max_size=3).map(tuple),
)
MODELS = st.builds(ModelInputs, st.lists(INPUTS, min_size=1, max_size=3).map(tuple), st.booleans())


@given(MODELS, st.integers(1, 4), st.lists(st.integers(1, 30), max_size=3), st.integers(0, 5000))
def test_shapes_and_bytes_fit_each_other(model: ModelInputs, rows: int, elements: list[int], nbytes: int) -> None:
    made = make_inputs(model, rows if model.batches else 1, elements, nbytes)
    assert len(made) == len(model.inputs)
    for tensor, asked in zip(made, model.inputs, strict=True):
        dims = tensor.shape[1:] if model.batches else tensor.shape
        assert len(dims) == len(asked.dims)
        assert all(want in (-1, got) for want, got in zip(asked.dims, dims, strict=True))
        assert not model.batches or tensor.shape[0] == rows
        if asked.datatype is not BYTES:
            assert len(tensor.data) == math.prod(tensor.shape) * BY_NAME[tensor.datatype].size


def test_sizes_are_those_of_the_log() -> None:
    model = ModelInputs((InputDescription("A", FP32, (4,)), InputDescription("B", FP32, (-1, 2))), True)
    assert [each.shape for each in make_inputs(model, 3, (10,))] == [(3, 4), (3, 5, 2)]
    assert sum(len(each.data) for each in make_inputs(model, 3, (), 3 * (4 + 14) * 4)) == 3 * (4 + 14) * 4
    texts = ModelInputs((InputDescription("T", BYTES, (1,)), InputDescription("N", INT64, (1,))), True)
    made = make_inputs(texts, 2, (), 2 * (8 + 4 + 17))
    assert made[0].data == ((17).to_bytes(4, "little") + b"x" * 17) * 2
    assert made[1].data == np.ones(2, np.int64).tobytes()


MODEL = ModelInputs((InputDescription("A", FP32, (4,)),), True)


def maker(protocol: LoadProtocol, asked: list[str]) -> RequestPreparer:
    def describe(_target: LoadTarget, name: str, _version: int) -> ModelInputs:
        asked.append(name)
        return MODEL

    return RequestPreparer(LoadTarget("127.0.0.1", 1, protocol, "key"), describe)


REQUEST = LoggedRequest(0.5, "m", 3, 2, priority=1, timeout_us=7, sequence="s", start=True)


def test_http_requests_say_what_the_log_says() -> None:
    (made,) = maker(LoadProtocol.HTTP, []).make(REQUEST)
    head, _, body = made.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v2/models/m/versions/3/infer HTTP/1.1"
    assert "x-api-key: key" in lines
    length = int(next(line for line in lines if line.startswith("Inference-Header")).partition(": ")[2])
    assert f"Content-Length: {len(body)}" in lines
    document = json.loads(body[:length])
    assert document["parameters"] == {
        "binary_data_output": True,
        "priority": 1,
        "timeout": 7,
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": False,
    }
    assert document["inputs"][0]["shape"] == [2, 4]
    assert len(body) - length == document["inputs"][0]["parameters"]["binary_data_size"] == 32


def test_json_requests_say_what_the_log_says() -> None:
    (made,) = maker(LoadProtocol.JSON, []).make(REQUEST)
    head, _, body = made.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in lines
    document = json.loads(body)
    assert document["parameters"] == {
        "priority": 1,
        "timeout": 7,
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": False,
    }
    (tensor,) = document["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("A", "FP32", [2, 4])
    assert len(tensor["data"]) == 8
    assert all(0 <= each < 1 for each in tensor["data"])


def test_json_has_texts_and_no_half_precision() -> None:
    texts = ModelInputs((InputDescription("T", BYTES, (2,)),), False)
    target = LoadTarget("127.0.0.1", 1, LoadProtocol.JSON)
    (made,) = RequestPreparer(target, lambda *_: texts).make(LoggedRequest(0.0, "m", nbytes=2 * (4 + 3)))
    assert json.loads(made.partition(b"\r\n\r\n")[2])["inputs"][0]["data"] == ["xxx", "xxx"]
    halves = ModelInputs((InputDescription("H", FP16, (2,)),), False)
    with pytest.raises(RefusedError, match="input 'H' is of type FP16, which JSON cannot say"):
        RequestPreparer(target, lambda *_: halves).make(LoggedRequest(0.0, "m"))


def test_names_of_models_are_quoted_in_paths() -> None:
    """A log is not trusted: a name does not add to the head of a request."""
    (made,) = maker(LoadProtocol.HTTP, []).make(LoggedRequest(0.0, "a b\r\nx: y"))
    assert made.startswith(b"POST /v2/models/a%20b%0D%0Ax%3A%20y/infer HTTP/1.1\r\nHost: ")


def test_grpc_requests_say_what_the_log_says() -> None:
    parts = maker(LoadProtocol.GRPC, []).make(REQUEST)
    read = MESSAGES.ModelInferRequest.FromString(b"".join(parts))
    assert (read.model_name, read.model_version) == ("m", "3")
    parameters = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in read.parameters.items()}
    assert parameters == {
        "priority": 1,
        "timeout": 7,
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": False,
    }
    assert [(each.name, tuple(each.shape)) for each in read.inputs] == [("A", (2, 4))]
    assert [len(each) for each in read.raw_input_contents] == [32]


def test_requests_that_are_alike_are_made_once() -> None:
    """Those of sequences share what they bring."""
    asked: list[str] = []
    made = maker(LoadProtocol.HTTP, asked)
    first, again = (made.make(LoggedRequest(at, "m", tenant="t", protocol="grpc")) for at in (1.0, 2.0))
    assert first is again
    assert made.make(LoggedRequest(1.0, "m", sequence=1)) != made.make(LoggedRequest(1.0, "m", sequence=2))
    assert asked == ["m"]


def test_large_requests_of_a_sequence_share_their_bytes() -> None:
    large = ModelInputs((InputDescription("A", FP32, (100_000,)),), True)
    made = RequestPreparer(LoadTarget("127.0.0.1", 1), lambda *_: large)
    first, second = (made.make(LoggedRequest(0.0, "m", sequence=number)) for number in (1, 2))
    assert first[1] is second[1]
