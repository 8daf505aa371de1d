"""ModelInfer from the client's side of a real connection (docs/reference/grpc.md)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_stub import PATIENCE_S, infer_request, stub_for, values_of
from http2_held import watch
from scripted_server import ScriptedServer, scripted_server

from trireme.api.grpc import infer
from trireme.api.grpc.call import UnaryCall

NOT_LOADED = "Request for unknown model: 'nothing' is not found"
DRAINING = "GRPC server is shutting down and has stopped accepting new requests."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


def ending(call: Any, request: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as failed:
        call(request, timeout=options.pop("timeout", PATIENCE_S), **options)
    return failed.value.code(), failed.value.details()  # type: ignore[attr-defined]


def running_late(server: ScriptedServer, stub: Any, request_id: str) -> grpc.StatusCode:
    """What a call ends with whose deadline comes when the model has begun; on a busy machine that may take a while."""
    request = infer_request(script="until-cancelled say!", request_id=request_id)
    for timeout_s in (0.1, 1.0, 10.0):
        code, _ = ending(stub.ModelInfer, request, timeout=timeout_s)
        if request_id in server.script.begun:
            break
    return code


def test_an_answer(stub: Any) -> None:
    answer = stub.ModelInfer(infer_request(request_id="a", values=[1, 2]))
    assert (answer.model_name, answer.model_version, answer.id) == ("plain", "1", "a")
    assert [(out.name, out.datatype, out.shape) for out in answer.outputs] == [("OUT", "FP32", [2])]
    assert values_of(answer) == [1, 2]
    assert not answer.parameters, "triton_final_response is for streams"


def test_many_calls_at_once_get_their_own_answers(stub: Any) -> None:
    futures = [stub.ModelInfer.future(infer_request(request_id=str(n), values=[n])) for n in range(200)]
    answers = [future.result(PATIENCE_S) for future in futures]
    assert [(answer.id, *values_of(answer)) for answer in answers] == [(str(n), n) for n in range(200)]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (infer_request("nothing"), grpc.StatusCode.NOT_FOUND, NOT_LOADED),
        (
            infer_request("many"),
            grpc.StatusCode.UNIMPLEMENTED,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        (infer_request(script="fail:oops"), grpc.StatusCode.INTERNAL, "oops"),
        (
            infer_request(request_id="a", values=[]),
            grpc.StatusCode.INVALID_ARGUMENT,
            None,
        ),
        (
            infer_request(version="-1"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid model version specified '-1' , version should be an integral value > 0",
        ),
    ],
    ids=["unknown", "decoupled", "failed", "empty", "version"],
)
def test_errors(stub: Any, request_: Any, code: grpc.StatusCode, text: str | None) -> None:
    if text is None:
        request_.inputs[0].shape[:] = [3]
        text = "[request id: a] input byte size mismatch for input 'IN' for model 'plain'. Expected 12, got 0"
    assert ending(stub.ModelInfer, request_) == (code, text)


def test_the_model_is_looked_up_before_anything_else_is_looked_at(stub: Any) -> None:
    """A bad parameter, and no data at all: what Triton says first is that there is no such model."""
    request = infer_request("nothing", priority=-1)
    del request.raw_input_contents[:]
    assert ending(stub.ModelInfer, request) == (grpc.StatusCode.NOT_FOUND, NOT_LOADED)
    request.model_name = "many"
    assert ending(stub.ModelInfer, request)[0] is grpc.StatusCode.UNIMPLEMENTED
    request.model_name = "plain"
    expected = "invalid value for 'priority', expected value >= 0."
    assert ending(stub.ModelInfer, request) == (grpc.StatusCode.INVALID_ARGUMENT, expected)


def test_classification_uses_the_labels(stub: Any) -> None:
    request = infer_request(values=[3, 5])
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    answer = stub.ModelInfer(request)
    assert [(out.datatype, out.shape) for out in answer.outputs] == [("BYTES", [2])]
    assert answer.raw_output_contents[0].count(b"5.000000:1:one") == 1


def test_an_answer_that_cannot_be_given_in_the_form_asked_for(stub: Any) -> None:
    request = infer_request(values=[0] * 1_000_001)
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 1
    expected = (grpc.StatusCode.INVALID_ARGUMENT, "classification output tensor too large")
    assert ending(stub.ModelInfer, request) == expected


def test_a_cancelled_call_leaves_the_queue(server: ScriptedServer, stub: Any) -> None:
    """The model is busy with another request; the one that is cancelled never reaches it."""
    first = stub.ModelInfer.future(infer_request("queued", "wait:first say!", "first"))
    server.until(lambda: "first" in server.script.begun)
    second = stub.ModelInfer.future(infer_request("queued", request_id="second"))
    server.until(lambda: server.server.budget_statistics().requests == 2)
    second.cancel()
    server.until(lambda: server.server.budget_statistics().requests == 1)
    server.script.open("first")
    assert first.result(PATIENCE_S).id == "first"
    assert "second" not in server.script.begun


def test_a_cancelled_call_is_seen_by_the_running_model(server: ScriptedServer, stub: Any) -> None:
    call = stub.ModelInfer.future(infer_request(script="until-cancelled say!", request_id="running"))
    server.until(lambda: "running" in server.script.begun)
    call.cancel()
    server.until(lambda: "running" in server.script.cancelled)


def test_a_deadline_cancels_too(server: ScriptedServer, stub: Any) -> None:
    assert running_late(server, stub, "late") is grpc.StatusCode.DEADLINE_EXCEEDED
    server.until(lambda: "late" in server.script.cancelled)


def test_a_connection_that_is_gone_cancels_its_calls(server: ScriptedServer) -> None:
    with stub_for(server.url) as stub:
        call = stub.ModelInfer.future(infer_request(script="until-cancelled say!", request_id="gone"))
        server.until(lambda: "gone" in server.script.begun)
    assert call.done()
    server.until(lambda: "gone" in server.script.cancelled)


def test_nothing_is_left_of_calls_that_are_over(server: ScriptedServer, stub: Any) -> None:
    stub.ModelInfer(infer_request())
    ending(stub.ModelInfer, infer_request("nothing"))
    server.until(lambda: not watch(server.service).calls)
    server.until(lambda: not server.server.budget_statistics().requests)


def test_calls_that_are_over_need_no_garbage_collector(server: ScriptedServer, stub: Any) -> None:
    """Looking for cycles, again and again, once took two fifths of the time of a small request."""

    def left_over() -> list[Any]:
        return [each for each in gc.get_objects() if type(each) in (UnaryCall, infer._InferCall)]

    server.until(lambda: not watch(server.service).calls)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            stub.ModelInfer(infer_request())
            ending(stub.ModelInfer, infer_request(script="fail:oops"))
            ending(stub.ModelInfer, infer_request("nothing"))
        running_late(server, stub, "cycle")
        server.until(lambda: "cycle" in server.script.cancelled)
        server.until(lambda: not server.server.budget_statistics().requests)
        server.until(lambda: not left_over())  # a model's thread may still be putting the last one down
    finally:
        gc.enable()


def test_a_defect_in_an_answer_costs_its_call_and_not_the_model(
    server: ScriptedServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is written inside the model's scheduler, where an exception would end it."""

    def broken(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(infer._InferCall, "encode", staticmethod(broken))
        assert ending(stub.ModelInfer, infer_request()) == (grpc.StatusCode.UNKNOWN, "Internal Server Error")
    assert values_of(stub.ModelInfer(infer_request())) == [1]
    assert server.call(server.server.model_ready, "plain")


def test_calls_wait_while_the_budget_is_used_up(tmp_path: Path) -> None:
    """Those to a model that has nothing in flight; what fails after waiting fails like anything else."""
    with scripted_server(tmp_path, max_inflight_requests=1) as server, stub_for(server.url) as stub:
        first = stub.ModelInfer.future(infer_request(script="wait:first say!", request_id="first"))
        server.until(lambda: "first" in server.script.begun)
        second = stub.ModelInfer.future(infer_request("queued", request_id="second", values=[7]))
        third = stub.ModelInfer.future(infer_request("queued", script="fail:oops", request_id="third"))
        gone = stub.ModelInfer.future(infer_request("queued", request_id="gone"))
        server.until(lambda: server.server.budget_statistics().waiting == 3)
        gone.cancel()
        server.until(lambda: server.server.budget_statistics().waiting == 2)
        server.script.open("first")
        assert values_of(first.result(PATIENCE_S)) == [1]
        assert values_of(second.result(PATIENCE_S)) == [7]
        assert third.exception(PATIENCE_S).details() == "oops"
        assert "gone" not in server.script.begun


def test_a_model_that_has_its_share_of_the_budget_in_flight_refuses(tmp_path: Path) -> None:
    with scripted_server(tmp_path, max_inflight_requests=4) as server, stub_for(server.url) as stub:
        hung = [
            stub.ModelInfer.future(infer_request(script="wait:end say!", request_id=request_id)) for request_id in "ab"
        ]
        server.until(lambda: sorted(server.script.begun) == ["a", "b"])
        text = "model 'plain' has too many requests in flight: 2 requests, 8 bytes; try again later"
        assert ending(stub.ModelInfer, infer_request()) == (grpc.StatusCode.UNAVAILABLE, text)
        assert values_of(stub.ModelInfer(infer_request("queued"))) == [1]
        server.script.open("end")
        assert [values_of(each.result(PATIENCE_S)) for each in hung] == [[1], [1]]


def test_a_front_end_that_drains_refuses_inferences_and_answers_the_rest(tmp_path: Path) -> None:
    with scripted_server(tmp_path) as server, stub_for(server.url) as stub:
        first = stub.ModelInfer.future(infer_request(script="wait:first say!", request_id="first"))
        server.until(lambda: "first" in server.script.begun)
        server.call(server.application.stop_accepting)
        assert ending(stub.ModelInfer, infer_request()) == (grpc.StatusCode.UNAVAILABLE, DRAINING)
        server.script.open("first")
        assert values_of(first.result(PATIENCE_S)) == [1]
