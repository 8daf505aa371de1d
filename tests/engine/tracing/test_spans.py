"""Spans of traces (docs/reference/traces.md#opentelemetry)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan
from traces import Collected

from trireme.engine.clock import SystemClock
from trireme.engine.tracing import Activity, Trace, TraceConfig, TraceLevel, TraceMode, Tracer
from trireme.engine.tracing.record import GenerationNote, Identities, SpanContext
from trireme.engine.tracing.spans import spans_of


def trace_of(context: SpanContext | None = None) -> Trace:
    config = TraceConfig(TraceMode.OPENTELEMETRY, TraceLevel.TIMESTAMPS | TraceLevel.TENSORS, 1)
    spare = itertools.count(1000)
    identities = Identities(lambda: 8, spare.__next__)
    trace = Tracer(config, SystemClock(), Collected(), identities).begin("m", context)
    assert trace is not None
    return trace


@dataclass(frozen=True, slots=True)
class Made:
    """What a span says."""

    trace_id: int
    span_id: int
    parent_id: int | None
    is_entry: bool
    state: tuple[tuple[str, str], ...]
    start_ns: int | None
    end_ns: int | None
    attributes: dict[str, object]
    events: list[tuple[str, int | None]]


def spans(trace: Trace) -> dict[str, Made]:
    ids = itertools.count(100)
    return {span.name: made_of(span) for span in spans_of(trace, Identities(lambda: 7, ids.__next__))}


def made_of(span: ReadableSpan) -> Made:
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return Made(
        context.trace_id,
        context.span_id,
        parent and parent.span_id,
        parent is not None and parent.is_remote,
        tuple(context.trace_state.items()),
        span.start_time,
        span.end_time,
        dict(span.attributes or {}),
        [(event.name, event.timestamp) for event in span.events],
    )


def note(trace: Trace, *names: str, first_ns: int) -> None:
    for ns, name in enumerate(names, first_ns):
        trace.note(name, ns)


def test_a_request_is_three_spans_one_in_the_other() -> None:
    trace = trace_of()
    note(trace, Activity.HTTP_RECV_START, Activity.HTTP_RECV_END, first_ns=10)
    trace.note_subject("m", 3, "r")
    note(trace, Activity.REQUEST_START, Activity.QUEUE_START, first_ns=20)
    note(trace, "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", first_ns=30)
    note(trace, Activity.INFER_RESPONSE_COMPLETE, Activity.REQUEST_END, first_ns=40)
    note(trace, Activity.HTTP_SEND_START, Activity.HTTP_SEND_END, first_ns=50)
    made = spans(trace)
    assert list(made) == ["compute", "m", "InferRequest"]
    root, model, compute = made["InferRequest"], made["m"], made["compute"]
    assert (root.parent_id, model.parent_id, compute.parent_id) == (None, root.span_id, model.span_id)
    assert {span.trace_id for span in made.values()} == {7}
    assert (root.start_ns, root.end_ns) == (10, 51)
    assert [name for name, _ in root.events] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert (model.start_ns, model.end_ns) == (20, 41)
    assert model.events == [("REQUEST_START", 20), ("QUEUE_START", 21), ("REQUEST_END", 41)]
    assert model.attributes == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }
    assert (compute.start_ns, compute.end_ns, len(compute.events)) == (30, 33, 4)


def test_steps_hang_under_the_ensemble() -> None:
    trace = trace_of()
    trace.note_subject("chain", 1, "")
    note(trace, Activity.REQUEST_START, Activity.REQUEST_END, first_ns=1)
    middle = trace.step()
    for each, name in ((middle, "middle"), (middle.step(), "inner")):
        each.note_subject(name, 1, "")
        note(each, Activity.REQUEST_START, Activity.REQUEST_END, first_ns=2)
    made = spans(trace)
    assert made["middle"].parent_id == made["chain"].span_id
    assert made["inner"].parent_id == made["middle"].span_id
    assert "triton.request_id" not in made["chain"].attributes
    assert made["inner"].attributes["triton.trace_parent_id"] == 2


def test_a_callers_span_is_above_all() -> None:
    trace = trace_of(SpanContext(0xA, 0xB, 1, (("k", "v"),)))
    note(trace, Activity.HTTP_RECV_START, first_ns=5)
    (root,) = spans(trace).values()
    assert (root.trace_id, root.parent_id, root.is_entry, root.state) == (0xA, 0xB, True, (("k", "v"),))


def test_what_a_model_calls_hangs_under_the_models_span() -> None:
    for context, headers in (
        (None, {"traceparent": f"00-{8:032x}-{1000:016x}-01"}),
        (
            SpanContext(0xA, 0xB, 1, (("k", "v"), ("l", "w"))),
            {"traceparent": f"00-{10:032x}-{1000:016x}-01", "tracestate": "k=v,l=w"},
        ),
    ):
        trace = trace_of(context)
        step = trace.step()
        assert step.headers() == step.headers() == headers
        for each, name in ((trace, "chain"), (step, "m")):
            each.note_subject(name, 1, "")
            note(each, Activity.REQUEST_START, first_ns=1)
        made = spans(trace)
        assert made["m"].span_id == 1000
        assert {span.trace_id for span in made.values()} == {int(headers["traceparent"][3:35], 16)}


def test_pairs_of_a_backends_own_are_spans_and_what_has_no_other_half_is_an_event() -> None:
    trace = trace_of()
    trace.note_subject("m", 1, "")
    note(trace, Activity.REQUEST_START, "TOKENIZE_START", "TOKENIZE_END", "CUT_END", "LOST_START", first_ns=1)
    made = spans(trace)
    assert (made["TOKENIZE"].start_ns, made["TOKENIZE"].end_ns) == (2, 3)
    assert made["TOKENIZE"].parent_id == made["m"].span_id
    assert [name for name, _ in made["m"].events] == ["REQUEST_START", "CUT_END", "LOST_START"]


def test_what_has_no_time_has_no_span() -> None:
    trace = trace_of()
    assert spans(trace) == {}
    note(trace, Activity.HTTP_RECV_START, first_ns=9)
    note(trace, Activity.HTTP_SEND_START, first_ns=0)
    assert spans(trace)["InferRequest"].events == [("HTTP_RECV_START", 9)]


def test_generated_text_has_spans_and_numbers() -> None:
    trace = trace_of()
    trace.note_subject("m", 1, "")
    for name, ns in (("PREFILL_START", 5), ("PREFILL_END", 7), ("DECODE_START", 7), ("DECODE_END", 9)):
        trace.note(name, ns)
    trace.note_generation(GenerationNote(8, 4, 3, 1))
    made = spans(trace)
    assert [(made[name].start_ns, made[name].end_ns) for name in ("PREFILL", "DECODE")] == [(5, 7), (7, 9)]
    told = {name: value for name, value in made["m"].attributes.items() if name.startswith("trireme.")}
    assert told == {
        "trireme.generation.prompt_tokens": 8,
        "trireme.generation.prefix_hit_tokens": 4,
        "trireme.generation.tokens": 3,
        "trireme.generation.preemptions": 1,
    }
