"""Spans of a whole server, as a collector gets them (docs/reference/traces.md#opentelemetry): those that Triton 2.51
sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from otlp_receiver import ReceivedSpan, Receiver, receiving
from traced_world import World, inputs, traced_world

from trireme.engine.tracing import TraceConfig, TraceLevel, TraceMode
from trireme.engine.tracing.settings import ExportOptions

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-00"
NEVER_MS = 3_600_000


@pytest.fixture
def open_world(tmp_path: Path, serve: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def open_with(rate: int = 1, level: TraceLevel = TraceLevel.TIMESTAMPS) -> Iterator[tuple[World, Receiver]]:
        with receiving() as receiver:
            export = ExportOptions(receiver.url, schedule_delay_ms=NEVER_MS)
            config = TraceConfig(TraceMode.OPENTELEMETRY, level, rate, export=export)
            with traced_world(tmp_path, serve, config) as world:
                yield world, receiver

    return open_with


def traces(spans: list[ReceivedSpan]) -> list[list[ReceivedSpan]]:
    """The spans of each trace, those above first, in the order of their ends."""
    by_trace: dict[str, list[ReceivedSpan]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).insert(0, span)
    return list(by_trace.values())


def names(span: ReceivedSpan) -> list[str]:
    return [name for name, _ in span.events]


def test_a_request_over_http_and_one_over_grpc(open_world: Callable[..., Any]) -> None:
    """What waits at the end of the server is exported before it ends."""
    with open_world() as (world, receiver):
        with grpcclient.InferenceServerClient(world.live.grpc_url) as client:
            assert world.infer("plain", "r1")[0] == 200
            client.infer("plain", inputs(), request_id="g1")
        assert receiver.attempts == 0
    over_http, over_grpc = traces(receiver.spans())
    for root, model, compute in (over_http, over_grpc):
        assert (root.name, model.name, compute.name) == ("InferRequest", "plain", "compute")
        assert (root.parent_id, model.parent_id, compute.parent_id) == ("", root.span_id, model.span_id)
        assert names(model) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
        assert names(compute) == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
        for inner, outer in ((model, root), (compute, model)):
            assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert names(over_http[0]) == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert names(over_grpc[0])[:2] == ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
    assert str(over_http[1].attributes.pop("trireme.batch.instance")).startswith("plain_0_")
    assert over_http[1].attributes == {
        "triton.model_name": "plain",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r1",
        "trireme.batch.reason": "unbatched",
        "trireme.batch.rows": 1,
        "trireme.batch.requests": 1,
    }


def test_a_refusal_is_an_attribute_of_the_request(open_world: Callable[..., Any]) -> None:
    with open_world() as (world, receiver):
        assert world.infer("plain", data=[1])[0] == 500
    ((root,),) = traces(receiver.spans())
    assert (root.name, root.attributes) == ("InferRequest", {"trireme.refused": "invalid"})


def test_an_ensembles_steps_hang_under_its_span(open_world: Callable[..., Any]) -> None:
    with open_world() as (world, receiver):
        assert world.infer("chain")[0] == 200
    (spans,) = traces(receiver.spans())
    (chain,) = [span for span in spans if span.name == "chain"]
    steps = [span for span in spans if span.name == "plain"]
    assert [step.parent_id for step in steps] == [chain.span_id] * 2
    assert sorted(step.attributes["triton.trace_id"] for step in steps) == [2, 3]
    assert {step.attributes["triton.trace_parent_id"] for step in steps} == {1}
    computes = [span for span in spans if span.name == "compute"]
    assert {span.parent_id for span in computes} == {step.span_id for step in steps}


@pytest.mark.parametrize("rate", [0, 1000])
def test_a_callers_context_is_carried_on_whatever_the_rate(open_world: Callable[..., Any], rate: int) -> None:
    headers = {"traceparent": PARENT, "tracestate": "a=b"}
    with open_world(rate) as (world, receiver), grpcclient.InferenceServerClient(world.live.grpc_url) as client:
        assert world.infer("plain", "untraced")[0] == 200
        assert world.infer("plain", "bad", traceparent="xx")[0] == 200
        assert world.infer("plain", "h", **headers)[0] == 200
        assert world.post("/v2/models/plain/generate", {"IN": [1], "id": "e"}, headers)[0] == 200
        client.infer("plain", inputs(), request_id="g", headers=headers)
        client.start_stream(lambda result, error: None, headers=headers)
        client.async_stream_infer("plain", inputs(), request_id="s")
        client.stop_stream()
    spans = receiver.spans()
    assert {(span.trace_id, span.state) for span in spans} == {(TRACE, "a=b")}
    assert [span.parent_id for span in spans if span.name == "InferRequest"] == [SPAN] * 4
    ids = [span.attributes["triton.request_id"] for span in spans if span.name == "plain"]
    assert ids == ["h", "e", "g", "s"]


def test_when_off_no_context_is_carried_on(open_world: Callable[..., Any]) -> None:
    with open_world(level=TraceLevel.OFF) as (world, receiver):
        assert world.infer("plain", traceparent=PARENT)[0] == 200
        world.set(trace_level=["TIMESTAMPS"])
        assert world.infer("plain", "on", traceparent=PARENT)[0] == 200
    assert [span.attributes.get("triton.request_id") for span in receiver.spans()] == [None, "on", None]


def test_tensors_have_no_place_in_spans_and_that_is_said(
    open_world: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with open_world() as (world, receiver):
        world.set(trace_level=["TENSORS"])
        assert world.infer("plain", traceparent=PARENT)[0] == 200
    assert receiver.attempts == 0
    assert "Tensor level tracing is not supported by the mode: opentelemetry" in caplog.messages


def test_a_collector_that_is_not_there_is_felt_by_no_client(open_world: Callable[..., Any]) -> None:
    with open_world() as (world, receiver):
        receiver.answers = [400] * 10
        assert [world.infer("plain")[0] for _ in range(3)] == [200] * 3
    assert receiver.attempts == 1
