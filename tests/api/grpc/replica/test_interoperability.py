"""The link against gRPC's own server, which uses the dynamic table, its own windows, and PINGs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
import trio
from linked_replica import linked, request_of
from triton_messages import MESSAGES

from trireme.engine.errors import ErrorKind

_SERVICE = "inference.GRPCInferenceService"
_LARGE = 32 << 20


class Triton:
    """Answers with what it was asked, and does what the id says."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    def infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.id.startswith("status:"):
            context.abort(getattr(grpc.StatusCode, request.id[7:]), "of no use: 50 % — naïve")
        if request.id == "cancel":
            context.add_callback(self.cancelled.set)
            self.begun.set()
            self.cancelled.wait(30)
        response = MESSAGES.ModelInferResponse(model_name=request.model_name, model_version="7", id=request.id)
        for name, value in request.parameters.items():
            response.parameters[name].CopyFrom(value)
        for given, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            response.outputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
            response.raw_output_contents.append(raw)
        return response

    def typed(self, request: Any, context: grpc.ServicerContext) -> Any:
        response = MESSAGES.ModelInferResponse(model_name=request.model_name)
        response.outputs.add(name="OUT", datatype="INT32", shape=[2]).contents.int_contents.extend([-1, 2])
        return response

    def stream_infer(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            for _ in range(3):
                yield MESSAGES.ModelStreamInferResponse(infer_response=self.infer(request, context))
            yield MESSAGES.ModelStreamInferResponse(error_message="odd")


@pytest.fixture(scope="module")
def triton() -> Triton:
    return Triton()


@pytest.fixture(scope="module")
def address(triton: Triton) -> Iterator[str]:
    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(
            lambda request, context: (triton.typed if request.id == "typed" else triton.infer)(request, context),
            MESSAGES.ModelInferRequest.FromString,
            MESSAGES.ModelInferResponse.SerializeToString,
        ),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
            triton.stream_infer,
            MESSAGES.ModelInferRequest.FromString,
            MESSAGES.ModelStreamInferResponse.SerializeToString,
        ),
    }
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), options=limits)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


async def test_requests_arrive_as_they_were_sent(address: str) -> None:
    parameters = {"flag": True, "count": -3, "text": "naïve", "share": 0.5}
    async with linked(address) as replica:
        for number in range(20):
            request = request_of("some", np.arange(number), id=f"r{number % 3}", parameters=dict(parameters))
            request.correlation_id, request.sequence_start = 2**64 - 5, True
            request.priority, request.timeout_us = 3, 9
            response = (await replica.infer(request).over()).response
            assert (response.model_name, response.model_version, response.id) == ("some", 7, f"r{number % 3}")
            sent = {**parameters, "sequence_id": -5, "sequence_start": True, "priority": 3, "timeout": 9}
            assert response.parameters == sent
            assert response.output("IN").array.tolist() == list(range(number))


async def test_many_at_once_are_answered_each_with_its_own(address: str) -> None:
    async with linked(address) as replica:
        told = [replica.infer(request_of(values=[number], id=str(number))) for number in range(300)]
        for number, each in enumerate(told):
            response = (await each.over()).response
            assert (response.id, response.outputs[0].array.tolist()) == (str(number), [number])


async def test_large_tensors_pass_both_ways(address: str) -> None:
    async with linked(address) as replica:
        values = np.arange(_LARGE // 4, dtype=np.float32)
        response = (await replica.infer(request_of(values=values)).over()).response
        assert np.array_equal(response.outputs[0].array, values)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("INVALID_ARGUMENT", ErrorKind.INVALID_ARGUMENT),
        ("NOT_FOUND", ErrorKind.NOT_FOUND),
        ("UNAVAILABLE", ErrorKind.UNAVAILABLE),
        ("ALREADY_EXISTS", ErrorKind.ALREADY_EXISTS),
        ("UNIMPLEMENTED", ErrorKind.UNSUPPORTED),
        ("CANCELLED", ErrorKind.CANCELLED),
        ("DEADLINE_EXCEEDED", ErrorKind.DEADLINE),
        ("INTERNAL", ErrorKind.INTERNAL),
        ("UNKNOWN", ErrorKind.UNKNOWN),
        ("UNAUTHENTICATED", ErrorKind.UNAUTHENTICATED),
        ("PERMISSION_DENIED", ErrorKind.PERMISSION_DENIED),
        ("RESOURCE_EXHAUSTED", ErrorKind.LIMIT_EXCEEDED),
        ("ABORTED", ErrorKind.UNAVAILABLE),
    ],
)
async def test_statuses_become_the_errors_that_they_are_of(address: str, status: str, kind: ErrorKind) -> None:
    async with linked(address) as replica:
        for _ in range(2):
            told = await replica.infer(request_of(id=f"status:{status}")).over()
            assert told.error is not None
            assert (told.error.kind, told.error.message) == (kind, "of no use: 50 % — naïve")
            assert told.executed


async def test_streams_end_with_their_last_answer(address: str) -> None:
    """Errors of a server that does not tell their kind are internal ones, and may be followed by more."""
    async with linked(address) as replica:
        told = await replica.infer(request_of("some", [1.0]), decoupled=True).over()
        assert told.values == [[1.0]] * 3
        assert [str(outcome) for outcome, _ in told.answers[3:]] == ["odd", "None"]


async def test_typed_contents_are_read(address: str) -> None:
    async with linked(address) as replica:
        response = (await replica.infer(request_of(id="typed")).over()).response
        assert response.outputs[0].array.tolist() == [-1, 2]


async def test_cancelling_reaches_the_server(address: str, triton: Triton) -> None:
    async with linked(address) as replica:
        told = replica.infer(request_of(id="cancel"))
        assert await trio.to_thread.run_sync(triton.begun.wait, 30)
        replica.cancel(told)
        assert await trio.to_thread.run_sync(triton.cancelled.wait, 30)


async def test_a_server_that_knows_nothing_of_reports_is_linked_all_the_same(address: str) -> None:
    async with linked(address) as replica:
        assert (await replica.infer(request_of()).over()).values == [[1.0]]
        assert replica.events.told == ["connected", ("unreported", "it is no server for gateways: Method not found!")]
