"""What traces note of requests on their way through the actors, in virtual time."""

from __future__ import annotations

from dataclasses import replace

from traces import Collected, tracer_of_all

from trireme.actors import InferenceServer
from trireme.engine.request import InferenceRequest
from trireme.engine.tracing.record import Timestamp, Trace
from trireme.simulations.clock import VirtualClock
from trireme.simulations.models import Profile, SimulatedModel, simple_model, simple_request
from trireme.simulations.plan import ModelPlan, StepPlan

SECOND_NS = 1_000_000_000

EXECUTED = [
    ("REQUEST_START", 0),
    ("QUEUE_START", 0),
    ("COMPUTE_START", 0),
    ("COMPUTE_INPUT_END", 125_000_000),
    ("COMPUTE_OUTPUT_START", 750_000_000),
    ("COMPUTE_END", SECOND_NS),
    ("REQUEST_END", SECOND_NS),
]
"""Of a simulated batch that takes a second (`simulations.executors`)."""


def noted(trace: Trace, from_ns: int) -> list[tuple[str, int]]:
    return [(each.name, each.ns - from_ns) for each in trace.elements if isinstance(each, Timestamp)]


async def traced(server: InferenceServer, request: InferenceRequest) -> tuple[Collected, Trace]:
    """Execute a request, and another one that is not traced."""
    sink = Collected()
    trace = tracer_of_all(sink, VirtualClock()).begin("any")
    assert trace is not None
    await server.infer(replace(request, trace=trace))
    trace.leave()
    await server.infer(request)
    return sink, trace


async def test_a_request_notes_its_queue_and_its_execution(autojump_clock, open_server) -> None:
    async with open_server(simple_model("m", Profile(1.0))) as server:
        began_ns = VirtualClock().now_ns()
        sink, trace = await traced(server, simple_request("m"))
    assert sink.traces == [trace]
    assert noted(trace, began_ns) == EXECUTED
    assert trace.descendants == []


async def test_a_step_of_an_ensemble_has_a_trace_of_its_own(autojump_clock, open_server) -> None:
    """The ensemble's own notes no execution."""
    member = simple_model("m", Profile(1.0))
    ensemble = SimulatedModel(ModelPlan("e", steps=(StepPlan("m"),)).config(), Profile(0.0))
    async with open_server(member, ensemble) as server:
        began_ns = VirtualClock().now_ns()
        sink, trace = await traced(server, simple_request("e"))
    assert sink.traces == [trace]
    assert noted(trace, began_ns) == [EXECUTED[0], EXECUTED[1], EXECUTED[-1]]
    (step,) = trace.descendants
    assert noted(step, began_ns) == EXECUTED
    assert step.parent_id == trace.id
