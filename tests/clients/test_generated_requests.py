"""Requests for generated text are made up from numbers of tokens, and their many answers are told apart."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from trireme.clients.connections import HttpLoadConnection, RefusedError
from trireme.clients.generated_requests import generation_inputs
from trireme.clients.grpc_connection import DATA, frame
from trireme.clients.prepared import RequestPreparer
from trireme.clients.stream_connection import WANTS_FINAL, StreamLoadConnection
from trireme.clients.target import LoadProtocol, LoadTarget
from trireme.engine.logs.made_prompts import prompt_of, sampling_of
from trireme.engine.logs.request_log import LoggedRequest
from trireme.proto.messages import inference

REQUEST = LoggedRequest(0.0, "writer", prompt_tokens=12, found_tokens=5, max_tokens=9, generated_tokens=6, choices=2)


@pytest.fixture
def port() -> Iterator[int]:
    """Of a socket that listens, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_prompts_have_their_beginning_in_common_and_no_more() -> None:
    first, second = prompt_of(REQUEST, 0), prompt_of(REQUEST, 1)
    assert len(first) == len(second) == 12
    assert first[:5] == second[:5]
    assert first[5:] != second[5:]
    assert prompt_of(REQUEST, 0) == first


def test_as_much_is_asked_for_as_was_generated() -> None:
    assert sampling_of(REQUEST) == {"ignore_eos": True, "max_tokens": 3, "n": 2}
    assert sampling_of(LoggedRequest(0.0, "m", prompt_tokens=1, max_tokens=9)) == {"ignore_eos": True, "max_tokens": 9}
    tokens, stream, _ = generation_inputs(REQUEST, 0)
    assert np.frombuffer(tokens.data, np.int64).tolist() == prompt_of(REQUEST, 0)
    assert (stream.data, stream.shape) == (b"\1", (1,))


def test_over_http_they_are_events() -> None:
    (written,) = RequestPreparer(LoadTarget("h", 1)).make(REQUEST)
    head, _, body = written.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/writer/generate_stream HTTP/1.1")
    assert json.loads(body)["input_ids"] == prompt_of(REQUEST, 0)


def test_over_a_stream_the_last_answer_is_wanted() -> None:
    (written,) = RequestPreparer(LoadTarget("h", 1, LoadProtocol.STREAM)).make(REQUEST)
    assert inference.ModelInferRequest.parse(written).parameters[WANTS_FINAL].bool_param


def test_unary_calls_cannot_carry_them() -> None:
    with pytest.raises(RefusedError, match="answers many times"):
        RequestPreparer(LoadTarget("h", 1, LoadProtocol.GRPC)).make(REQUEST)


def answer(final: bool) -> bytes:
    parameters = {"triton_final_response": inference.InferParameter(bool_param=final)}
    message = bytes(
        inference.ModelStreamInferResponse(infer_response=inference.ModelInferResponse("m", parameters=parameters))
    )
    return b"\0" + len(message).to_bytes(4, "big") + message


def test_a_stream_waits_for_the_last_answer(port: int) -> None:
    connection = StreamLoadConnection(port, 0)
    try:
        connection.ask(RequestPreparer(LoadTarget("h", 1, LoadProtocol.STREAM)).make(REQUEST))
        assert not connection.take(memoryview(frame(DATA, 0, 1, answer(False))))
        both = answer(False) + answer(True)
        assert not connection.take(memoryview(frame(DATA, 0, 1, both[:-3])))
        assert connection.take(memoryview(frame(DATA, 0, 1, both[-3:])))
        assert connection.status == 0
        connection.ask([bytes(inference.ModelInferRequest("m"))])
        assert connection.take(memoryview(frame(DATA, 0, 1, answer(False)))), "another request has one answer"
    finally:
        connection.close()


@pytest.mark.parametrize("last", ["", '{"error":"the step failed"}'])
def test_an_error_amid_events_is_the_outcome(port: int, last: str) -> None:
    connection = HttpLoadConnection(port, 0)
    try:
        connection.ask([b"x"])
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        events = [b'data: {"text_output":"a"}\n\n', *([f"data: {last}\n\n".encode()] if last else [])]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
        assert not connection.take(memoryview(head + chunks))
        assert connection.take(memoryview(b"0\r\n\r\n"))
        assert connection.reason == ("the step failed" if last else "")
        assert bool(connection.status) == bool(last)
    finally:
        connection.close()
