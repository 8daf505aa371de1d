"""Triton's own Python clients, synchronous and asyncio, against the scripted models."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as aio
from grpc_stub import PATIENCE_S
from scripted_server import ScriptedServer, scripted_server
from tritonclient.utils import InferenceServerException

from trireme.engine.config import config_protobuf


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url) as opened:
        yield opened


def inputs(module: Any = triton, values: Sequence[float] = (1,)) -> list[Any]:
    array = np.asarray(values, np.float32)
    tensor = module.InferInput("IN", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


def test_questions(server: ScriptedServer, client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("plain")
    assert not client.is_model_ready("plain", "2")
    assert not client.is_model_ready("nothing")
    metadata: Any = client.get_model_metadata("many")
    assert (metadata.name, metadata.versions, metadata.platform) == ("many", ["1"], "scripted")
    config: Any = client.get_model_config("many")
    expected = config_protobuf(server.call(server.server.describe, "many").config)
    assert config.config == type(config.config).FromString(expected)
    assert config.config.model_transaction_policy.decoupled
    index: Any = client.get_model_repository_index()
    assert [(model.name, model.version, model.state) for model in index.models] == [
        (name, "1", "READY") for name in ("many", "plain", "queued")
    ]


def test_statistics_count_what_was_inferred(client: triton.InferenceServerClient) -> None:
    before: Any = client.get_inference_statistics("plain")
    client.infer("plain", inputs())
    after: Any = client.get_inference_statistics("plain")
    assert after.model_stats[0].inference_count == before.model_stats[0].inference_count + 1
    assert after.model_stats[0].inference_stats.success.ns > before.model_stats[0].inference_stats.success.ns
    everything: Any = client.get_inference_statistics()
    assert [each.name for each in everything.model_stats] == ["many", "plain", "queued"]


def test_infer_in_every_manner(client: triton.InferenceServerClient) -> None:
    result: Any = client.infer("plain", inputs(values=[1, 2]), request_id="a")
    assert result.as_numpy("OUT").tolist() == [1, 2]
    assert result.get_response().id == "a"
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer("plain", inputs(values=[3]), lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=PATIENCE_S)
    assert error is None
    assert result.as_numpy("OUT").tolist() == [3]
    with pytest.raises(InferenceServerException) as failed:
        client.infer("plain", inputs(), parameters={"script": "fail:oops"})
    assert (failed.value.status(), failed.value.message()) == ("StatusCode.INTERNAL", "oops")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client: triton.InferenceServerClient, algorithm: str) -> None:
    result: Any = client.infer("plain", inputs(values=[1] * 1000), compression_algorithm=algorithm)
    assert result.as_numpy("OUT").tolist() == [1] * 1000


def test_a_stream(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("many", inputs(), request_id="a", parameters={"script": "say say end"})
    for expected in ([1], [2]):
        result, error = answers.get(timeout=PATIENCE_S)
        assert (error, result.as_numpy("OUT").tolist()) == (None, expected)
    client.async_stream_infer("many", inputs(), parameters={"script": "end"}, enable_empty_final_response=True)
    result, error = answers.get(timeout=PATIENCE_S)
    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param
    client.async_stream_infer("plain", inputs(), parameters={"script": "fail:oops"})
    result, error = answers.get(timeout=PATIENCE_S)
    assert (result, error.message()) == (None, "oops")
    client.stop_stream()


def test_stopping_a_stream_may_cancel_it(server: ScriptedServer, client: triton.InferenceServerClient) -> None:
    client.start_stream(lambda result, error: None)
    client.async_stream_infer("plain", inputs(), request_id="stopped", parameters={"script": "until-cancelled say!"})
    server.until(lambda: "stopped" in server.script.begun)
    client.stop_stream(cancel_requests=True)
    server.until(lambda: "stopped" in server.script.cancelled)


def test_cancelling_an_async_call(server: ScriptedServer, client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    call: Any = client.async_infer(
        "plain",
        inputs(),
        lambda result, error: answers.put(error),
        request_id="async",
        parameters={"script": "until-cancelled say!"},
    )
    server.until(lambda: "async" in server.script.begun)
    call.cancel()
    assert "cancelled" in str(answers.get(timeout=PATIENCE_S)).lower()
    server.until(lambda: "async" in server.script.cancelled)


def in_asyncio(body: Callable[[aio.InferenceServerClient], Any], url: str) -> Any:
    async def run() -> Any:
        async with aio.InferenceServerClient(url) as client:
            return await asyncio.wait_for(body(client), PATIENCE_S)

    return asyncio.run(run())


def test_the_asyncio_client(server: ScriptedServer) -> None:
    async def talk(client: aio.InferenceServerClient) -> None:
        assert await client.is_server_ready()
        assert await client.is_model_ready("plain")
        results: Any = await asyncio.gather(*(client.infer("plain", inputs(aio, [n])) for n in range(50)))
        assert [result.as_numpy("OUT").tolist() for result in results] == [[n] for n in range(50)]
        with pytest.raises(InferenceServerException, match="is not found"):
            await client.infer("nothing", inputs(aio))

    in_asyncio(talk, server.url)


def test_a_stream_of_the_asyncio_client(server: ScriptedServer) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "many", "inputs": inputs(aio), "parameters": {"script": "say say!"}}
        yield {"model_name": "plain", "inputs": inputs(aio), "parameters": {"script": "fail:oops"}}

    async def talk(client: aio.InferenceServerClient) -> list[Any]:
        answers: list[Any] = []
        stream: Any = client.stream_infer(requests())
        async for result, error in stream:
            answers.append(str(error.message()) if error else result.as_numpy("OUT").tolist())
        return answers

    answers = in_asyncio(talk, server.url)
    assert sorted(answers, key=str) == [[1], [2], "oops"]
