"""What a Python model is told of the trace of its request, to hand on (docs/reference/python-backend.md#requests)."""

from __future__ import annotations

import pytest
from traces import Collected

from trireme.engine.clock import SystemClock
from trireme.engine.job import Job
from trireme.engine.request import InferenceRequest
from trireme.engine.tracing import Trace, TraceConfig, TraceLevel, TraceMode, Tracer
from trireme.engine.tracing.record import Identities
from trireme.python_backend.child.codec import Payload
from trireme.python_backend.wire import write_job


class NoClient:
    def deliver(self, outcome: object, final: bool) -> bool:
        return final


def context_of(trace: Trace | None) -> str | None:
    job = Job(InferenceRequest("m", trace=trace), {}, 1, "m", 1, NoClient())
    return write_job(job, 1, Payload(), ("OUT",))[-2]


def trace_in(mode: TraceMode) -> Trace:
    config = TraceConfig(mode, TraceLevel.TIMESTAMPS, 1, file="t")
    identities = Identities(lambda: 7, lambda: 9) if mode is TraceMode.OPENTELEMETRY else None
    trace = Tracer(config, SystemClock(), Collected(), identities).begin("m")
    assert trace is not None
    return trace


def test_a_traced_request_has_the_context_of_its_models_span() -> None:
    context = context_of(trace_in(TraceMode.OPENTELEMETRY))
    assert context is not None
    assert context == f'{{"traceparent":"00-{7:032x}-{9:016x}-01"}}'


@pytest.mark.parametrize("trace", [None, trace_in(TraceMode.TRITON)])
def test_any_other_has_none(trace: Trace | None) -> None:
    assert context_of(trace) is None
