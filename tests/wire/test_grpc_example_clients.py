"""The calls that tritonclient's public gRPC example clients make, in our own words, against the shipped models."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.grpc.auth import BasicAuth
from tritonclient.utils import InferenceServerException

messages: Any = service_pb2  # made when it is imported: type checkers cannot see its classes
PATIENCE_S = 60


@pytest.fixture
def client(live: Any) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(live.grpc_url) as client:
        yield client


@pytest.fixture
def stub(live: Any) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """The generated client, which some of the examples use bare."""
    with grpc.insecure_channel(live.grpc_url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def two_inputs(kind: type, datatype: str) -> tuple[list[triton.InferInput], np.ndarray, np.ndarray]:
    a, b = np.arange(16, dtype=kind).reshape(1, 16), np.ones((1, 16), dtype=kind)
    inputs = [triton.InferInput(f"INPUT{index}", [1, 16], datatype) for index in range(2)]
    inputs[0].set_data_from_numpy(a)
    inputs[1].set_data_from_numpy(b)
    return inputs, a, b


def both_outputs() -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(f"OUTPUT{index}") for index in range(2)]


def check(result: Any, a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer_sum_and_difference(client: Any, compression: str | None) -> None:
    inputs, a, b = two_inputs(np.int32, "INT32")
    result = client.infer(
        "simple",
        inputs,
        outputs=both_outputs(),
        request_id="one",
        headers={"test": "1"},
        compression_algorithm=compression,
    )
    check(result, a, b)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("one", "simple", "1")


def test_infer_with_all_outputs_and_a_client_timeout(client: Any) -> None:
    inputs, a, b = two_inputs(np.int32, "INT32")
    check(client.infer("simple", inputs, outputs=None, client_timeout=PATIENCE_S), a, b)


def test_infer_only_what_is_asked_for(client: Any) -> None:
    inputs, a, b = two_inputs(np.int32, "INT32")
    result = client.infer("simple", inputs, outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


def test_wrong_shapes_are_refused_with_the_servers_words(client: Any) -> None:
    inputs, _, _ = two_inputs(np.int32, "INT32")
    inputs[0].set_shape([1, 15])
    inputs[0].set_data_from_numpy(np.zeros((1, 15), np.int32))
    with pytest.raises(InferenceServerException) as caught:
        client.infer("simple", inputs)
    assert "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,15]. " in str(caught.value)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_async_infer(client: Any) -> None:
    inputs, a, b = two_inputs(np.int32, "INT32")
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for _ in range(8):
        client.async_infer("simple", inputs, lambda result, error: answers.put((result, error)), outputs=both_outputs())
    for _ in range(8):
        result, error = answers.get(timeout=PATIENCE_S)
        assert error is None
        check(result, a, b)


def test_aio_infer(live: Any) -> None:
    async def ask() -> None:
        inputs, a, b = two_inputs(np.int32, "INT32")
        async with aio.InferenceServerClient(live.grpc_url) as client:
            assert await client.is_server_live()
            results = await asyncio.gather(*(client.infer("simple", inputs) for _ in range(8)))
        for result in results:
            check(result, a, b)

    asyncio.run(ask())


def test_aio_stream(live: Any) -> None:
    async def ask() -> None:
        inputs, a, b = two_inputs(np.int32, "INT32")

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for index in range(8):
                yield {"model_name": "simple", "inputs": inputs, "request_id": str(index)}

        async with aio.InferenceServerClient(live.grpc_url) as client:
            index = 0
            answers: Any = client.stream_infer(requests())
            async for result, error in answers:
                assert error is None
                assert result.get_response().id == str(index)
                check(result, a, b)
                index += 1
            assert index == 8

    asyncio.run(ask())


def test_stream_answers_in_order_and_goes_on_after_an_error(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    inputs, a, b = two_inputs(np.int32, "INT32")
    client.start_stream(lambda result, error: answers.put((result, error)))
    for index in range(4):
        client.async_stream_infer("wrong_model_name" if index == 2 else "simple", inputs, request_id=str(index))
    for index in range(4):
        result, error = answers.get(timeout=PATIENCE_S)
        if index == 2:
            assert error.message() == "Request for unknown model: 'wrong_model_name' is not found"
        else:
            assert result.get_response().id == str(index)
            assert result.get_response().parameters["triton_final_response"].bool_param
            check(result, a, b)
    client.stop_stream()
    assert answers.empty()


def test_numbers_as_text(client: Any) -> None:
    texts = [[str(number).encode() for number in range(16)], [b"1"] * 16]
    inputs = [triton.InferInput(f"INPUT{index}", [1, 16], "BYTES") for index in range(2)]
    for tensor, text in zip(inputs, texts, strict=True):
        tensor.set_data_from_numpy(np.array(text, dtype=np.object_).reshape(1, 16))
    result = client.infer("simple_string", inputs, outputs=both_outputs())
    assert [int(text) for text in result.as_numpy("OUTPUT0")[0]] == [number + 1 for number in range(16)]
    assert [int(text) for text in result.as_numpy("OUTPUT1")[0]] == [number - 1 for number in range(16)]


def test_strings_come_back_as_they_went(client: Any) -> None:
    texts = [b"", b"plain", "Grüße".encode(), "日本語".encode(), b"\0inside"]
    tensor = triton.InferInput("INPUT0", [1, 5], "BYTES")
    tensor.set_data_from_numpy(np.array(texts, dtype=np.object_).reshape(1, 5))
    result = client.infer("simple_identity", [tensor], outputs=[triton.InferRequestedOutput("OUTPUT0")])
    assert list(result.as_numpy("OUTPUT0")[0]) == texts


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live(headers={"test": "1", "dummy": "2"})
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nothing")
    metadata = client.get_server_metadata(as_json=True)
    assert metadata["name"] == "triton"
    assert "classification" in metadata["extensions"]
    model = client.get_model_metadata("simple", as_json=True)
    assert model["platform"] == "onnxruntime_onnx"
    assert model["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": ["-1", "16"]}
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'wrong_model_name' is not found"):
        client.get_model_metadata("wrong_model_name")
    config = client.get_model_config("simple").config
    assert (config.name, config.max_batch_size, len(config.output)) == ("simple", 8, 2)
    assert ("simple", "1", "READY") in [
        (model.name, model.version, model.state) for model in client.get_model_repository_index().models
    ]


def test_statistics_count_what_was_asked(client: Any) -> None:
    def counts() -> tuple[int, int]:
        (record,) = client.get_inference_statistics("simple_int8").model_stats
        return record.inference_count, record.inference_stats.success.count

    before = counts()
    inputs, _, _ = two_inputs(np.int8, "INT8")
    for _ in range(5):
        client.infer("simple_int8", inputs)
    after = counts()
    assert (after[0] - before[0], after[1] - before[1]) == (5, 5)


def test_keepalive_options(live: Any) -> None:
    options = triton.KeepAliveOptions(
        keepalive_time_ms=2**31 - 1,
        keepalive_timeout_ms=20000,
        keepalive_permit_without_calls=False,
        http2_max_pings_without_data=2,
    )
    with triton.InferenceServerClient(live.grpc_url, keepalive_options=options) as client:
        inputs, a, b = two_inputs(np.int32, "INT32")
        check(client.infer("simple", inputs), a, b)


def test_channel_arguments_of_ones_own(live: Any) -> None:
    arguments = [("grpc.keepalive_time_ms", 2**31 - 1), ("grpc.http2.max_pings_without_data", 2)]
    with triton.InferenceServerClient(live.grpc_url, channel_args=arguments) as client:
        inputs, a, b = two_inputs(np.int32, "INT32")
        check(client.infer("simple", inputs), a, b)


def test_headers_that_a_plugin_adds_do_no_harm(client: Any) -> None:
    client.register_plugin(BasicAuth("user", "secret"))
    inputs, a, b = two_inputs(np.int32, "INT32")
    check(client.infer("simple", inputs), a, b)


def test_request_parameters_of_ones_own_do_no_harm(client: Any) -> None:
    inputs, a, b = two_inputs(np.int32, "INT32")
    parameters = {"text": "x", "number": 5, "flag": True}
    check(client.infer("simple", inputs, parameters=parameters, priority=1, timeout=1_000_000), a, b)


def explicit(model: str, datatype: str, field: str, values: list[list[Any]]) -> Any:
    request = messages.ModelInferRequest(model_name=model, id="explicit")
    for index, contents in enumerate(values):
        tensor = request.inputs.add(name=f"INPUT{index}", datatype=datatype, shape=[1, 16])
        getattr(tensor.contents, field).extend(contents)
        request.outputs.add(name=f"OUTPUT{index}")
    return request


@pytest.mark.parametrize(
    ("model", "datatype", "kind"), [("simple", "INT32", np.int32), ("simple_int8", "INT8", np.int8)]
)
def test_explicit_integers(stub: Any, model: str, datatype: str, kind: type) -> None:
    response = stub.ModelInfer(explicit(model, datatype, "int_contents", [list(range(16)), [1] * 16]))
    sums, differences = (np.frombuffer(raw, kind) for raw in response.raw_output_contents)
    assert sums.tolist() == [number + 1 for number in range(16)]
    assert differences.tolist() == [number - 1 for number in range(16)]
    assert [(output.name, list(output.shape)) for output in response.outputs] == [
        ("OUTPUT0", [1, 16]),
        ("OUTPUT1", [1, 16]),
    ]


def test_explicit_bytes(stub: Any) -> None:
    request = explicit("simple_string", "BYTES", "bytes_contents", [[b"%d" % n for n in range(16)], [b"1"] * 16])
    result: Any = triton.InferResult(stub.ModelInfer(request))
    assert [int(text) for text in result.as_numpy("OUTPUT0")[0]] == [number + 1 for number in range(16)]


def test_bare_stub_asks_everything(stub: Any) -> None:
    assert stub.ServerLive(messages.ServerLiveRequest()).live
    assert stub.ServerReady(messages.ServerReadyRequest()).ready
    assert stub.ModelReady(messages.ModelReadyRequest(name="simple", version="1")).ready
    assert stub.ServerMetadata(messages.ServerMetadataRequest()).name == "triton"
    assert stub.ModelMetadata(messages.ModelMetadataRequest(name="simple")).versions == ["1"]
    assert stub.ModelConfig(messages.ModelConfigRequest(name="simple")).config.name == "simple"
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(messages.ModelInferRequest(model_name="simple"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_classification_of_real_handwriting(client: Any, repository_root: Any) -> None:
    """Held-out images, as a batch."""
    held_out = np.load(repository_root / "model_repository" / "digits_heldout.npz")
    images, digits = (held_out[name] for name in held_out.files)
    tensor = triton.InferInput("IMAGE", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images.astype(np.float32))
    outputs = [triton.InferRequestedOutput("PROBABILITIES", class_count=1)]
    result = client.infer("digits", [tensor], outputs=outputs)
    labels = [row[0].decode().split(":")[2] for row in result.as_numpy("PROBABILITIES")]
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert labels == [names[int(digit)] for digit in digits]


def test_what_comes_later_is_refused_clearly(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="explicit model load / unload is not allowed"):
        client.load_model("simple")
    with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
        client.register_system_shared_memory("region", "/key", 64)
    assert not client.get_system_shared_memory_status().regions
