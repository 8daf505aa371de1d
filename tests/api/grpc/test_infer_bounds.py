"""What a small message may ask for is bounded: objects, elements, dimensions, texts; and large ones leave the loop."""

from __future__ import annotations

import gzip
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import numpy as np
import pytest
from grpc_requests import Request, an_input, describe
from grpc_stub import OpenStream, infer_request, stub_for
from infer_wire_strategies import varint
from scripted_server import ScriptedServer, scripted_server

from trireme.actors.budget import InflightBudget
from trireme.actors.offload import Offload
from trireme.api.grpc.codec import MessageCodec
from trireme.api.grpc.infer_messages import MAX_PARTS, count_varints, unpack_varints
from trireme.api.grpc.infer_reader import InferReader
from trireme.api.grpc.infer_request import decode_infer, read_infer_request
from trireme.api.grpc.wire import UnreadableError
from trireme.api.request_parameters import MAX_TEXT_BYTES
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.memory.regions import Regions
from trireme.engine.tensor_limits import DEFAULT_LIMITS, TensorLimits

MIB = 1 << 20


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def refused(message: bytes, limits: TensorLimits = DEFAULT_LIMITS) -> str:
    """What it is refused with, at the price of less than 16 MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError) as caught:
            read_infer_request(message, limits)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    return caught.value.message


STRINGS = field(5, field(1, b"IN") + field(2, b"BYTES") + field(5, field(8, b"") * (4 * MIB)))
PARTS = f"request has more than {MAX_PARTS} inputs, outputs, raw contents and parameters, which is the most"


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(field(5, b"") * MIB, id="inputs"),
        pytest.param(field(6, b"") * MIB, id="outputs"),
        pytest.param(field(7, b"") * MIB, id="raw contents"),
        pytest.param(field(4, b"") * MIB, id="parameters"),
        pytest.param(field(5, field(4, b"") * MIB), id="parameters of an input"),
        pytest.param(field(6, field(2, b"") * MIB), id="parameters of an output"),
        pytest.param((field(5, field(4, b"")) + field(6, field(2, b""))) * MIB, id="some of each"),
    ],
)
def test_parts_are_counted_before_they_are_made(message: bytes) -> None:
    assert refused(message) == PARTS


def test_as_many_parts_as_there_may_be_are_read() -> None:
    request = read_infer_request(field(5, b"") * MAX_PARTS)
    assert len(request.inputs) == MAX_PARTS


def test_strings_are_counted_and_are_no_objects() -> None:
    """As many as a tensor may have take what they would take if they were sent raw."""
    limits = TensorLimits(max_elements=50_000)
    assert refused(STRINGS, limits).startswith("input 'IN' has more than 50000 elements of type BYTES")
    most = field(5, field(1, b"IN") + field(5, field(8, b"") * 50_000))
    tracemalloc.start()
    try:
        contents = read_infer_request(most, limits).inputs[0].contents
        assert tracemalloc.get_traced_memory()[1] < 3 * 4 * 50_000
    finally:
        tracemalloc.stop()
    assert contents is not None
    assert (contents.element_count, len(contents.elements)) == (50_000, 200_000)


@pytest.mark.parametrize("shape", [field(3, b"\x01" * MIB), b"\x18\x01" * MIB], ids=["packed", "one by one"])
def test_dimensions_are_counted_as_they_come(shape: bytes) -> None:
    text = refused(field(5, field(1, b"IN") + shape))
    assert text.startswith("invalid shape for input 'IN': it has 65 dimensions, expected at most 64")


def test_texts_have_a_largest_size() -> None:
    text = "a" * (MAX_TEXT_BYTES + 1)
    for message in (
        Request(model_name=text),
        Request(id=text),
        Request(inputs=[an_input(name=text)]),
        Request(outputs=[Request.InferRequestedOutputTensor(name=text)]),
    ):
        assert refused(message.SerializeToString()) == (
            f"a name, id or string of the request has {MAX_TEXT_BYTES + 1} bytes, expected at most {MAX_TEXT_BYTES}"
        )
    assert read_infer_request(Request(id=text[1:]).SerializeToString()).id == text[1:]


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
def test_numbers_need_little_besides_what_they_become(dtype: str) -> None:
    shifts = np.arange(300_000, dtype=np.uint64) % 64
    numbers = np.random.default_rng(7).integers(0, 2**63, len(shifts), dtype=np.uint64) >> shifts
    data = b"".join(map(varint, numbers.tolist()))
    assert count_varints(data) == len(numbers)
    tracemalloc.start()
    try:
        unpacked = unpack_varints(data, np.dtype(dtype))
        assert tracemalloc.get_traced_memory()[1] < unpacked.nbytes + 8 * MIB
    finally:
        tracemalloc.stop()
    assert np.array_equal(unpacked, numbers.astype(dtype))


def test_numbers_that_come_one_by_one_are_no_objects() -> None:
    message = field(5, field(5, b"\x35\x01\x02\x03\x04" * 50_000))
    tracemalloc.start()
    try:
        contents = read_infer_request(message).inputs[0].contents
        assert tracemalloc.get_traced_memory()[1] < 4 * len(message)
    finally:
        tracemalloc.stop()
    assert contents is not None
    assert bytes(contents.packed[6]) == b"\x01\x02\x03\x04" * 50_000


# ---- the way of large messages ----


def long_request(values: int = 20_000) -> Any:
    numbers = an_input("A", "INT64", [values], int64_contents=range(values))
    return Request(model_name="m", id="7", inputs=[numbers, an_input("B", "BYTES", [2], bytes_contents=[b"x", b"yz"])])


async def test_large_messages_are_read_on_a_thread_in_room_that_was_taken_before() -> None:
    budget = InflightBudget(10, 1 << 30)
    lease = budget.lease()
    seen: list[tuple[str, int]] = []
    threads = Offload()

    async def offload(function: Callable[..., Any], *arguments: Any) -> Any:
        seen.append((getattr(function, "__name__", ""), lease.nbytes))
        return await threads(function, *arguments)

    reader = InferReader(Regions(), offload=cast(Offload, offload))
    message = long_request().SerializeToString()
    assert reader.decode(message, describe) is None
    decoded = await reader.decode_slowly(message, describe, lease)
    expected = decode_infer(read_infer_request(message), describe, Regions())
    assert [bytes(each.buffer) for each in decoded.request.inputs] == [
        bytes(each.buffer) for each in expected.request.inputs
    ]
    assert (decoded.request.id, decoded.model.name) == ("7", "m")
    assert seen == [
        ("scan_infer_request", 3 * len(message)),
        ("unpacked_bytes", 3 * len(message)),
        ("unpack_infer_request", 3 * len(message) + 8 * 20_000),
    ]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(field(5, field(1, b"IN") + field(5, field(8, b"") * 9000)), id="strings"),
        pytest.param(field(5, field(1, b"IN") + field(5, field(3, b"\x01" * 20_000))), id="numbers"),
        pytest.param(field(7, b"") * 9000, id="raw contents"),
        pytest.param(field(9, b"") * 9000, id="unknown fields"),
    ],
)
def test_what_takes_long_is_not_read_at_once(message: bytes) -> None:
    assert InferReader(Regions()).decode(message, describe) is None


def test_large_raw_contents_are_read_at_once() -> None:
    request = Request(model_name="m", inputs=[an_input("A", "FP32", [MIB])], raw_input_contents=[bytes(4 * MIB)])
    decoded = InferReader(Regions()).decode(request.SerializeToString(), describe)
    assert decoded is not None
    assert decoded.request.inputs[0].nbytes == 4 * MIB


async def test_faults_of_large_messages_are_those_of_small_ones() -> None:
    reader = InferReader(Regions())
    two = an_input("A", "INT64", [1], int64_contents=range(20_000), fp32_contents=[1.0])
    faults = {
        Request(model_name="m", inputs=[two]).SerializeToString(): InvalidArgumentError,
        long_request().SerializeToString() + b"\x0a\x05": UnreadableError,
        field(5, field(5, field(3, b"\x01" * 70_000 + b"\xff" * 11 + b"\x01"))): UnreadableError,
    }
    for message, kind in faults.items():
        assert reader.decode(message, describe) is None
        with pytest.raises(kind) as caught:
            await reader.decode_slowly(message, describe, InflightBudget(1, 1 << 30).lease())
        with pytest.raises(kind) as expected:
            decode_infer(read_infer_request(message), describe, Regions())
        assert caught.value.message == expected.value.message


# ---- over the wire ----


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as opened:
        yield opened


def typed(values: int) -> Any:
    request = infer_request(values=[0.0] * values)
    del request.raw_input_contents[:]
    request.inputs[0].contents.fp32_contents.extend([0.5] * values)
    return request


def test_typed_contents_of_any_size(server: ScriptedServer, stub: Any) -> None:
    """In a call of their own and on a stream; nothing of the budget is left with them."""
    stream = OpenStream(stub)
    for values in (10, 100_000):
        assert np.frombuffer(stub.ModelInfer(typed(values)).raw_output_contents[0], "<f4").tolist() == [0.5] * values
        stream.put(typed(values))
        answer = stream.hear()
        assert not answer.error_message
        assert np.frombuffer(answer.infer_response.raw_output_contents[0], "<f4").tolist() == [0.5] * values
    stream.rest()
    server.until(lambda: (server.server.budget_statistics().bytes, server.server.budget_statistics().leases) == (0, 0))


def test_a_bomb_of_strings_is_refused(server: ScriptedServer, stub: Any) -> None:
    """8 KB that unpack to 8 MiB of empty strings; the stream that it comes on goes on."""
    infer = stub_bytes(server, "unary_unary", "ModelInfer")
    with pytest.raises(grpc.RpcError) as caught:
        infer(STRINGS, compression=grpc.Compression.Gzip)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("input 'IN' has more than 1048576 elements of type BYTES")
    assert len(gzip.compress(STRINGS)) < 20_000
    stream = stub_bytes(server, "stream_stream", "ModelStreamInfer")
    small = infer_request(request_id="after").SerializeToString()
    first, second = stream(iter([STRINGS, small]), compression=grpc.Compression.Gzip)
    assert b"has more than 1048576 elements" in first
    assert b"after" in second
    server.until(lambda: server.server.budget_statistics().leases == 0)


def stub_bytes(server: ScriptedServer, kind: str, method: str) -> Any:
    channel = grpc.insecure_channel(server.url)
    return getattr(channel, kind)(f"/inference.GRPCInferenceService/{method}")


def test_messages_about_the_server_are_read_on_a_thread(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map of many entries; reading them takes long."""
    seen: list[threading.Thread] = []
    decode = MessageCodec.decode

    def watched(self: MessageCodec, data: Any, kind: Any) -> Any:
        seen.append(threading.current_thread())
        return decode(self, data, kind)

    monkeypatch.setattr(MessageCodec, "decode", watched)
    ready = stub_bytes(server, "unary_unary", "ServerReady")
    assert ready(b"")
    assert ready(field(9, bytes(100_000)))
    assert [thread.name.startswith("Trio thread") for thread in seen] == [False, True]
