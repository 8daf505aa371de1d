"""ModelStreamInfer from the client's side of a real connection (docs/reference/grpc.md#streams,
docs/reference/grpc.md#cancellation)."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_stub import OpenStream, final_flag, infer_request, stub_for, values_of
from http2_held import watch
from scripted_server import ScriptedServer, scripted_server

from trireme.actors.reply import ANSWER_WINDOW
from trireme.api.grpc import stream_infer
from trireme.engine.admission.client_bytes import ClientAccounts, ClientBytes

OK = (grpc.StatusCode.OK, "")
DRAINING = "GRPC server is shutting down and has stopped accepting new requests."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


@pytest.fixture
def stream(stub: Any) -> OpenStream:
    return OpenStream(stub)


def ids(responses: list[Any]) -> list[str]:
    return [response.infer_response.id for response in responses]


# Order.


def test_requests_are_issued_as_they_arrive_and_answered_in_their_order(
    server: ScriptedServer, stream: OpenStream
) -> None:
    """The second is executed while the first still runs, and waits for it."""
    stream.say(script="wait:one say!", request_id="one")
    stream.say(request_id="two")
    stream.say(request_id="three")
    server.until(lambda: {"one", "two", "three"} <= set(server.script.begun))
    server.until(lambda: server.server.budget_statistics().requests == 1)
    server.script.open("one")
    assert ids(stream.rest()) == ["one", "two", "three"]
    assert stream.status == OK


def test_many_requests_in_flight_keep_their_order(stream: OpenStream) -> None:
    for number in range(300):
        stream.say(request_id=str(number), values=[number])
    responses = stream.rest()
    assert [(r.infer_response.id, *values_of(r.infer_response)) for r in responses] == [(str(n), n) for n in range(300)]
    assert all(final_flag(response) for response in responses)


def test_decoupled_answers_go_out_as_they_come(server: ScriptedServer, stream: OpenStream) -> None:
    """Between those of another decoupled request, and past a slow one that is answered once."""
    stream.say(script="wait:slow say!", request_id="slow")
    stream.say("many", "say wait:a say!", "a")
    stream.say("many", "wait:b say wait:c say!", "b")
    assert ids([stream.hear()]) == ["a"]
    server.script.open("b")
    assert ids([stream.hear()]) == ["b"]
    server.script.open("a")
    assert ids([stream.hear()]) == ["a"]
    server.script.open("c")
    assert ids([stream.hear()]) == ["b"]
    server.script.open("slow")
    assert ids(stream.rest()) == ["slow"]


def test_a_decoupled_request_holds_no_other_up(server: ScriptedServer, stream: OpenStream) -> None:
    stream.say("many", "wait:decoupled say!", "decoupled")
    stream.say(request_id="plain")
    assert ids([stream.hear()]) == ["plain"]
    server.script.open("decoupled")
    assert ids(stream.rest()) == ["decoupled"]


def test_a_refusal_keeps_its_place(server: ScriptedServer, stream: OpenStream) -> None:
    stream.say(script="wait:place say!", request_id="a")
    stream.say("nothing", request_id="b")
    stream.say(request_id="c")
    server.until(lambda: "c" in server.script.begun)
    server.script.open("place")
    assert ids(stream.rest()) == ["a", "b", "c"]


def test_a_refusal_by_a_decoupled_model_does_not_wait(server: ScriptedServer, stream: OpenStream) -> None:
    stream.say(script="wait:other say!", request_id="a")
    stream.say("many", request_id="b", priority=-1)
    assert ids([stream.hear()]) == ["b"]
    server.script.open("other")
    assert ids(stream.rest()) == ["a"]


# Form.


def test_an_answer_of_a_decoupled_model(stream: OpenStream) -> None:
    stream.say("many", "say say say!", "a", values=[1, 2])
    responses = stream.rest()
    assert [values_of(response.infer_response) for response in responses] == [[1, 2], [2, 3], [3, 4]]
    assert [final_flag(response) for response in responses] == [False, False, True]
    assert {(r.infer_response.model_name, r.infer_response.model_version) for r in responses} == {("many", "1")}
    assert not any(response.error_message for response in responses)


@pytest.mark.parametrize("asked", [None, False, True])
def test_a_final_flag_without_data_is_told_to_those_who_ask(stream: OpenStream, asked: bool | None) -> None:
    wanted = {} if asked is None else {"triton_enable_empty_final_response": asked}
    stream.say("many", "say end", "a", **wanted)
    responses = stream.rest()
    assert [final_flag(response) for response in responses] == ([False, True] if asked else [False])
    if asked:
        last = responses[-1].infer_response
        assert (last.model_name, last.model_version, last.id) == ("many", "", "a")
        assert (len(last.outputs), len(last.parameters), responses[-1].error_message) == (0, 1, "")


def test_a_model_may_say_nothing_at_all(stream: OpenStream) -> None:
    stream.say("many", "end", "silent")
    stream.say("many", "end", "asked", triton_enable_empty_final_response=True, version="1")
    (response,) = stream.rest()
    assert (response.infer_response.id, response.infer_response.model_version) == ("asked", "1")
    assert stream.status == OK


def test_no_empty_response_follows_a_final_one_with_data(stream: OpenStream) -> None:
    stream.say("many", "say!", "a", triton_enable_empty_final_response=True)
    stream.say("plain", "say!", "b", triton_enable_empty_final_response=True)
    responses = stream.rest()
    assert sorted(ids(responses)) == ["a", "b"]
    assert all(final_flag(response) and response.infer_response.outputs for response in responses)


def test_an_error_before_execution_tells_the_id_and_no_more(stream: OpenStream) -> None:
    stream.say("nothing", request_id="a", version="1")
    (response,) = stream.rest()
    assert response.error_message == "Request for unknown model: 'nothing' is not found"
    assert response.HasField("infer_response")
    assert str(response.infer_response) == 'id: "a"\n'


@pytest.mark.parametrize(("version", "model"), [("", "plain"), ("1", "plain"), ("", "many")])
def test_an_error_of_the_model_tells_what_the_request_said(stream: OpenStream, version: str, model: str) -> None:
    stream.say(model, "fail:oops", "a", version=version)
    (response,) = stream.rest()
    assert response.error_message == "oops"
    told = response.infer_response
    assert (told.model_name, told.model_version, told.id) == (model, version, "a")
    assert final_flag(response)
    assert len(told.parameters) == 1
    assert not told.outputs


def test_errors_do_not_end_the_stream(stream: OpenStream) -> None:
    stream.say(script="fail:one", request_id="a")
    stream.say("nothing", request_id="b")
    stream.say(request_id="c")
    responses = stream.rest()
    assert [bool(response.error_message) for response in responses] == [True, True, False]
    assert stream.status == OK


def test_an_answer_that_cannot_be_given_in_the_form_asked_for_is_an_error_like_the_models(stub: Any) -> None:
    request = infer_request(request_id="a", values=[0] * 1_000_001)
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 1
    (response,) = stub.ModelStreamInfer(iter([request]))
    assert response.error_message == "classification output tensor too large"
    assert (response.infer_response.id, len(response.infer_response.outputs)) == ("a", 0)
    assert final_flag(response)


# The end.


def test_an_empty_stream_ends_well(stream: OpenStream) -> None:
    assert stream.rest() == []
    assert stream.status == OK


def test_everything_is_answered_after_the_client_has_half_closed(server: ScriptedServer, stream: OpenStream) -> None:
    stream.say(script="wait:half say!", request_id="a")
    stream.say("many", "wait:half say say!", "b")
    stream.half_close()
    server.until(lambda: {"a", "b"} <= set(server.script.begun))
    server.script.open("half")
    assert sorted(ids(list(stream.call))) == ["a", "b", "b"]
    assert stream.status == OK


def test_a_client_that_leaves_cancels_everything_in_flight(server: ScriptedServer, stub: Any) -> None:
    stream = OpenStream(stub)
    stream.say(script="until-cancelled say!", request_id="leaver")
    stream.say("many", "say until-cancelled say!", "decoupled leaver")
    stream.hear()
    server.until(lambda: "leaver" in server.script.begun)
    stream.leave()
    server.until(lambda: {"leaver", "decoupled leaver"} <= set(server.script.cancelled))
    server.until(lambda: not server.server.budget_statistics().requests)
    server.until(lambda: not watch(server.service).calls)


def test_a_connection_that_is_gone_cancels_its_streams(server: ScriptedServer) -> None:
    with stub_for(server.url) as stub:
        stream = OpenStream(stub)
        stream.say(script="until-cancelled say!", request_id="gone")
        server.until(lambda: "gone" in server.script.begun)
    server.until(lambda: "gone" in server.script.cancelled)
    stream.half_close()


def test_a_deadline_is_for_the_whole_stream(server: ScriptedServer, stub: Any) -> None:
    for timeout_s in (0.2, 2.0, 20.0):  # on a busy machine the model may not even begin in the first one
        stream = OpenStream(stub, timeout_s=timeout_s)
        stream.say(script="until-cancelled say!", request_id="late stream")
        with pytest.raises(grpc.RpcError):
            stream.hear()
        assert stream.status[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        stream.half_close()
        if "late stream" in server.script.begun:
            break
    server.until(lambda: "late stream" in server.script.cancelled)


def test_something_that_is_no_request_ends_the_stream_after_the_answers(server: ScriptedServer) -> None:
    """Triton drops it and all that follows without a word: requests must not get lost."""
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    with grpc.insecure_channel(server.url) as channel:
        call: Any = channel.stream_stream(path)(
            iter([infer_request(request_id="a").SerializeToString(), b"\x0a\xff", b"\x0a\x00"])
        )
        assert b"OUT" in next(call)
        with pytest.raises(grpc.RpcError):
            next(call)
        assert (call.code(), call.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")


# Errors as statuses.

STRICT = (("triton_grpc_error", "true"),)


def test_the_first_failure_ends_the_stream_if_the_client_wants_that(server: ScriptedServer, stub: Any) -> None:
    """What was answered before is delivered, what is in flight is cancelled."""
    stream = OpenStream(stub, STRICT)
    stream.say(request_id="a")
    assert ids([stream.hear()]) == ["a"]
    stream.say("many", "until-cancelled end", "strict")
    server.until(lambda: "strict" in server.script.begun)
    stream.say(script="fail:oops", request_id="b")
    with pytest.raises(grpc.RpcError):
        stream.hear()
    assert stream.status == (grpc.StatusCode.INTERNAL, "oops")
    server.until(lambda: "strict" in server.script.cancelled)
    stream.half_close()


def test_refusals_stay_in_the_stream_though_the_client_wants_statuses(stub: Any) -> None:
    stream = OpenStream(stub, STRICT)
    stream.say("nothing", request_id="a")
    stream.say(request_id="b")
    responses = stream.rest()
    assert [bool(response.error_message) for response in responses] == [True, False]
    assert stream.status == OK


@pytest.mark.parametrize("value", ["True", "false", "1", ""])
def test_only_the_word_true_asks_for_statuses(stub: Any, value: str) -> None:
    stream = OpenStream(stub, (("triton_grpc_error", value),))
    stream.say(script="fail:oops")
    (response,) = stream.rest()
    assert response.error_message == "oops"
    assert stream.status == OK


# Bounds.


def test_a_slow_reader_holds_a_decoupled_model_back(server: ScriptedServer) -> None:
    """It answers far more often than the client reads. Bounded are what waits in the reply, on the stream, and in the
    windows of both sides; the model itself is held back."""
    with stub_for(server.url, max_receive_message_length=-1) as stub:
        stream = OpenStream(stub)
        stream.say("many", "flood:100000", "flood", values=[0] * 16_384)
        assert len(values_of(stream.hear().infer_response)) == 16_384
        said: list[int] = []

        def stands_still() -> bool:
            said.append(server.script.said["flood"])
            return len(said) > 40 and said[-1] == said[-40]

        server.until(stands_still)
        assert said[-1] < 2_000
        other = OpenStream(stub)
        other.say(request_id="other")
        assert ids(other.rest()) == ["other"], "no other is held back"
        stream.leave()
        server.until(lambda: "flood" in server.script.cancelled)


def test_a_stream_with_much_in_flight_is_not_read(
    server: ScriptedServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_infer, "MAX_OPEN_REQUESTS", 3)
    stream = OpenStream(stub)
    stream.say(script="wait:full say!", request_id="full 0")
    for number in range(1, 8):
        stream.say(request_id=f"full {number}")
    server.until(lambda: "full 2" in server.script.begun)
    other = OpenStream(stub)
    other.say(request_id="meanwhile")
    other.rest()
    assert "full 3" not in server.script.begun
    server.script.open("full")
    assert ids(stream.rest()) == [f"full {number}" for number in range(8)]


def test_a_stream_with_many_unsent_bytes_is_not_read(
    server: ScriptedServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_infer, "MAX_UNSENT_BYTES", 4)
    stream = OpenStream(stub)
    stream.say(script="wait:unsent say!", request_id="unsent 0")
    stream.say(request_id="unsent 1")
    server.until(lambda: server.script.said.get("unsent 1"))
    server.until(lambda: server.server.budget_statistics().requests == 1)
    stream.say(request_id="unsent 2")
    stream.say(request_id="unsent 3")
    other = OpenStream(stub)
    other.say(request_id="meanwhile")
    other.rest()
    assert "unsent 3" not in server.script.begun
    server.script.open("unsent")
    assert ids(stream.rest()) == [f"unsent {number}" for number in range(4)]


def test_answers_that_nobody_reads_are_bounded_for_all_streams_together(
    server: ScriptedServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two is given up when both hold more than there may be; the other is only held back."""
    answer_bytes = 65_536
    unread = ClientBytes(ANSWER_WINDOW * answer_bytes * 3 // 2)
    monkeypatch.setattr(server.server, "client_accounts", ClientAccounts(ClientBytes(1 << 30), unread))
    names = ["deaf 0", "deaf 1"]
    streams = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            deaf = stack.enter_context(stub_for(server.url, max_receive_message_length=-1))
            streams[name] = OpenStream(deaf)
            streams[name].say("many", "flood:100000", name, values=[0] * (answer_bytes // 4))
            server.until(lambda: unread.held_bytes >= ANSWER_WINDOW * answer_bytes)
        server.until(lambda: unread.given_up == 1)
        server.until(lambda: set(names) & set(server.script.cancelled))
        (given_up,) = set(names) & set(server.script.cancelled)
        (held_back,) = set(names) - {given_up}
        other = OpenStream(stub)
        other.say(request_id="other")
        assert ids(other.rest()) == ["other"]
        assert len(values_of(streams[held_back].hear().infer_response)) == answer_bytes // 4
        with pytest.raises(grpc.RpcError) as caught:
            streams[given_up].rest()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        streams[held_back].leave()
        server.until(lambda: held_back in server.script.cancelled)
    server.until(lambda: unread.held_bytes == 0)


def test_answers_that_wait_for_their_turn_count_until_they_are_sent(
    server: ScriptedServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = ClientBytes(1 << 30)
    monkeypatch.setattr(server.server, "client_accounts", ClientAccounts(ClientBytes(1 << 30), unread))
    stream = OpenStream(stub)
    stream.say(script="wait:turn say!", request_id="turn 0")
    stream.say(request_id="turn 1", values=[0] * 16_384)
    server.until(lambda: unread.held_bytes > 65_536)
    server.script.open("turn")
    assert ids(stream.rest()) == ["turn 0", "turn 1"]
    server.until(lambda: unread.held_bytes == 0)


def test_an_answer_that_waits_for_its_turn_does_not_keep_the_request_in_memory(
    server: ScriptedServer, stream: OpenStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server-wide budget does not count it any more."""
    kept: list[int] = []
    answered = stream_infer.InferStream.answered

    def look(owner: Any, request: Any, nbytes: int = 0) -> None:
        kept.append(len(request.decoded.request.inputs))
        answered(owner, request, nbytes)

    monkeypatch.setattr(stream_infer.InferStream, "answered", look)
    stream.say(script="wait:turn say!", request_id="first")
    stream.say(request_id="behind")
    server.until(lambda: kept)
    server.script.open("turn")
    assert ids(stream.rest()) == ["first", "behind"]
    assert kept == [0, 0]


def test_requests_that_are_over_need_no_garbage_collector(server: ScriptedServer, stub: Any) -> None:
    def left_over() -> list[Any]:
        return [each for each in gc.get_objects() if type(each) is stream_infer._Request]

    server.until(lambda: not watch(server.service).calls)
    gc.collect()
    gc.disable()
    try:
        stream = OpenStream(stub)
        for _ in range(10):
            stream.say()
            stream.say(script="fail:oops")
            stream.say("nothing")
            stream.say("many", "say say!")
            stream.say("many", "fail:oops")
        assert len(stream.rest()) == 60
        server.until(lambda: not watch(server.service).calls)
        server.until(lambda: not left_over())  # a model's thread may still be putting the last one down
    finally:
        gc.enable()


def test_requests_wait_while_the_budget_is_used_up(tmp_path: Path) -> None:
    with scripted_server(tmp_path, max_inflight_requests=2) as server, stub_for(server.url) as stub:
        stream = OpenStream(stub)
        for number in range(20):
            stream.say(request_id=str(number))
        assert ids(stream.rest()) == [str(number) for number in range(20)]
        assert stream.status == OK


def test_a_front_end_that_drains_refuses_new_requests_on_open_streams(tmp_path: Path) -> None:
    with scripted_server(tmp_path) as server, stub_for(server.url) as stub:
        stream = OpenStream(stub)
        stream.say(script="wait:drain say!", request_id="a")
        server.until(lambda: "a" in server.script.begun)
        server.call(server.application.stop_accepting)
        stream.say(request_id="b")
        server.script.open("drain")
        first, second = stream.rest()
        assert (first.error_message, values_of(first.infer_response)) == ("", [1])
        assert (second.error_message, second.infer_response.id) == (DRAINING, "b")
        assert stream.status == OK


def test_a_defect_while_answering_costs_its_stream_only(
    stub: Any, stream: OpenStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens inside the model's scheduler, which lives on."""
    with monkeypatch.context() as patched:
        patched.setattr(stream_infer, "write_stream_response", lambda *_arguments: 1 / 0)
        stream.say()
        with pytest.raises(grpc.RpcError):
            stream.rest()
        assert stream.status == (grpc.StatusCode.UNKNOWN, "Internal Server Error")
    other = OpenStream(stub)
    other.say(request_id="next")
    assert ids(other.rest()) == ["next"]
