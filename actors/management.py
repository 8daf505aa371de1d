"""`Management` of the server in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any, Protocol

import trio

from ..engine.clock import SystemClock
from ..engine.description import IndexEntry, ServerMetadata
from ..engine.memory.regions import RegionKind, Regions
from ..engine.metrics.custom import CustomMetrics
from ..engine.metrics.generation import LOAD_FAMILY, load_series
from ..engine.metrics.statistics import Duration, ModelStatisticsEntry
from ..engine.request import LATEST
from ..engine.tensor import Buffer
from ..engine.tracing import TraceMode, Tracer
from ..engine.tracing.settings import TraceLevel
from .facade import Management, TraceChanges
from .fleet_report import FleetReports, Reported
from .routes import Routes

_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_INFERENCE = ("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss")
_RESPONSES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
"""Durations of statistics, in order."""
_OF_ROUTE = "0"
"""The version of the record that has the sums of a route's targets; no model has it."""


class Managed(Reported, Protocol):
    """What of `InferenceServer` it takes."""

    @property
    def shared_memory(self) -> Regions: ...
    @property
    def tracer(self) -> Tracer: ...
    @property
    def custom_metrics(self) -> CustomMetrics: ...
    @property
    def routes(self) -> Routes: ...

    def live(self) -> bool: ...
    async def check_ready(self) -> bool: ...
    async def check_model_ready(self, name: str, version: int = LATEST) -> bool: ...
    def metadata(self) -> ServerMetadata: ...
    def statistics(self, name: str = "", version: int = LATEST) -> list[ModelStatisticsEntry]: ...
    async def rescan(self) -> None: ...
    def repository_index(self, ready_only: bool = False) -> list[IndexEntry]: ...
    async def load_model(self, name: str, parameters: Mapping[str, str | Buffer]) -> None: ...
    async def want(self, name: str, timeout_us: int = 0) -> None: ...
    async def unload_model(self, name: str, unload_dependents: bool = False) -> None: ...


def _summed(one: Any, other: Any) -> Any:
    """Two records added up: the numbers in them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _summed(one.get(key), other.get(key)) for key in one | other}
    return one + other if isinstance(one, int) and isinstance(other, int) else one or other


def _of_route(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of a route: the sums of its targets', but for what is listed by batch size."""
    latest = max(row["last_inference"] for row in rows)
    own = {"name": name, "version": _OF_ROUTE, "last_inference": latest, "batch_stats": [], "memory_usage": []}
    return {**reduce(_summed, rows), **own}


class LocalManagement(Management):
    """See `Management`."""

    def __init__(self, server: Managed) -> None:
        self._server = server
        self._reports: FleetReports | None = None

    async def live(self) -> bool:
        return self._server.live()

    async def ready(self) -> bool:
        return await self._server.check_ready()

    async def model_ready(self, name: str, version: int = LATEST) -> bool:
        return await self._server.check_model_ready(name, version)

    async def server_metadata(self) -> dict[str, Any]:
        about = self._server.metadata()
        return {"name": about.name, "version": about.version, "extensions": list(about.extensions)}

    async def model_statistics(self, name: str = "", version: int = LATEST) -> dict[str, Any]:
        rows = [
            {
                "name": entry.name,
                "version": str(entry.version),
                "last_inference": entry.statistics.last_inference_ms,
                "inference_count": entry.statistics.inference_count,
                "execution_count": entry.statistics.execution_count,
                "inference_stats": _durations(entry.statistics, _INFERENCE),
                "response_stats": {
                    str(index): _durations(responses, _RESPONSES)
                    for index, responses in sorted(entry.statistics.responses.items())
                },
                "batch_stats": [
                    {"batch_size": rows, **_durations(batch, _COMPUTE)}
                    for rows, batch in sorted(entry.statistics.batches.items())
                ],
                "memory_usage": [asdict(usage) for usage in entry.memory_usage],
            }
            for entry in self._server.statistics(name, version)
        ]
        if rows and self._server.routes.is_route(name, version):
            rows.insert(0, _of_route(name, rows))
        return {"model_stats": rows}

    async def repository_index(self, ready_only: bool = False) -> list[dict[str, str]]:
        await self._server.rescan()
        rows: list[dict[str, str]] = []
        for entry in self._server.repository_index(ready_only):
            state = "" if entry.state is None else entry.state.value
            row = {"name": entry.name, "version": entry.version, "state": state, "reason": entry.reason}
            rows.append({key: value for key, value in row.items() if value or key == "name"})
        return rows

    async def load_model(self, name: str, parameters: Mapping[str, str | Buffer]) -> None:
        await self._server.load_model(name, parameters)

    async def want(self, name: str, timeout_us: int = 0) -> None:
        await self._server.want(name, timeout_us)

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        await self._server.unload_model(name, unload_dependents)

    async def route_status(self, name: str = "") -> list[dict[str, Any]]:
        return self._server.routes.status(name)

    async def set_route(self, name: str, document: Mapping[str, Any]) -> None:
        await self._server.routes.set_route(name, document)

    async def remove_route(self, name: str) -> None:
        await self._server.routes.remove_route(name)

    async def stop_rollout(self, name: str) -> None:
        await self._server.routes.stop_rollout(name)

    async def region_status(self, kind: RegionKind, name: str = "") -> list[dict[str, Any]]:
        shown = ("device_id",) if kind is RegionKind.CUDA else ("key", "offset")
        regions = self._server.shared_memory.status(kind, name)
        return [{each: getattr(region, each) for each in ("name", *shown, "byte_size")} for region in regions]

    async def register_system_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self._server.shared_memory.register_system(name, key, offset, byte_size)

    async def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        self._server.shared_memory.register_cuda(name, handle, device_id, byte_size)

    async def unregister_region(self, kind: RegionKind, name: str = "") -> None:
        self._server.shared_memory.unregister(kind, name)

    async def trace_settings(
        self, model_name: str = "", changes: TraceChanges | None = None
    ) -> list[tuple[str, str | list[str]]]:
        tracer = self._server.tracer
        if changes:
            level = changes.get("level")
            tracer.change(model_name, **{**changes, **({} if level is None else {"level": TraceLevel(level)})})
        return list(_shown(tracer, model_name))

    async def custom_metric(self, family: str) -> list[tuple[dict[str, str], float]]:
        found = [(dict(labels), value) for labels, value in self._server.custom_metrics.values(family)]
        return found or (load_series(self._server.statistics()) if family == LOAD_FAMILY else [])

    async def fleet_report(self, since: int = 0) -> dict[str, Any]:
        if self._reports is None:  # most servers have no gateway
            self._reports = FleetReports(self._server, SystemClock(trio.current_time))
        return self._reports.report(since)


def _durations(counted: object, names: Sequence[str]) -> dict[str, dict[str, int]]:
    durations: dict[str, Duration] = {name: getattr(counted, name) for name in names}
    return {name: {"count": each.count, "ns": each.ns} for name, each in durations.items()}


def _shown(tracer: Tracer, model_name: str) -> Iterator[tuple[str, str | list[str]]]:
    """See `Management.trace_settings`."""
    config = tracer.config
    setting = tracer.setting(model_name)
    yield "trace_level", setting.level.names()
    yield "trace_rate", str(setting.rate)
    yield "trace_count", str(setting.count)
    if config.mode is TraceMode.TRITON:
        yield "log_frequency", str(setting.log_frequency)
        yield "trace_file", config.file
    yield "trace_mode", config.mode.value
    if config.mode is TraceMode.OPENTELEMETRY:
        yield from config.export.given
