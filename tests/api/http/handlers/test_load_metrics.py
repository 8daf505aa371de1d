"""The ORCA header on the generate routes (docs/reference/generate.md#load-metrics-header)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from http_sockets import Responses, connect, serving
from scripted_models import Script, write_scripted_models

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import HttpOptions
from trireme.api.http.handlers.generate import load_metrics_headers
from trireme.engine.metrics.custom import CustomMetrics, MetricKind
from trireme.engine.metrics.generation import LOAD_FAMILY
from trireme.engine.options import ServerOptions

NAME = b"endpoint-load-metrics"


def keep_blocks(metrics: CustomMetrics, **blocks: float) -> None:
    """What TensorRT-LLM's backend keeps."""
    family = metrics.create_family("nv_trt_llm_kv_cache_block_metrics", "KV cache blocks", MetricKind.GAUGE)
    for name, value in blocks.items():
        labels = {"kv_cache_block_type": name, "model": "llm", "version": "1"}
        metrics.set(metrics.create_metric(family, labels), value)


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (b"json", b'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":1024}}'),
        (b"text", b"TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=1024"),
    ],
)
def test_both_formats(wanted: bytes, value: bytes) -> None:
    metrics = CustomMetrics()
    keep_blocks(metrics, tokens_per=64, used=4, max=16, free=12)
    assert load_metrics_headers(wanted, metrics.values(LOAD_FAMILY)) == ((NAME, value),)


def test_a_cache_without_blocks_is_not_in_use() -> None:
    metrics = CustomMetrics()
    keep_blocks(metrics, tokens_per=64, used=0, max=0)
    ((_, value),) = load_metrics_headers(b"text", metrics.values(LOAD_FAMILY))
    assert value == b"TEXT named_metrics.kv_cache_utilization=0.000000, named_metrics.max_token_capacity=0"


@pytest.mark.parametrize(
    ("wanted", "blocks", "text"),
    [
        (b"json", {}, "lacks 'tokens_per', 'used', 'max'"),
        (b"text", {"used": 1, "max": 2}, "lacks 'tokens_per'"),
        (b"JSON", {"tokens_per": 1, "used": 1, "max": 2}, "format 'JSON' is neither 'json' nor 'text'"),
        (b"", {"tokens_per": 1, "used": 1, "max": 2}, "format '' is neither"),
    ],
)
def test_what_cannot_be_told_is_left_out_and_logged(
    wanted: bytes, blocks: dict[str, float], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = CustomMetrics()
    keep_blocks(metrics, **blocks)
    assert load_metrics_headers(wanted, metrics.values(LOAD_FAMILY)) == ()
    (record,) = caplog.records
    assert text in record.getMessage()


def test_no_header_without_a_request_for_it(caplog: pytest.LogCaptureFixture) -> None:
    assert load_metrics_headers(None, ()) == ()
    assert not caplog.records


async def test_generate_and_its_streams_carry_it_and_infer_does_not(tmp_path: Path) -> None:
    """On errors, too; from the moment when the answer begins."""
    write_scripted_models(tmp_path)
    script = Script()
    options = ServerOptions(model_repository=(tmp_path,), exit_timeout_s=5)
    async with InferenceServer(options, backends=script.backends()) as server:
        keep_blocks(server.custom_metrics, tokens_per=64, used=4, max=16)
        async with (
            serving(HttpApplication(server, HttpOptions())) as service,
            await connect(service) as stream,
        ):
            responses = Responses(stream)

            async def header(route: str, document: dict[str, object], wanted: bytes = b"json") -> bytes | None:
                body = json.dumps(document).encode()
                head = b"POST /v2/models/many/%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % (
                    route.encode(),
                    len(body),
                )
                asked = b"Endpoint-Load-Metrics-Format: %b\r\n" % wanted if wanted else b""
                await stream.send_all(head + asked + b"\r\n" + body)
                return dict((await responses.next()).headers).get(NAME)

            value = b'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":1024}}'
            for route in ("generate", "generate_stream"):
                assert await header(route, {"IN": 1, "script": "say!"}) == value
                assert await header(route, {"IN": 1, "script": "fail:x"}) == value
                assert await header(route, {"IN": 1, "script": "say!"}, b"") is None
                assert await header(route, {"IN": 1, "script": "say!"}, b"xml") is None
            assert await header("generate", {"IN": "no number"}) is None, "refused before the model was asked"
        script.close()
