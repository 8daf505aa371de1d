"""What functions learn of the requests that they answer, and streams whose clients are slow, or leave."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from serve_process import PATIENCE_S
from served_app import AppProcess, app_process, write_app

APP = """\
import json
import time

from trireme import BYTES, FP32, INT64, RequestContext, model

SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"


def shown(context):
    about = {name: getattr(context, name) for name in (
        "request_id", "correlation_id", "sequence_start", "sequence_end", "parameters", "rows", "cancelled"
    )}
    return json.dumps(about)


@model
def one(x: FP32[1], context: RequestContext) -> BYTES[1]:
    return [shown(context)]


@model(max_batch_size=8)
def several(x: FP32[1], contexts: list[RequestContext]) -> BYTES[1]:
    return [[shown(each)] for each in contexts for _ in range(each.rows)]


@model(max_batch_size=4, config=SEQUENCES)
class Total:
    def __init__(self):
        self.totals = {}

    def __call__(self, x: INT64[1], contexts: list[RequestContext]) -> INT64[1]:
        answers = []
        for row, context in zip(x, contexts):
            before = 0 if context.sequence_start else self.totals[context.correlation_id]
            self.totals[context.correlation_id] = before + int(row[0])
            answers.append([self.totals[context.correlation_id]])
            if context.sequence_end:
                del self.totals[context.correlation_id]
        return answers


@model
async def flood(size: INT64[1], count: INT64[1]) -> BYTES[1]:
    for _ in range(count[0]):
        yield [b"x" * size[0]]


@model(in_process=True, name="flood_on_asyncio")
async def flood_inside(size: INT64[1], count: INT64[1]) -> BYTES[1]:
    for _ in range(count[0]):
        yield [b"x" * size[0]]


@model(in_process=True, async_library="trio", name="flood_on_trio")
async def flood_on_trio(size: INT64[1], count: INT64[1]) -> BYTES[1]:
    for _ in range(count[0]):
        yield [b"x" * size[0]]


@model
def patient(x: FP32[1], context: RequestContext) -> FP32[1]:
    yield x
    while not context.cancelled:
        time.sleep(0.01)
    print("the client has left", flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    with app_process(write_app(tmp_path_factory.mktemp("app"), APP)) as server:
        yield server


def ask(server: AppProcess, model: str, shape: list[int], **fields: Any) -> list[dict[str, Any]]:
    count = int(np.prod(shape))
    inputs = [{"name": "x", "datatype": "FP32", "shape": shape, "data": [1.0] * count}]
    status, answer = server.ask("POST", f"/v2/models/{model}/infer", {"inputs": inputs, **fields})
    assert status == 200, answer
    return [json.loads(each) for each in answer["outputs"][0]["data"]]


def test_a_function_learns_of_its_request(server: AppProcess) -> None:
    (plain,) = ask(server, "one", [1])
    assert plain == {
        "request_id": "",
        "correlation_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "parameters": {},
        "rows": 0,
        "cancelled": False,
    }
    sequence = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    (told,) = ask(server, "one", [1], id="a", parameters={**sequence, "kind": "b"})
    assert told == {
        **plain,
        "request_id": "a",
        "correlation_id": 7,
        "sequence_start": True,
        "parameters": {"kind": "b"},
    }


def test_a_function_of_many_requests_learns_of_each(server: AppProcess) -> None:
    assert [each["rows"] for each in ask(server, "several", [3, 1])] == [3, 3, 3]


def test_a_sequence_is_told_by_its_number(server: AppProcess) -> None:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:

        def add(sequence: Any, number: int, **flags: Any) -> int:
            tensor = triton_grpc.InferInput("x", [1, 1], "INT64")
            tensor.set_data_from_numpy(np.array([[number]]))
            result = client.infer("Total", [tensor], sequence_id=sequence, **flags)
            assert result is not None
            array = result.as_numpy("output")
            assert array is not None
            return int(array[0, 0])

        assert add(1, 10, sequence_start=True) == 10
        assert add("two", 5, sequence_start=True) == 5
        assert add(1, 1) == 11
        assert add("two", 1, sequence_end=True) == 6
        assert add(1, 1, sequence_end=True) == 12


def stream(server: AppProcess, model: str, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody reads yet."""
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=PATIENCE_S)
    text = json.dumps(body)
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
    connection.sendall((head + text).encode())
    return connection


@pytest.mark.parametrize("model", ["flood", "flood_on_asyncio", "flood_on_trio"])
def test_a_slow_reader_holds_up_no_other_stream(server: AppProcess, model: str) -> None:
    """Of one instance, whose streams are coroutines of one loop."""
    with stream(server, model, {"size": [1 << 20], "count": [1000]}) as slow:
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        with stream(server, model, {"size": [1], "count": [200]}) as quick:
            seen = b""
            while not seen.endswith(b"0\r\n\r\n"):
                seen += quick.recv(1 << 16)
        assert seen.count(b"data: ") == 200


def test_what_goes_on_by_itself_learns_that_the_client_has_left(server: AppProcess) -> None:
    with stream(server, "patient", {"x": [1.0]}) as connection:
        seen = b""
        while b"data: " not in seen:
            seen += connection.recv(1 << 16)
    server.wait_for("the client has left")
