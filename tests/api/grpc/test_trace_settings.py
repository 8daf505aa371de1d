"""TraceSetting (docs/reference/grpc.md#settings)."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_fakes import GrpcClient
from http_fakes import FakeServer
from trace_setting_calls import CONFIG, OVER_GRPC, SHOWN
from traces import Collected

from trireme.api.grpc.blocks import grpc_error
from trireme.engine.clock import SystemClock
from trireme.engine.errors import TriremeError
from trireme.engine.tracing import TraceConfig, TraceMode, Tracer
from trireme.engine.tracing.settings import ExportOptions
from trireme.proto.messages import inference as pb


def client_of(config: TraceConfig) -> GrpcClient:
    server = FakeServer()
    server.tracer = Tracer(config, SystemClock(), Collected())
    return GrpcClient(server)


@pytest.fixture
def client() -> GrpcClient:
    return client_of(CONFIG)


async def ask(client: GrpcClient, model: str = "", /, **settings: list[str]) -> dict[str, list[str]]:
    values = {name: pb.TraceSettingRequestSettingValue(value=value) for name, value in settings.items()}
    answer = await client.inference("TraceSetting", pb.TraceSettingRequest(settings=values, model_name=model))
    return {name: list(one.value) for name, one in pb.TraceSettingResponse.parse(bytes(answer)).settings.items()}


def listed(shown: dict[str, Any]) -> dict[str, list[str]]:
    return {name: value if isinstance(value, list) else [value] for name, value in shown.items()}


async def test_calls_are_answered_as_by_triton(client: GrpcClient) -> None:
    """Recorded: each call, and what changes in the answer, or how it is refused; then nothing has changed."""
    shown = dict(SHOWN)
    for change, answer in OVER_GRPC:
        if isinstance(answer, tuple):
            with pytest.raises(TriremeError) as refused:
                await ask(client, **change)
            status, text = grpc_error(refused.value)
            assert (status.name, text) == answer, change
            assert await ask(client) == listed(shown), change
        else:
            shown |= answer
            assert await ask(client, **change) == listed(shown), change


async def test_a_model_overrides_field_by_field(client: GrpcClient) -> None:
    assert (await ask(client, "identity", trace_rate=["7"]))["trace_rate"] == ["7"]
    assert (await ask(client))["trace_rate"] == ["11"]
    assert (await ask(client, "identity", trace_rate=[]))["trace_rate"] == ["11"]


async def test_unknown_models_have_no_setting(client: GrpcClient) -> None:
    for settings in ({}, {"trace_rate": ["x"]}):
        with pytest.raises(TriremeError, match=r"^Request for unknown model : nothing$"):
            await ask(client, "nothing", **settings)


async def test_a_name_that_comes_twice_has_two_values() -> None:
    given = (("resource", "a=b"), ("resource", "c=d"))
    shown = await ask(client_of(TraceConfig(TraceMode.OPENTELEMETRY, export=ExportOptions(given=given))))
    assert shown["resource"] == ["a=b", "c=d"]
    assert "trace_file" not in shown
