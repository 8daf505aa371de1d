"""Trace settings over HTTP (docs/reference/traces.md#over-http)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_fakes import FakeServer, HttpClient
from trace_setting_calls import CONFIG, OVER_HTTP, SHOWN
from traces import Collected

from trireme.engine.clock import SystemClock
from trireme.engine.tracing import TraceConfig, TraceLevel, TraceMode, Tracer
from trireme.engine.tracing.settings import ExportOptions

SERVER = "/v2/trace/setting"
MODEL = "/v2/models/identity/trace/setting"


def client_of(config: TraceConfig) -> HttpClient:
    server = FakeServer()
    server.tracer = Tracer(config, SystemClock(), Collected())
    return HttpClient(server)


@pytest.fixture
def client() -> HttpClient:
    return client_of(CONFIG)


async def test_what_is_set(client: HttpClient) -> None:
    """The members in Triton's order."""
    for path in (SERVER, MODEL):
        reply = await client.get(path)
        assert (reply.status, reply.media) == (200, "application/json")
        assert reply.body == json.dumps(SHOWN, separators=(",", ":")).encode()


async def test_calls_are_answered_as_by_triton(client: HttpClient) -> None:
    """Recorded: each call, and what changes in the answer, or how it is refused; then nothing has changed."""
    shown = dict(SHOWN)
    for change, answer in OVER_HTTP:
        reply = await client.post(SERVER, json.dumps(change))
        if isinstance(answer, tuple):
            assert (reply.status, reply.error) == answer, change
            reply = await client.get(SERVER)
        else:
            shown |= answer
        assert reply.json == shown, change


@pytest.mark.parametrize("body", ["[]", "5", "null", "{}"])
async def test_what_is_no_object_changes_nothing(client: HttpClient, body: str) -> None:
    assert (await client.post(SERVER, body)).json == SHOWN


async def test_a_body_must_be_json(client: HttpClient) -> None:
    for body, at in (("", "The document is empty. at 0"), ("{", "Missing a name for object member. at 1")):
        reply = await client.post(SERVER, body)
        assert (reply.status, reply.error) == (500, f"failed to parse the request JSON buffer: {at}")


async def test_a_model_overrides_field_by_field(client: HttpClient) -> None:
    async def change(path: str, **settings: Any) -> dict[str, Any]:
        return (await client.post(path, json.dumps(settings))).json

    assert await change(MODEL, trace_rate="3") == {**SHOWN, "trace_rate": "3"}
    assert (await client.get(SERVER)).json == SHOWN
    await change(SERVER, trace_rate="4", log_frequency="6")
    assert (await client.get(MODEL)).json == {**SHOWN, "trace_rate": "3", "log_frequency": "6"}
    assert (await client.get("/v2/models/batching/trace/setting")).json["trace_rate"] == "4"
    assert await change(MODEL, trace_rate=None) == {**SHOWN, "trace_rate": "4", "log_frequency": "6"}
    assert await change(SERVER, trace_rate=None, log_frequency=None) == SHOWN


async def test_unknown_models_have_no_setting(client: HttpClient) -> None:
    """That is found out before anything else about the request."""
    for method, body in (("GET", ""), ("POST", "{}"), ("POST", '{"trace_rate":"x"}'), ("POST", "{")):
        reply = await client.ask(method, "/v2/models/nothing/trace/setting", body)
        assert (reply.status, reply.error) == (400, "Request for unknown model : nothing")


async def test_without_a_file_nothing_can_be_switched_on() -> None:
    reply = await client_of(TraceConfig()).post(SERVER, '{"trace_level":["TIMESTAMPS"]}')
    assert (reply.status, reply.error) == (
        400,
        "Attempting to set invalid trace setting :trace file name is not given",
    )


async def test_the_mode_opentelemetry_shows_its_options() -> None:
    """A name may come twice, as in Triton."""
    given = (("url", "http://c/"), ("resource", "a=b"), ("resource", "c=d"), ("bsp_schedule_delay", "5000"))
    config = TraceConfig(TraceMode.OPENTELEMETRY, TraceLevel.TIMESTAMPS, export=ExportOptions(given=given))
    client = client_of(config)
    reply = await client.get(SERVER)
    assert reply.body == (
        b'{"trace_level":["TIMESTAMPS"],"trace_rate":"1000","trace_count":"-1","trace_mode":"opentelemetry",'
        b'"url":"http://c/","resource":"a=b","resource":"c=d","bsp_schedule_delay":"5000"}'
    )
    assert (await client.post(SERVER, '{"trace_rate":"0","log_frequency":"3"}')).json["trace_rate"] == "0"
