"""Answers with outputs that are where their clients want them already: nothing is copied again."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from fake_cuda import FakeCuda
from grpc_stub import infer_request
from http_fakes import FakeServer

from trireme.api.grpc import infer_writer
from trireme.api.grpc.infer_request import decode_infer as decode_grpc
from trireme.api.grpc.infer_request import read_infer_request
from trireme.api.http.infer import response as infer_response
from trireme.api.http.infer.request import InferTerms
from trireme.api.http.infer.request import decode_infer as decode_http
from trireme.engine.admission.large_requests import LARGE_BYTES
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError
from trireme.engine.memory.cuda import CudaDriver
from trireme.engine.memory.regions import Regions, RegionSlice
from trireme.engine.memory.tensors import RegionTensor
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Tensor

COUNT = LARGE_BYTES  # four times as many bytes
"""Elements of an output, which would be copied on a thread."""


class Exchange:
    """A request for an output in a region, and its answer.

    Attributes:
        copies: names of the driver's copies.
    """

    def __init__(self, protocol: str, byte_size: int) -> None:
        self.cuda = FakeCuda()
        self.server = FakeServer()
        self.copies: list[str] = []
        for name in ("cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"):
            setattr(self.cuda, name, self._counted(name, getattr(self.cuda, name)))
        self.regions = Regions(lambda: CudaDriver(self.cuda))
        self.memory = self.cuda.allocate(bytes(byte_size)).memory
        self.regions.register_cuda("out", self.cuda.allocations[0].handle, 0, byte_size)
        self.decoded: Any
        self._write: Any
        if protocol == "HTTP":
            self.decoded = self._http(byte_size)
            self.decoded.model = self.server.describe("identity")
            self._module, self._write = (
                infer_response,
                lambda response: infer_response.encode_infer(response, self.decoded),
            )
        else:
            self.decoded = self._grpc(byte_size)
            self._module, self._write = (
                infer_writer,
                lambda response: infer_writer.write_infer_response(response, self.decoded),
            )

    @property
    def place(self) -> RegionSlice:
        return self.decoded.request.output_places["OUT"]

    def answer(self, *tensors: Tensor) -> bool:
        """Write an answer; whether that is done on a thread."""
        response = InferenceResponse("identity", 1, "", list(tensors), {})
        takes_long = self._module.takes_long(response, self.decoded)
        self._write(response)
        return takes_long

    def _counted(self, name: str, real: Any) -> Any:
        return lambda *arguments: (self.copies.append(name), real(*arguments))[1]

    def _http(self, byte_size: int) -> Any:
        parameters = {"shared_memory_region": "out", "shared_memory_byte_size": byte_size}
        document = {
            "inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}],
            "outputs": [{"name": "OUT", "parameters": parameters}, {"name": "OTHER"}],
        }
        body = orjson.dumps(document)
        return decode_http(body, len(body), "identity", -1, InferTerms(1 << 20, self.regions))

    def _grpc(self, byte_size: int) -> Any:
        request = infer_request(values=[1])
        output = request.outputs.add(name="OUT")
        output.parameters["shared_memory_region"].string_param = "out"
        output.parameters["shared_memory_byte_size"].int64_param = byte_size
        wire = read_infer_request(request.SerializeToString())
        return decode_grpc(wire, lambda _name, _version: self.server.describe("identity"), self.regions)


@pytest.fixture(params=["HTTP", "gRPC"])
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


def numbers() -> np.ndarray:
    return np.arange(COUNT, dtype=np.float32)


def test_an_output_in_its_place_is_not_touched(protocol: str) -> None:
    exchange = Exchange(protocol, COUNT * 4 + 4)
    placed = RegionTensor("OUT", FP32, (COUNT,), exchange.place.first(COUNT * 4))
    assert exchange.answer(placed) is False, "there is nothing to do on a thread"
    assert exchange.copies == []


def test_any_other_output_is_written_there(protocol: str) -> None:
    exchange = Exchange(protocol, COUNT * 4)
    assert exchange.answer(Tensor("OUT", FP32, (COUNT,), array=numbers())) is True
    assert exchange.copies == ["cuMemcpyHtoD_v2"]
    assert np.array_equal(np.frombuffer(exchange.memory, np.float32), numbers())


def test_an_output_that_is_elsewhere_in_shared_memory_is_read_and_written(protocol: str) -> None:
    exchange = Exchange(protocol, COUNT * 4)
    there = exchange.cuda.allocate(numbers().tobytes())
    exchange.regions.register_cuda("in", there.handle, 0, COUNT * 4)
    exchange.answer(RegionTensor("OUT", FP32, (COUNT,), exchange.regions.slice("in", 0, COUNT * 4)))
    assert exchange.copies == ["cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"]
    assert np.array_equal(np.frombuffer(exchange.memory, np.float32), numbers())


def test_more_than_the_place_holds_is_an_error_even_if_it_begins_there(protocol: str) -> None:
    exchange = Exchange(protocol, 16)
    exchange.regions.register_cuda("whole", exchange.cuda.allocate(bytes(32)).handle, 0, 32)
    wide = RegionTensor("OUT", FP32, (8,), RegionSlice(exchange.place.region, 0, 32))
    object.__setattr__(wide._source, "data", memoryview(bytes(32)))
    with pytest.raises(InternalError, match=r"\(16 bytes\) should be at least 32 bytes"):
        exchange.answer(wide)


def test_the_engine_is_told_of_places(protocol: str) -> None:
    exchange = Exchange(protocol, 16)
    assert (exchange.place.gpu, exchange.place.byte_size) == (0, 16)
