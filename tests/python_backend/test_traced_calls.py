"""Requests that models make with the trace of the one that they serve are traced under it."""

from __future__ import annotations

from pathlib import Path

from calling_models import ADD_ONE, HEAD
from python_models import ask, open_repository, write_model
from traces import elements

from trireme.engine.tracing import TraceConfig, TraceLevel

ENSEMBLE = """
    platform: "ensemble" max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
    ensemble_scheduling { step { model_name: "MEMBER" model_version: -1
        input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }
"""

ASKS = (
    HEAD
    + """
        def execute(self, requests):
            return [call("inner", value_of(request), **self.traced(request)).exec() for request in requests]

        def traced(self, request):
            return {"trace": request.trace()} if value_of(request) == 1 else {}
"""
)


async def subjects(repository: Path, value: float) -> list[tuple[str, str]]:
    """Model and model above of each trace, by a request to an ensemble whose member asks another ensemble."""
    write_model(repository, "outer", "", ENSEMBLE.replace("MEMBER", "asks"))
    write_model(repository, "asks", ASKS)
    write_model(repository, "inner", "", ENSEMBLE.replace("MEMBER", "one"))
    write_model(repository, "one", ADD_ONE)
    path = repository.parent / "traces"
    tracing = TraceConfig(level=TraceLevel.TIMESTAMPS, rate=1, file=str(path))
    async with open_repository(repository, tracing=tracing) as server:
        trace = server.tracer.begin("outer")
        assert trace is not None
        await server.infer(ask("outer", value, trace=trace))
        trace.leave()
    found = [element for element in elements(path) if "model_name" in element]
    names = {element["id"]: element["model_name"] for element in found}
    return sorted((element["model_name"], names.get(element.get("parent_id"), "")) for element in found)


async def test_calls_with_a_trace_stand_under_their_maker(tmp_path: Path) -> None:
    assert await subjects(tmp_path / "models", 1) == [
        ("asks", "outer"),
        ("inner", "asks"),
        ("one", "inner"),
        ("outer", ""),
    ]


async def test_calls_without_one_are_not_traced(tmp_path: Path) -> None:
    assert await subjects(tmp_path / "models", 2) == [("asks", "outer"), ("outer", "")]
