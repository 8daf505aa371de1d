"""An answer with one binary output is put together from what is remembered: it is the same as without."""

from __future__ import annotations

from itertools import product

import numpy as np
import orjson

from trireme.api.http.exchange import Answer
from trireme.api.http.infer import response as infer_response
from trireme.api.http.infer.request import AS_BINARY, AS_JSON, DecodedInfer, OutputForm
from trireme.engine.datatypes import FP32, UINT8, DataType
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor

LARGE = infer_response._LARGE_BYTES


def output(name: str, datatype: DataType, *shape: int) -> Tensor:
    return Tensor(name, datatype, shape, bytes(range(1, 5)) * (shape[-1] * datatype.size // 4))


OUTPUTS = [
    *(output("OUT", UINT8, size) for size in (0, 4, 8, LARGE - 4, LARGE)),
    output("OUT", UINT8, 1, 4),
    output("OUT", FP32, 4),
    output('a "name"', FP32, 1),
]


def whole(answer: Answer) -> tuple[int, bytes, list[tuple[bytes, bytes]], bytes]:
    return answer.status, answer.media, list(answer.headers), bytes(answer.body) + bytes(answer.tail or b"")


def test_both_ways_write_the_same() -> None:
    lists = [[], *([each] for each in OUTPUTS), OUTPUTS[1:3]]
    forms = [{}, {"OUT": AS_BINARY}, {"OUT": OutputForm(binary=True)}, {"OUT": AS_JSON}]
    for name, version, request_id, own, outputs, asked in product(
        ("m", "é"), (1, 2), ("", "1"), ({}, {"own": 1}), lists, forms
    ):
        response = InferenceResponse(name, version, request_id, outputs, dict(own))
        decoded = DecodedInfer(InferenceRequest("m"), asked, AS_BINARY)
        long_way = whole(infer_response._encode(response, decoded))
        for _ in range(2):  # made, then remembered
            assert whole(infer_response.encode_infer(response, decoded)) == long_way


def test_a_large_answer_lies_where_it_is_given_back_at_once() -> None:
    """The event loop drops the last reference to it: small pages would take it milliseconds to give back."""
    values = np.arange(400_000, dtype=np.float32)
    tensor = Tensor("OUT", FP32, (len(values),), array=values)
    answer = infer_response.encode_infer(
        InferenceResponse("m", 1, "", [tensor]), DecodedInfer(InferenceRequest("m"), {}, AS_JSON)
    )
    assert isinstance(answer.tail, memoryview)
    assert isinstance(answer.tail.obj, np.ndarray)
    assert orjson.loads(bytes(answer.body) + bytes(answer.tail))["outputs"][0]["data"] == values.tolist()
