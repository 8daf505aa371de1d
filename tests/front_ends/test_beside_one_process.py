"""What a client can tell of a server with front ends, beside one that does all in one process: nothing."""

from __future__ import annotations

import json
import os
import queue
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from beside_one_process import KEY, Caller, Pair, callers, counted, counters, inflight, pair, pids, wait_until
from serve_process import PATIENCE_S, ServeProcess
from tritonclient.utils import InferenceServerException

VALUES = np.arange(4, dtype=np.float32).reshape(1, 4)
TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [0.0, 1.0, 2.0, 3.0]}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("both")) as servers:
        yield servers


@contextmanager
def clients(server: ServeProcess) -> Iterator[tuple[Any, Any]]:
    """Over HTTP, and over gRPC."""
    channel = f"127.0.0.1:{server.grpc_port}"
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    with (
        httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}", network_timeout=PATIENCE_S) as http,
        grpcclient.InferenceServerClient(channel, channel_args=options) as grpc,
    ):
        yield http, grpc


def given(module: Any, array: np.ndarray = VALUES, datatype: str = "FP32", name: str = "INPUT0") -> list[Any]:
    tensor = module.InferInput(name, list(array.shape), datatype)
    return [tensor.set_data_from_numpy(array)]


def refusal(way: Callable[[], Any]) -> tuple[str | None, str]:
    """Status and text of what a client is told."""
    with pytest.raises(InferenceServerException) as error:
        way()
    return error.value.status(), error.value.message()


def on_a_stream(grpc: Any, model: str, inputs: list[Any], **options: Any) -> Any:
    answers: queue.Queue[Any] = queue.Queue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    grpc.async_stream_infer(model, inputs, **options)
    result, error = answers.get(timeout=PATIENCE_S)
    grpc.stop_stream()
    if error is not None:
        raise error
    return result


def test_statistics_and_counters(both: Pair) -> None:
    def asked(server: ServeProcess) -> Any:
        refusals: list[Any] = []

        def ask() -> None:
            with clients(server) as (http, grpc):
                for _ in range(3):
                    http.infer("identity", given(httpclient))
                    grpc.infer("identity", given(grpcclient, VALUES.repeat(4, 0)))
                    on_a_stream(grpc, "identity", given(grpcclient))
                large = np.zeros((1, 6 << 20), np.float32)
                for model, arrays in (("none", VALUES), ("identity", VALUES.repeat(9, 0)), ("identity", large)):
                    refusals.append(refusal(lambda m=model, a=arrays: http.infer(m, given(httpclient, a))))
                    refusals.append(refusal(lambda m=model, a=arrays: grpc.infer(m, given(grpcclient, a))))
                    refusals.append(refusal(lambda m=model, a=arrays: on_a_stream(grpc, m, given(grpcclient, a))))
            path = "/v2/models/identity/infer"
            refusals.append(server.ask("POST", path, b"{"))
            refusals.append(server.ask("POST", path, {"inputs": [TENSOR | {"shape": [1, 5]}]}))
            refusals.append(server.ask("POST", path, {"inputs": []}))
            refusals.append(server.ask("POST", "/v2/models/identity/versions/7/infer", {"inputs": [TENSOR]}))
            refusals.append(server.ask("POST", "/v2/models/identity/generate", {"INPUT0": "x"}))

        grown = counted(server, ask)
        _, statistics = server.ask("GET", "/v2/models/identity/stats")
        return refusals, grown, _without_times(statistics)

    _, grown, statistics = both.same(asked)
    assert any(name.startswith("trireme_refused_total") for name in grown)
    assert statistics["model_stats"][0]["inference_count"] == 20


def _without_times(value: Any) -> Any:
    """Statistics without what differs from run to run."""
    if isinstance(value, list):
        return [_without_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_times(each) for key, each in value.items() if key not in ("ns", "last_inference")}


def test_deadlines_and_full_queues(both: Pair) -> None:
    def executes_one(server: ServeProcess) -> bool:
        waiting = [count for name, count in counters(server).items() if "pending" in name and '"gated"' in name]
        return inflight(server)[0] == 1 and sum(waiting) == 0

    def asked(server: ServeProcess) -> Any:
        refusals: list[Any] = []
        path = "/v2/models/gated/infer"

        @contextmanager
        def executing(queued: Caller | None = None) -> Iterator[None]:
            """One is executed meanwhile, and answered afterwards; then the one that is queued, which needs the gate."""
            with closing(Caller(server)) as executed:
                executed.begin("POST", path, {"inputs": [TENSOR]})
                wait_until(lambda: executes_one(server))
                yield
                both.gate.touch()
                assert executed.answer()[0] == 200
                assert queued is None or queued.answer()[0] == 200
            both.gate.unlink()

        def ask(infer: Callable[..., tuple[Any, str]]) -> None:
            with closing(Caller(server)) as queued, executing(queued):
                queued.begin("POST", path, {"inputs": [TENSOR]})
                wait_until(lambda: inflight(server)[0] == 2)
                refusals.append(infer())  # no more than one may wait
            with ThreadPoolExecutor(1) as thread:
                with executing():
                    late = thread.submit(infer, timeout=1)
                    wait_until(lambda: inflight(server)[0] == 2 or late.done())
                refusals.append(late.result(PATIENCE_S))

        def by_http(**parameters: int) -> tuple[Any, str]:
            return server.ask("POST", path, {"inputs": [TENSOR], "parameters": parameters})

        def ask_all() -> None:
            with clients(server) as (_, grpc):
                inputs = given(grpcclient)
                ask(by_http)
                ask(lambda **parameters: refusal(lambda: grpc.infer("gated", inputs, **parameters)))
                with executing():
                    refusals.append(refusal(lambda: grpc.infer("gated", inputs, client_timeout=0.1))[0])
                    wait_until(lambda: executes_one(server))  # the engine has given it up, too

        return counted(server, ask_all), refusals

    grown, refusals = both.same(asked)
    assert ["queue" in str(each) for each in refusals[:4:2]] == [True, True]
    assert ["timeout" in str(each) for each in refusals[1:4:2]] == [True, True]
    assert refusals[4] == "StatusCode.DEADLINE_EXCEEDED"
    assert sum(count for name, count in grown.items() if name.startswith("trireme_refused_total")) >= 4


def test_a_sequence_over_many_connections(both: Pair) -> None:
    def asked(server: ServeProcess) -> Any:
        sums: dict[Any, list[int]] = {7: [], "8": []}
        value = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1]}
        with callers(server) as connections:
            for step in range(8):
                for sequence, model in ((7, "running_sum"), ("8", "simple_string_dyna_sequence")):
                    options = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 7}
                    body = {"inputs": [value | {"data": [step + 1]}], "parameters": options}
                    caller = connections[step % len(connections)]
                    status, answer = caller.ask("POST", f"/v2/models/{model}/infer", body)
                    assert status == 200, answer
                    sums[sequence].append(answer["outputs"][0]["data"][0])
            body = {"inputs": [value | {"data": [1]}], "parameters": {"sequence_id": 9}}
            told = [caller.ask("POST", "/v2/models/running_sum/infer", body) for caller in connections[:1]]
        return sums, told

    sums, _ = both.same(asked)
    assert sums[7] == [1, 3, 6, 10, 15, 21, 28, 36]


def test_restricted_calls(both: Pair) -> None:
    def asked(server: ServeProcess) -> Any:
        said: list[Any] = []
        with callers(server) as (caller, *_), clients(server) as (_, grpc):
            for key in (None, "wrong", KEY):
                headers = {} if key is None else {"admin-key": key}
                said.append(caller.ask("GET", "/v2/logging", **headers))
                headers = {} if key is None else {"triton-grpc-protocol-admin-key": key}
                try:
                    said.append(grpc.get_log_settings(headers=headers, as_json=True))
                except InferenceServerException as error:
                    said.append((error.status(), error.message()))
        return said

    said = both.same(asked)
    assert [each[0] for each in said[:4:2]] == [403, 403]
    assert said[4][0] == 200


def test_traces(both: Pair) -> None:
    def asked(server: ServeProcess) -> Any:
        with clients(server) as (http, grpc):
            http.update_trace_settings(
                "identity", {"trace_level": ["TIMESTAMPS"], "trace_rate": "3", "trace_count": "4", "log_frequency": "4"}
            )
            for number in range(15):
                client, module = ((http, httpclient), (grpc, grpcclient))[number % 2]
                client.infer("identity", given(module), request_id=str(number))
            settings = http.get_trace_settings("identity")
            http.update_trace_settings("identity", {"trace_level": ["OFF"]})
        wait_until(both.traces[server].exists)
        return {key: value for key, value in settings.items() if key != "trace_file"}, _told(both.traces[server])

    _, told = both.same(asked)
    assert [name for name, _, _ in told if name] == ["2", "5", "8", "11"]


def _told(file: Path) -> list[tuple[str, Any, int]]:
    """The requests' ids, and the names of what is told of each, in the order of their times."""
    records: dict[int, list[Any]] = {}
    for record in json.loads(file.read_text()):
        records.setdefault(record["id"], []).append(record)
    told = []
    for _, those in sorted(records.items()):
        stamps = [stamp for record in those for stamp in record.get("timestamps", ())]
        names = [stamp["name"] for stamp in sorted(stamps, key=lambda each: each["ns"])]
        # A front end has the answer when the engine is done with the request, and not before.
        early = [name for name in names if name not in ("INFER_RESPONSE_COMPLETE", "REQUEST_END")]
        told.append(("".join(record.get("request_id", "") for record in those), early, len(names) - len(early)))
    return told


def test_shared_memory_is_registered_with_one_front_end_and_used_over_another(both: Pair) -> None:
    file = Path(f"/dev/shm/beside-{os.getpid()}")
    file.write_bytes(VALUES.tobytes())
    place = {"shared_memory_region": "r", "shared_memory_byte_size": VALUES.nbytes}
    tensor = {key: value for key, value in TENSOR.items() if key != "data"} | {"parameters": place}
    regions = "/v2/systemsharedmemory"
    try:
        with callers(both.many) as (first, second):
            region = {"key": f"/{file.name}", "offset": 0, "byte_size": VALUES.nbytes}
            assert first.ask("POST", f"{regions}/region/r/register", region)[0] == 200
            for caller in (second, first):
                status, answer = caller.ask("POST", "/v2/models/identity/infer", {"inputs": [tensor]})
                assert status == 200, answer
                assert answer["outputs"][0]["data"] == list(VALUES.flat)
            assert second.ask("POST", f"{regions}/region/r/unregister")[0] == 200
            assert first.ask("GET", f"{regions}/status") == (200, [])
            status, answer = first.ask("POST", "/v2/models/identity/infer", {"inputs": [tensor]})
            assert status >= 400
            assert "'r'" in answer["error"]
    finally:
        file.unlink()


def test_a_client_that_does_not_read_holds_the_model_back(both: Pair) -> None:
    count = 1_000
    body = json.dumps({"COUNT": [count]}).encode()
    head = b"POST /v2/models/flood/generate_stream HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    seen: list[int] = []

    def stands_still() -> bool:
        seen.append(int((both.said.exists() and both.said.read_text()) or 0))
        return seen[-1] > 0 and len(seen) > 20 and seen[-1] == seen[-20]

    with socket.create_connection(("127.0.0.1", both.many.http_port), PATIENCE_S) as client:
        client.sendall(head + body)
        wait_until(stands_still)
        assert seen[-1] < count
        with callers(both.many) as connections:  # no other is held back
            for caller in connections:
                assert caller.ask("POST", "/v2/models/identity/infer", {"inputs": [TENSOR]})[0] == 200
        got = bytearray()
        while not got.endswith(b"0\r\n\r\n"):
            part = client.recv(1 << 20)
            assert part
            got += part
    assert got.count(b"data: ") == count
    wait_until(lambda: inflight(both.many) == (0, 0))


def test_no_front_end_is_told_a_key(both: Pair) -> None:
    members = pids(both.many)
    assert len(members) == 2
    for pid in members:
        for name in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
