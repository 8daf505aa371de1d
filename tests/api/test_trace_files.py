"""Trace files of a whole server: what each kind of request leaves in them (docs/reference/traces.md#trace-files).

The orders are those of the files that Triton 2.51 wrote for the same requests. Where Triton's own order depends on
which of its threads is faster, this server has one of the possible orders.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from traced_world import World, inputs, traced_world
from traces import events, times
from tritonclient.utils import InferenceServerException

from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import Exchange
from trireme.engine.tracing import TraceConfig, TraceLevel

CORE = ["model", "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"]
RECEIVED = ["HTTP_RECV_START", "HTTP_RECV_END"]
OVER_HTTP = [
    *RECEIVED,
    *CORE,
    "COMPUTE_END",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
    "HTTP_SEND_START",
    "HTTP_SEND_END",
]
READ = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
SENT = ["GRPC_SEND_START", "GRPC_SEND_END"]
OVER_GRPC = [*CORE, "COMPUTE_END", "REQUEST_END", *READ, "INFER_RESPONSE_COMPLETE", *SENT]


@pytest.fixture
def open_world(tmp_path: Path, serve: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def open_with(options: dict[str, Any] | None = None, **fields: Any) -> Iterator[World]:
        folder = tmp_path / "traces"
        folder.mkdir()
        settings = {"level": TraceLevel.TIMESTAMPS, "rate": 1, "file": str(folder / "t.json"), **fields}
        with traced_world(tmp_path, serve, TraceConfig(**settings), **(options or {})) as world:
            world.folder = folder
            yield world

    return open_with


def wait_for_begin(world: World, request_id: str) -> None:
    pause = threading.Event()
    for _ in range(12_000):
        if request_id in world.script.begun:
            return
        pause.wait(0.005)
    raise AssertionError("waited in vain")


def test_requests_over_http(open_world: Callable[..., Any]) -> None:
    with open_world() as world:
        assert world.infer("plain", "r1")[0] == 200
        assert world.infer("plain")[0] == 200
        assert world.infer("plain", script="fail:bad")[0] == 500
    file = world.file()
    assert [element for element in file if "model_name" in element] == [
        {"id": 1, "model_name": "plain", "model_version": 1, "request_id": "r1"},
        {"id": 2, "model_name": "plain", "model_version": 1},
        {"id": 3, "model_name": "plain", "model_version": 1},
    ]
    for trace_id in (1, 2, 3):
        assert events(file, trace_id) == OVER_HTTP
        ns = times(file, trace_id)
        in_order = [ns[name] for name in OVER_HTTP if name != "model"]
        assert in_order == sorted(in_order)


def test_requests_without_a_task_leave_the_same(
    open_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a connection that stays; what is refused is not more than received here, too."""
    paths: list[bytes] = []
    call = HttpApplication.__call__

    async def seen(self: HttpApplication, exchange: Exchange) -> None:
        paths.append(exchange.path)
        await call(self, exchange)

    monkeypatch.setattr(HttpApplication, "__call__", seen)
    with open_world() as world:
        connection = http.client.HTTPConnection(world.live.url)

        def ask(method: str, path: str, body: str = "") -> int:
            connection.putrequest(method, path, skip_accept_encoding=True)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body.encode())
            response = connection.getresponse()
            response.read()
            return response.status

        assert ask("GET", "/v2/health/live") == 200
        paths.clear()
        tensor = {"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}
        bodies = [{"id": "r1", "inputs": [tensor]}, {"inputs": [tensor], "parameters": {"script": "fail:bad"}}]
        assert [ask("POST", "/v2/models/plain/infer", json.dumps(body)) for body in bodies] == [200, 500]
        assert ask("POST", "/v2/models/plain/infer", "{") == 500
        assert ask("POST", "/v2/models/nothing/infer", "{}") == 404
        connection.close()
    assert not paths
    file = world.file()
    assert [events(file, trace_id) for trace_id in (1, 2, 3)] == [OVER_HTTP, OVER_HTTP, RECEIVED]
    assert len({element["id"] for element in file}) == 3
    ns = times(file, 1)
    in_order = [ns[name] for name in OVER_HTTP if name != "model"]
    assert in_order == sorted(in_order)


def test_requests_over_grpc(open_world: Callable[..., Any]) -> None:
    with open_world() as world, grpcclient.InferenceServerClient(world.live.grpc_url) as client:
        client.infer("plain", inputs(), request_id="g1")
        with pytest.raises(InferenceServerException, match="bad"):
            client.infer("plain", inputs(), parameters={"script": "fail:bad"})
    file = world.file()
    assert events(file, 1) == events(file, 2) == OVER_GRPC
    ns = times(file, 1)
    assert ns["GRPC_WAITREAD_START"] <= ns["GRPC_WAITREAD_END"] <= ns["QUEUE_START"] <= ns["GRPC_SEND_START"]


def test_streams_send_often_and_respond_once(open_world: Callable[..., Any]) -> None:
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    with open_world() as world, grpcclient.InferenceServerClient(world.live.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer("plain", inputs(), request_id="s1")
        assert answers.get(timeout=60) is None
        client.async_stream_infer("many", inputs(), request_id="s2", parameters={"script": "say say end"})
        assert [answers.get(timeout=60) for _ in range(2)] == [None, None]
        client.stop_stream()
    file = world.file()
    assert events(file, 1) == OVER_GRPC
    assert events(file, 2) == [*OVER_GRPC, *SENT]


def test_generate_notes_responses_and_not_when_they_were_sent(open_world: Callable[..., Any]) -> None:
    """One more response is complete when the model says that there is none."""
    with open_world() as world:
        assert world.post("/v2/models/plain/generate", {"IN": [1, 2]})[0] == 200
        assert world.post("/v2/models/many/generate_stream", {"IN": [1], "script": "say say end"})[0] == 200
        assert world.post("/v2/models/plain/generate", {"OUT": [1, 2]})[0] == 400
    file = world.file()
    response = ["INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
    compute = [*CORE[3:], "COMPUTE_END"]
    assert events(file, 1) == [*RECEIVED, *CORE, "COMPUTE_END", *response, "REQUEST_END"]
    assert events(file, 2) == [*RECEIVED, *CORE[:3], *response * 2, *compute, response[0], "REQUEST_END"]
    assert times(file, 2)["HTTP_SEND_END"] == 0
    assert events(file, 3) == RECEIVED


def test_an_ensembles_steps_are_traces_of_their_own(open_world: Callable[..., Any]) -> None:
    with open_world() as world:
        assert world.infer("chain", "e1")[0] == 200
        assert world.infer("chain_of_chains")[0] == 200
    file = world.file()
    ids = [element["id"] for element in file]
    assert sorted(set(ids), key=ids.index) == [3, 2, 1, 8, 7, 6, 5, 4]
    assert [element.get("parent_id") for element in file if "model_name" in element] == [1, 1, None, 6, 6, 4, 4, None]
    assert {element["request_id"] for element in file if element["id"] <= 3 and "model_name" in element} == {"e1"}
    of_the_ensemble = [name for name in OVER_HTTP if not name.startswith("COMPUTE")]
    assert events(file, 1) == events(file, 4) == of_the_ensemble
    assert events(file, 2) == events(file, 3) == [*CORE, "COMPUTE_END", "REQUEST_END"]
    assert times(file, 2)["REQUEST_END"] <= times(file, 3)["REQUEST_START"]


def test_an_ensemble_that_fails_leaves_the_traces_of_the_steps_that_ran(open_world: Callable[..., Any]) -> None:
    with open_world() as world:
        assert world.infer("chain", script="fail:bad")[0] == 500
    file = world.file()
    assert events(file, 2) == [*CORE, "COMPUTE_END", "REQUEST_END"]
    assert events(file, 1)[-3:] == ["REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END"]


def test_what_the_cache_answers_was_not_computed(open_world: Callable[..., Any]) -> None:
    with open_world({"cache_config": {"local": {"size": "1000000"}}}) as world:
        assert [world.infer("cached")[0] for _ in range(2)] == [200, 200]
    assert events(world.file(), 1) == OVER_HTTP
    assert events(world.file(), 2) == [name for name in OVER_HTTP if not name.startswith("COMPUTE")]


def test_a_call_that_has_to_wait_for_room_is_one_trace(open_world: Callable[..., Any]) -> None:
    """It is looked at twice: at once, and by a task that waits."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()

    def heard(result: object, error: object) -> None:
        answers.put(error)

    with (
        open_world({"max_inflight_requests": 1}, rate=2) as world,
        grpcclient.InferenceServerClient(world.live.grpc_url) as client,
    ):
        client.async_infer("plain", inputs(), heard, request_id="a", parameters={"script": "wait:go say!"})
        wait_for_begin(world, "a")
        for request_id in "bcd":
            client.async_infer("queued", inputs(shape=(1, 2)), heard, request_id=request_id)
        client.get_server_metadata()  # by then the others have come
        world.script.open("go")
        assert [answers.get(timeout=60) for _ in range(4)] == [None] * 4
    file = world.file()
    assert [element["id"] for element in file if "model_name" in element] == sorted({e["id"] for e in file})
    assert len({element["id"] for element in file}) == 2
    for trace_id in {element["id"] for element in file}:
        assert events(file, trace_id) == OVER_GRPC


def test_what_is_refused_is_not_more_than_received(open_world: Callable[..., Any]) -> None:
    """A request to a model that there is not has no trace at all."""
    with open_world() as world, grpcclient.InferenceServerClient(world.live.grpc_url) as client:
        assert world.infer("nothing")[0] == 404
        assert world.post("/v2/models/plain/infer", b"{")[0] == 500
        assert world.infer("plain", data=[1])[0] == 500
        with pytest.raises(InferenceServerException, match="expected 1 inputs but got 2"):
            client.infer("plain", [*inputs(), *inputs(name="X")])
    file = world.file()
    assert [events(file, trace_id) for trace_id in (1, 2, 3)] == [RECEIVED, RECEIVED, READ]
    refused = [element for element in file if "refused" in element]
    assert refused == [{"id": trace_id, "refused": "invalid"} for trace_id in (1, 2, 3)]


def ask_row(world: World, model: str, request_id: str = "", script: str = "say!") -> int:
    """The status of a request with one row."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    body = {"id": request_id, "inputs": [tensor], "parameters": {"script": script}}
    return world.post(f"/v2/models/{model}/infer", body)[0]


def test_the_batch_and_why_it_was_closed(open_world: Callable[..., Any]) -> None:
    """Of each step of an ensemble, and of a request that failed when it was executed."""
    with open_world() as world:
        assert ask_row(world, "queued") == 200
        assert world.infer("chain")[0] == 200
        assert world.infer("plain", script="fail:bad")[0] == 500
    batches = [(element["id"], element["batch"]) for element in world.file() if "batch" in element]
    assert batches[0][1] == {"reason": "full", "rows": 1, "requests": 1, "instance": "queued_0_0"}
    assert [batch["reason"] for _, batch in batches[1:]] == ["unbatched"] * 3
    assert all(batch["instance"].startswith("plain_0_") for _, batch in batches[1:])
    assert len({trace_id for trace_id, _ in batches}) == 4
    assert not any("refused" in element for element in world.file())


def test_why_a_queue_rejected(open_world: Callable[..., Any]) -> None:
    with open_world() as world, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask_row, world, "limited", "first", "wait:gate say!")
        wait_for_begin(world, "first")
        assert ask_row(world, "limited", "second") == 503, "its time in the queue was over"
        world.script.open("gate")
        assert first.result() == 200
    file = world.file()
    (rejected,) = {element["id"] for element in file if element.get("request_id") == "second"}
    assert [element for element in file if "refused" in element] == [{"id": rejected, "refused": "queue_timeout"}]
    assert [element["id"] for element in file if "batch" in element] == [3 - rejected]


def test_why_a_full_queue_refused(open_world: Callable[..., Any]) -> None:
    """Of three at once that find the instance busy, one waits; the others are refused, some before they are jobs."""
    with open_world() as world, ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask_row, world, "limited", "first", "wait:gate say!")
        wait_for_begin(world, "first")
        others = [pool.submit(ask_row, world, "limited", f"other {at}") for at in range(3)]
        assert {each.result() for each in others} == {503}
        world.script.open("gate")
        assert first.result() == 200
    reasons = [element["refused"] for element in world.file() if "refused" in element]
    assert set(reasons) <= {"queue_full", "queue_timeout"}
    assert len(reasons) == 3


def test_what_a_model_reports_itself_stands_where_it_happened(open_world: Callable[..., Any]) -> None:
    with open_world() as world:
        assert world.infer("plain", script="activity:CUT_START activity:CUT_END say!")[0] == 200
    names = events(world.file(), 1)
    assert names[4:8] == ["QUEUE_START", "CUT_START", "CUT_END", "COMPUTE_START"]


def test_tensors(open_world: Callable[..., Any]) -> None:
    with open_world(level=TraceLevel.TENSORS) as world:
        assert world.infer("plain")[0] == 200
    tensor = {"name": "IN", "data": "1,2", "shape": "2", "dtype": "FP32"}
    assert world.file() == [
        {"id": 1, "model_name": "plain", "model_version": 1},
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor},
        {"id": 1, "activity": "TENSOR_BACKEND_INPUT", "tensor": tensor},
        {"id": 1, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": {**tensor, "name": "OUT"}},
    ]


def test_files_follow_settings_while_the_server_runs(open_world: Callable[..., Any]) -> None:
    """As the real server did: t.json of the first setting, an indexed file when a count is used up or a log frequency
    reached, one more for the rest."""
    with open_world(level=TraceLevel.OFF) as world:
        world.infer("plain", "untraced")
        for request_id, settings in {
            "a": {"trace_level": ["TIMESTAMPS"]},
            "b": {},
            "c": {"trace_count": "2"},
            "d": {},
            "not any more": {},
            "e": {"trace_count": "-1", "log_frequency": "2"},
            "f": {},
            "g": {},
        }.items():
            if settings:
                world.set(**settings)
            world.infer("plain", request_id)
    names = sorted(path.name for path in world.folder.iterdir())
    assert names == ["t.json", "t.json.0", "t.json.1", "t.json.2"]
    ids = [[e["request_id"] for e in world.file(name) if "model_name" in e] for name in names]
    assert ids == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]
    for name in names:
        text = (world.folder / name).read_bytes()
        assert text.startswith(b'[{"id":')
        assert text.endswith(b"]")
        assert b"\n" not in text


def test_without_a_directory_requests_are_served_all_the_same(
    open_world: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nowhere" / "t"
    with open_world(file=str(path), log_frequency=1) as world:
        assert [world.infer("plain")[0] for _ in range(5)] == [200] * 5
    complaints = [record.getMessage() for record in caplog.records if "traces" in record.getMessage()]
    assert complaints == [f"cannot write traces to {path}.0: No such file or directory"]


def test_a_client_that_leaves_ends_its_trace(open_world: Callable[..., Any]) -> None:
    """Nothing is noted of an answer that was not sent; the trace is complete when the model has let go of it."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    with open_world() as world, grpcclient.InferenceServerClient(world.live.grpc_url) as client:
        script = {"script": "until-cancelled say!"}
        call: Any = client.async_infer(
            "plain", inputs(), lambda result, error: answers.put(error), request_id="leaver", parameters=script
        )
        wait_for_begin(world, "leaver")
        call.cancel()
        assert "cancelled" in str(answers.get(timeout=60)).lower()
    (trace,) = [events(world.file(), 1)]
    assert trace == [*CORE, "COMPUTE_END", "REQUEST_END", *READ, "INFER_RESPONSE_COMPLETE"]
