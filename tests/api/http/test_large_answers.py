"""Large answers are put together off the event loop, in pieces, and are what small ones are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from http_fakes import FakeServer, HttpClient
from http_sockets import Responses, connect, serving
from hypothesis import given
from hypothesis import strategies as st
from repository_models import link_models
from segments import open_segments

from trireme.actors import InferenceServer
from trireme.api import classification, pipeline
from trireme.api.classification import classify
from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import HttpOptions
from trireme.api.http.handlers import generate as handlers_generate
from trireme.api.http.infer.handler import HttpInfer
from trireme.api.http.json import writer as json_writer
from trireme.engine.datatypes import BYTES, FP32, FP64, INT8, DataType
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.options import ServerOptions
from trireme.engine.tensor import Tensor, pack_bytes

MANY = 20_000


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each answer: whether it was encoded on the event loop's thread."""
    loop = threading.get_ident()
    seen: list[bool] = []

    def watch(place: Any, name: str, made: Callable[[Any], Any]) -> None:
        genuine = getattr(place, name)

        def watched(*args: Any) -> Any:
            seen.append(threading.get_ident() == loop)
            return genuine(*args)

        monkeypatch.setattr(place, name, made(watched))

    watch(HttpInfer, "encode", staticmethod)
    watch(handlers_generate, "encode_generate", lambda watched: watched)
    return seen


def binary(count: int, outputs: list[dict[str, Any]], datatype: str = "FP32", size: int = 0) -> dict[str, Any]:
    parameters = {"binary_data_size": size or 4 * count}
    tensor = {"name": "IN", "shape": [count], "datatype": datatype, "parameters": parameters}
    return {"inputs": [tensor], "outputs": outputs}


@pytest.mark.parametrize(
    ("count", "parameters", "on_loop"),
    [
        (10, {}, True),
        (MANY, {}, False),
        (MANY, {"classification": 3}, False),
        (MANY, {"binary_data": True}, True),
        (1 << 20, {"binary_data": True}, True),
    ],
    ids=["small", "JSON", "classes", "binary", "large binary"],
)
async def test_what_takes_long_is_encoded_elsewhere(
    threads: list[bool], count: int, parameters: dict[str, Any], on_loop: bool
) -> None:
    client = HttpClient(FakeServer())
    blob = np.arange(count, dtype=np.float32).tobytes()
    reply = await client.infer(binary(count, [{"name": "OUT", "parameters": parameters}]), blob)
    assert reply.status == 200
    assert threads == [on_loop]
    if not parameters:
        assert reply.json["outputs"][0]["data"] == list(range(count))


@pytest.mark.parametrize(("strings", "on_loop"), [(10, True), (MANY, False)])
async def test_many_strings_are_written_elsewhere(threads: list[bool], strings: int, on_loop: bool) -> None:
    client = HttpClient(FakeServer())
    packed = pack_bytes([b"ab"] * strings)
    request = binary(strings, [{"name": "OUT"}], "BYTES", len(packed))
    reply = await client.infer(request, packed, model="strings")
    assert reply.json["outputs"][0]["data"] == ["ab"] * strings
    assert threads == [on_loop]


async def test_much_is_copied_to_shared_memory_elsewhere(threads: list[bool]) -> None:
    server = FakeServer()
    client = HttpClient(server)
    nbytes = 4 << 20
    with open_segments() as make:
        segment = make(bytes(nbytes))
        server.shared_memory.register_system("r", segment.key, 0, nbytes)
        place = {"shared_memory_region": "r", "shared_memory_byte_size": nbytes}
        blob = np.arange(nbytes // 4, dtype=np.float32).tobytes()
        reply = await client.infer(binary(nbytes // 4, [{"name": "OUT", "parameters": place}]), blob)
        assert reply.status == 200
        assert segment.data == blob
        assert threads == [False]
        assert await client.infer(binary(2, [{"name": "OUT", "parameters": place}]), bytes(8))
        assert threads == [False, True]


async def test_a_client_without_a_task_gets_its_large_answer_too(
    tmp_path: Path, threads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that has left meanwhile gets nothing, and harms no other."""
    monkeypatch.setattr(pipeline, "MANY_ELEMENTS", 8)
    numbers = [float(number) for number in range(16)]
    body = orjson.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": numbers}]})
    request = (
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    options = ServerOptions(model_repository=(link_models(tmp_path / "models", "identity_fp32"),))
    async with (
        InferenceServer(options) as server,
        serving(HttpApplication(server, HttpOptions())) as http,
        await connect(http) as stream,
    ):
        responses = Responses(stream)
        for _ in range(3):
            await stream.send_all(request)
            answer = await responses.next()
            assert orjson.loads(answer.body)["outputs"][0]["data"] == numbers
        assert threads == [False] * 3
        async with await connect(http) as other:
            await other.send_all(request)
        await stream.send_all(request)
        assert (await responses.next()).status == 200


@given(st.lists(st.floats(width=32) | st.just(1e22) | st.just(0.5), max_size=40), st.integers(1, 7))
def test_pieces_make_the_same_text(values: list[float], at_once: int) -> None:
    tensor = Tensor("O", FP64, (len(values),), array=np.array(values, np.float64))
    expected = json_writer.tensor_data(tensor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_writer, "_PIECE_ELEMENTS", at_once)
        assert json_writer.tensor_data(tensor) == expected
        assert b"".join(json_writer.tensor_pieces(tensor, b"}")) == expected + b"}"


@given(st.lists(st.binary(max_size=20), max_size=12), st.integers(1, 9))
def test_long_strings_are_escaped_in_pieces(elements: list[bytes], nbytes: int) -> None:
    tensor = Tensor("O", BYTES, (len(elements),), pack_bytes(elements))
    expected = json_writer.tensor_data(tensor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_writer, "_PIECE_BYTES", nbytes)
        patch.setattr(json_writer, "_PIECE_ELEMENTS", 3)
        assert json_writer.tensor_data(tensor) == expected


@pytest.mark.parametrize("datatype", [FP32, INT8])
def test_the_top_classes_are_the_same_however_many_there_are(datatype: DataType) -> None:
    values = np.array([[3, 1, 3, 2], [0, 5, 5, 5]]).astype(datatype.storage)
    tensor = Tensor("O", datatype, (2, 4), array=values)
    every = classify(tensor, 2**32 - 1, (), batched=True).array
    for count in (1, 2, 3):
        assert (classify(tensor, count, (), batched=True).array == every[:, :count]).all()
    assert [text.split(b":")[1] for text in every[1].tolist()] == [b"1", b"2", b"3", b"0"]


def test_classes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each becomes an object: two million of eight megabytes of floats were hundreds of megabytes."""
    monkeypatch.setattr(classification, "_MAX_CLASSES", 5)
    tensor = Tensor("O", FP32, (2, 3), array=np.zeros((2, 3), np.float32))
    assert classify(tensor, 2, (), batched=True).shape == (2, 2)
    with pytest.raises(InvalidArgumentError, match="gives 6 classes, expected at most 5"):
        classify(tensor, 2**32 - 1, (), batched=True)
