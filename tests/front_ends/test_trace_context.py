"""Traces that callers have begun (W3C trace context), over front ends: a collector gets of them what it gets of a
server in one process."""

from __future__ import annotations

import queue
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from beside_one_process import callers
from otlp_receiver import ReceivedSpan, Receiver, receiving
from python_models import CONFIG, IDENTITY, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process

COUNT = 2
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "a=b,c=d"}
IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
INFER = "/v2/models/identity/infer"
NEVER_MS = 3_600_000


def asked(name: str) -> dict[str, Any]:
    return {"id": name, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def given() -> list[Any]:
    tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
    return [tensor]


def ask_all(server: ServeProcess) -> None:
    """Ask in each way, with a context, with one that is none, and without; each process over HTTP."""
    with callers(server) as connections:
        for index, caller in enumerate(connections * (COUNT // len(connections))):
            assert caller.ask("POST", INFER, asked(f"http {index}"), **CONTEXT)[0] == 200
            assert caller.ask("POST", INFER, asked("bad"), traceparent="xx")[0] == 200
            assert caller.ask("POST", INFER, asked("untraced"))[0] == 200
            assert caller.ask("POST", INFER, {"id": "refused", "inputs": []}, **CONTEXT)[0] == 400
            body = {"INPUT0": [1.0, 2.0], "id": "generated"}
            assert caller.ask("POST", "/v2/models/identity/generate", body, **CONTEXT)[0] == 200
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
        grpc.infer("identity", given(), request_id="grpc", headers=CONTEXT)
        answers: queue.Queue[Any] = queue.Queue()
        grpc.start_stream(lambda result, error: answers.put(error), headers=CONTEXT)
        grpc.async_stream_infer("identity", given(), request_id="stream")
        assert answers.get(timeout=PATIENCE_S) is None
        grpc.stop_stream()


def spans_of(repository: Path, front_ends: int, receiver: Receiver, rate: int) -> list[ReceivedSpan]:
    """What a server has sent to the collector when it ends."""
    flags = (
        *("--front-ends", str(front_ends), "--trace-config", "mode=opentelemetry"),
        *("--trace-config", f"rate={rate}", "--trace-config", "level=TIMESTAMPS"),
        *("--trace-config", f"opentelemetry,url={receiver.url}"),
        *("--trace-config", f"opentelemetry,bsp_schedule_delay={NEVER_MS}"),
    )
    with serve_process(repository, *flags) as server:
        ask_all(server)
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0
    spans: list[ReceivedSpan] = []
    while not receiver.exports.empty():
        spans += receiver.spans()
    return spans


def told(spans: Sequence[ReceivedSpan]) -> Counter[Any]:
    """What is told of each span, but for when it was and what differs from run to run."""
    names = {span.span_id: span.name for span in spans}
    found: Counter[Any] = Counter()
    for span in spans:
        carried = span.trace_id == TRACE
        parent = span.parent_id if span.parent_id in ("", SPAN) else names[span.parent_id]
        attributes = tuple((key, value) for key, value in sorted(span.attributes.items()) if "trace_id" not in key)
        events = tuple(sorted(name for name, _ in span.events))
        found[span.name, carried, parent, span.state, attributes, events] += 1
    return found


@pytest.mark.parametrize("rate", [1, 1_000])
def test_a_callers_context_is_carried_on(tmp_path: Path, rate: int) -> None:
    write_model(tmp_path, "identity", IDENTITY, CONFIG + IN_PROCESS)
    with ExitStack() as stack:
        one, many = (spans_of(tmp_path, count, stack.enter_context(receiving()), rate) for count in (0, COUNT))
    assert told(many) == told(one)
    mine = [span for span in many if span.trace_id == TRACE]
    roots = [span for span in mine if span.name == "InferRequest"]
    assert {span.parent_id for span in roots} == {SPAN}
    assert {span.state for span in mine} == {"a=b,c=d"}
    ids = sorted(span.attributes["triton.request_id"] for span in mine if span.name == "identity")
    assert [name for name in ids if name] == sorted(["http 0", "http 1", *["generated"] * COUNT, "grpc", "stream"])
    others = {span.attributes["triton.request_id"] for span in many if span.name == "identity"} - set(ids)
    assert others == ({"bad", "untraced"} if rate == 1 else set())
    for span in mine:
        assert span.start_ns <= span.end_ns
