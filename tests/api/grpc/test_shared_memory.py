"""Shared memory over gRPC: regions, and tensors in them (docs/reference/shared-memory.md#regions,
docs/reference/shared-memory.md#tensors-in-regions)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_stub import MESSAGES, PATIENCE_S, OpenStream, final_flag, infer_request, stub_for, values_of
from scripted_server import ScriptedServer, scripted_server
from segments import Segment, open_segments

MakeSegment = Callable[[bytes], Segment]

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
NUMBERS = np.arange(16, dtype=np.float32).tobytes()
TOO_SMALL = (
    "shared memory size specified with the request for output 'OUT' (8 bytes) should be at least 16 bytes to hold the "
    "results"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models"), grpc={"allow_client_shm": True}) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made
        made.SystemSharedMemoryUnregister(MESSAGES.SystemSharedMemoryUnregisterRequest())


@pytest.fixture
def make_segment() -> Iterator[MakeSegment]:
    with open_segments() as make:
        yield make


def ending(call: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as failed:
        call(request, timeout=PATIENCE_S)
    return failed.value.code(), failed.value.details()  # type: ignore[attr-defined]


def register(stub: Any, name: str, segment: Segment, byte_size: int = 64, offset: int = 0) -> None:
    request = MESSAGES.SystemSharedMemoryRegisterRequest(name=name, key=segment.key, offset=offset, byte_size=byte_size)
    stub.SystemSharedMemoryRegister(request, timeout=PATIENCE_S)


def unregister(stub: Any, name: str = "") -> None:
    stub.SystemSharedMemoryUnregister(MESSAGES.SystemSharedMemoryUnregisterRequest(name=name), timeout=PATIENCE_S)


def status(stub: Any, name: str = "") -> dict[str, tuple[str, str, int, int]]:
    answer = stub.SystemSharedMemoryStatus(MESSAGES.SystemSharedMemoryStatusRequest(name=name), timeout=PATIENCE_S)
    return {key: (each.name, each.key, each.offset, each.byte_size) for key, each in answer.regions.items()}


def put(tensor: Any, region: str, byte_size: int, offset: int | None = None) -> None:
    """Say that a tensor is in a region."""
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = byte_size
    if offset is not None:
        tensor.parameters["shared_memory_offset"].int64_param = offset


def request_from(region: str, byte_size: int = 16, offset: int | None = None, **fields: Any) -> Any:
    """A request for four numbers whose input is in a region."""
    request = infer_request(values=[0] * 4, **fields)
    del request.raw_input_contents[:]
    put(request.inputs[0], region, byte_size, offset)
    return request


def request_to(region: str, byte_size: int = 16, offset: int | None = None, **fields: Any) -> Any:
    """A request for the numbers from 0 to 3, whose output is to go to a region."""
    request = infer_request(values=[0, 1, 2, 3], **fields)
    put(request.outputs.add(name="OUT"), region, byte_size, offset)
    return request


def is_mapped(segment: Segment) -> bool:
    return segment.key in Path("/proc/self/maps").read_text()


# Regions.


def test_register_status_unregister(stub: Any, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(8192))
    register(stub, "a", segment, 64, 4096)
    register(stub, "b", segment, 100)
    a, b = ("a", segment.key, 4096, 64), ("b", segment.key, 0, 100)
    assert status(stub) == {"a": a, "b": b}
    assert status(stub, "b") == {"b": b}
    stub.CudaSharedMemoryUnregister(MESSAGES.CudaSharedMemoryUnregisterRequest())
    stub.CudaSharedMemoryUnregister(MESSAGES.CudaSharedMemoryUnregisterRequest(name="a"))
    unregister(stub, "nothing")
    assert status(stub) == {"a": a, "b": b}
    unregister(stub, "a")
    assert status(stub) == {"b": b}
    unregister(stub)
    assert status(stub) == {}


def test_the_server_has_the_regions_whatever_the_protocol(
    stub: Any, server: ScriptedServer, make_segment: MakeSegment
) -> None:
    regions, segment = server.server.shared_memory, make_segment(NUMBERS)
    server.call(lambda: regions.register_system("r", segment.key, 0, 16))
    assert list(status(stub)) == ["r"]
    assert values_of(stub.ModelInfer(request_from("r"))) == [0, 1, 2, 3]


def test_errors_about_regions(stub: Any, make_segment: MakeSegment) -> None:
    register(stub, "r", make_segment(bytes(64)))
    system, cuda = stub.SystemSharedMemoryRegister, stub.CudaSharedMemoryRegister
    a_region, a_cuda_region = MESSAGES.SystemSharedMemoryRegisterRequest, MESSAGES.CudaSharedMemoryRegisterRequest
    key = make_segment(bytes(64)).key
    known = (grpc.StatusCode.ALREADY_EXISTS, "shared memory region 'r' already in manager")
    assert ending(system, a_region(name="r", key="/nope")) == known
    assert ending(cuda, a_cuda_region(name="r")) == known
    assert ending(system, a_region(name="s", key="/nope", byte_size=8)) == (
        grpc.StatusCode.INTERNAL,
        "Unable to open shared memory region: '/nope'",
    )
    assert ending(system, a_region(name="s", byte_size=8)) == (
        INVALID,
        "cannot register shared memory region 's' - invalid shm key ''",
    )
    assert ending(system, a_region(name="s", key=key, byte_size=65)) == (
        INVALID,
        "failed to register shared memory region 's': invalid args",
    )
    assert ending(system, a_region(name="s", key=key)) == (
        INVALID,
        "failed to register shared memory region 's': unable to process address spaceInvalid argument",
    )
    assert ending(cuda, a_cuda_region(name="c", raw_handle=bytes(64), byte_size=8)) == (
        INVALID,
        "failed to register CUDA shared memory region: 'c', GPUs not supported",
    )
    assert ending(stub.SystemSharedMemoryStatus, MESSAGES.SystemSharedMemoryStatusRequest(name="q")) == (
        NOT_FOUND,
        "Unable to find system shared memory region: 'q'",
    )
    assert ending(stub.CudaSharedMemoryStatus, MESSAGES.CudaSharedMemoryStatusRequest(name="r")) == (
        NOT_FOUND,
        "The region named 'r' is registered as system shared memory, not CUDA shared memory",
    )


# Tensors.


def test_an_input_in_a_region(stub: Any, make_segment: MakeSegment) -> None:
    """It takes none of the raw contents, and its offset counts from where the region begins."""
    register(stub, "r", make_segment(bytes(4096) + NUMBERS), 64, 4096)
    assert values_of(stub.ModelInfer(request_from("r"))) == [0, 1, 2, 3]
    assert values_of(stub.ModelInfer(request_from("r", offset=48))) == [12, 13, 14, 15]
    request = request_from("r")
    request.raw_input_contents.append(bytes(16))
    assert values_of(stub.ModelInfer(request)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("byte_size", "offset", "text"),
    [
        (16, 49, "Invalid offset + byte size for shared memory region: 'r'"),
        (16, 64, "Invalid offset for shared memory region: 'r'"),
        (16, -1, "Invalid offset for shared memory region: 'r'"),
        (65, None, "Invalid offset + byte size for shared memory region: 'r'"),
        (0, None, "Invalid offset + byte size for shared memory region: 'r'"),
        (-1, None, "Invalid offset + byte size for shared memory region: 'r'"),
        (
            -1,
            1,
            (
                "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds maximum value "
                "(18446744073709551615) for region 'r'"
            ),
        ),
    ],
)
def test_parts_that_a_region_has_not(
    stub: Any, make_segment: MakeSegment, byte_size: int, offset: int | None, text: str
) -> None:
    """The segment has them all the same."""
    register(stub, "r", make_segment(bytes(8192)))
    assert ending(stub.ModelInfer, request_from("r", byte_size, offset)) == (INVALID, text)
    assert ending(stub.ModelInfer, request_to("r", byte_size, offset)) == (INVALID, text)


def test_a_segment_that_was_cut_short(stub: Any, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    register(stub, "r", segment)
    segment.cut(0)
    text = (
        f"shared memory region 'r' has lost its memory: '{segment.key}' was cut to 0 bytes, but byte 15 of it is needed"
    )
    for request in (request_from("r"), request_to("r")):
        assert ending(stub.ModelInfer, request) == (INVALID, text)


def test_an_output_in_a_region(stub: Any, make_segment: MakeSegment) -> None:
    """Its raw content is empty; around it nothing is written."""
    segment = make_segment(b"." * 8192)
    register(stub, "r", segment, 64, 4096)
    answer = stub.ModelInfer(request_to("r", 20, 8, request_id="a"))
    assert (answer.id, [(out.name, out.datatype, out.shape) for out in answer.outputs]) == ("a", [("OUT", "FP32", [4])])
    assert not answer.outputs[0].parameters
    assert list(answer.raw_output_contents) == [b""]
    assert segment.data == b"." * 4104 + NUMBERS[:16] + b"." * 4072


def test_an_output_that_does_not_fit(stub: Any, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    register(stub, "r", segment)
    assert ending(stub.ModelInfer, request_to("r", 8)) == (grpc.StatusCode.INTERNAL, TOO_SMALL)
    assert segment.data == bytes(64)


def test_of_an_output_listed_twice_the_first_region_counts(stub: Any, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    register(stub, "r", segment)
    request = infer_request(values=[0, 1, 2, 3])
    request.outputs.add(name="OUT")
    put(request.outputs.add(name="OUT"), "r", 16)
    put(request.outputs.add(name="OUT"), "r", 16, 32)
    assert list(stub.ModelInfer(request).raw_output_contents) == [b""]
    assert segment.data == NUMBERS[:16] + bytes(48)


@pytest.mark.parametrize("make_request", [request_from, request_to])
def test_a_request_that_comes_again_looks_again(
    stub: Any, make_segment: MakeSegment, make_request: Callable[..., Any]
) -> None:
    """Nothing of a region is remembered with the head of a request."""
    first, second = make_segment(bytes(64)), make_segment(b"\1" * 64)
    register(stub, "r", first)
    request = make_request("r")
    request.raw_input_contents.append(b"")  # one more than there need be, for a head is what stands before it
    stub.ModelInfer(request, timeout=PATIENCE_S)
    unregister(stub)
    assert ending(stub.ModelInfer, request) == (NOT_FOUND, "Unable to find shared memory region: 'r'")
    before = first.data
    register(stub, "r", second)
    answer = stub.ModelInfer(request, timeout=PATIENCE_S)
    if make_request is request_from:
        assert answer.raw_output_contents[0] == b"\1" * 16
    else:
        assert (first.data, second.data[:16]) == (before, NUMBERS[:16])


def test_a_stream(stub: Any, make_segment: MakeSegment) -> None:
    """What is wrong with a region is an answer like others; answers of a decoupled model replace each other."""
    segment = make_segment(bytes(64))
    register(stub, "r", segment)
    many = infer_request("many", "say say say!", "d", [0, 1, 2, 3])
    put(many.outputs.add(name="OUT"), "r", 16, 16)
    requests = [
        request_to("r", request_id="a"),
        request_to("zz", request_id="b"),
        request_to("r", 8, request_id="c"),
        many,
    ]
    answers: dict[str, list[Any]] = {name: [] for name in "abcd"}
    for answer in stub.ModelStreamInfer(iter(requests), timeout=PATIENCE_S):
        answers[answer.infer_response.id].append(answer)
    (good,), (unknown,), (small,), streamed = answers.values()
    assert (good.error_message, list(good.infer_response.raw_output_contents)) == ("", [b""])
    assert unknown.error_message == "Unable to find shared memory region: 'zz'"
    assert (small.error_message, final_flag(small)) == (TOO_SMALL, True)
    assert [list(each.infer_response.raw_output_contents) for each in streamed] == [[b""]] * 3
    assert segment.data[:16] == NUMBERS[:16]
    assert np.frombuffer(segment.data[16:32], np.float32).tolist() == [2, 3, 4, 5]


# Lifetime.


def test_a_region_lives_as_long_as_requests_that_use_it(
    stub: Any, server: ScriptedServer, make_segment: MakeSegment
) -> None:
    """Unregistered meanwhile, it is no longer found by others, but read and written by them."""
    source, target = make_segment(NUMBERS), make_segment(bytes(64))
    register(stub, "in", source)
    register(stub, "out", target)
    request = request_from("in", script="wait:go say!", request_id="held")
    put(request.outputs.add(name="OUT"), "out", 16)
    stream = OpenStream(stub)
    call = stub.ModelInfer.future(request, timeout=PATIENCE_S)
    server.until(lambda: "held" in server.script.begun)
    unregister(stub)
    assert status(stub) == {}
    assert ending(stub.ModelInfer, request)[0] is NOT_FOUND
    server.script.open("go")
    assert list(call.result(PATIENCE_S).raw_output_contents) == [b""]
    assert target.data[:16] == NUMBERS[:16]
    for _ in range(8):  # the threads of the instances have forgotten it when they have something else to do
        stream.say()
    stream.rest()
    server.until(lambda: not is_mapped(source) and not is_mapped(target))


def test_a_request_that_was_given_up_writes_nothing(
    stub: Any, server: ScriptedServer, make_segment: MakeSegment
) -> None:
    segment = make_segment(bytes(64))
    register(stub, "r", segment)
    request = request_to("r", script="until-cancelled say!", request_id="gone")
    call = stub.ModelInfer.future(request, timeout=PATIENCE_S)
    server.until(lambda: "gone" in server.script.begun)
    call.cancel()
    server.until(lambda: "gone" in server.script.cancelled)
    assert values_of(stub.ModelInfer(infer_request())) == [1]
    assert segment.data == bytes(64)
