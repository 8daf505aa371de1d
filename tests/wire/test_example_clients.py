"""The calls that tritonclient's public HTTP example clients make, in our own words, against the shipped models."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException


@pytest.fixture
def client(live: Any):
    with http.InferenceServerClient(live.url, concurrency=4) as client:
        yield client


def two_inputs(kind: type, datatype: str, *, binary: bool = True) -> tuple[list[http.InferInput], list[np.ndarray]]:
    values = [np.arange(16, dtype=kind).reshape(1, 16), np.ones((1, 16), dtype=kind)]
    inputs = [http.InferInput(f"INPUT{index}", [1, 16], datatype) for index in range(2)]
    for tensor, value in zip(inputs, values, strict=True):
        tensor.set_data_from_numpy(value, binary_data=binary)
    return inputs, values


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer_sum_and_difference(client: Any, binary_in: bool, binary_out: bool) -> None:
    inputs, (a, b) = two_inputs(np.int32, "INT32", binary=binary_in)
    outputs = [http.InferRequestedOutput(f"OUTPUT{index}", binary_data=binary_out) for index in range(2)]
    result = client.infer("simple", inputs, outputs=outputs, query_params={"test": 1}, request_id="one")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("one", "simple", "1")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_infer_compressed_both_ways(client: Any, algorithm: str) -> None:
    inputs, (a, b) = two_inputs(np.int32, "INT32")
    result = client.infer(
        "simple", inputs, request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)


def test_infer_only_what_is_asked_for(client: Any) -> None:
    inputs, (a, b) = two_inputs(np.int32, "INT32")
    result = client.infer("simple", inputs, outputs=[http.InferRequestedOutput("OUTPUT1")])
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


def test_wrong_shapes_are_refused_with_the_servers_words(client: Any) -> None:
    tensor = http.InferInput("INPUT0", [1, 15], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 15), np.int32))
    other = http.InferInput("INPUT1", [1, 16], "INT32")
    other.set_data_from_numpy(np.zeros((1, 16), np.int32))
    with pytest.raises(InferenceServerException) as caught:
        client.infer("simple", [tensor, other])
    assert "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,15]. " in str(caught.value)
    assert caught.value.status() == "400"


def test_async_infer(client: Any) -> None:
    inputs, (a, b) = two_inputs(np.int32, "INT32")
    handles = [client.async_infer("simple", inputs) for _ in range(8)]
    for handle in handles:
        np.testing.assert_array_equal(handle.get_result().as_numpy("OUTPUT0"), a + b)


def test_aio_infer(live: Any) -> None:
    async def ask() -> None:
        inputs, (a, b) = two_inputs(np.int32, "INT32")
        async with aio.InferenceServerClient(live.url) as client:
            assert await client.is_server_live()
            results = await asyncio.gather(*(client.infer("simple", inputs) for _ in range(8)))
        for result in results:
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)

    asyncio.run(ask())


def test_explicit_int8(client: Any) -> None:
    inputs, (a, b) = two_inputs(np.int8, "INT8", binary=False)
    result = client.infer("simple_int8", inputs)
    assert result.as_numpy("OUTPUT0").dtype == np.int8
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


@pytest.mark.parametrize("binary", [True, False])
def test_numbers_as_text(client: Any, binary: bool) -> None:
    a = np.array([str(number).encode() for number in range(16)], dtype=np.object_).reshape(1, 16)
    b = np.array([b"1"] * 16, dtype=np.object_).reshape(1, 16)
    inputs = [http.InferInput(f"INPUT{index}", [1, 16], "BYTES") for index in range(2)]
    inputs[0].set_data_from_numpy(a, binary_data=binary)
    inputs[1].set_data_from_numpy(b, binary_data=binary)
    outputs = [http.InferRequestedOutput(f"OUTPUT{index}", binary_data=binary) for index in range(2)]
    result = client.infer("simple_string", inputs, outputs=outputs)
    sums = [int(text) for text in result.as_numpy("OUTPUT0")[0]]
    differences = [int(text) for text in result.as_numpy("OUTPUT1")[0]]
    assert sums == [number + 1 for number in range(16)]
    assert differences == [number - 1 for number in range(16)]


@pytest.mark.parametrize("binary", [True, False])
def test_strings_come_back_as_they_went(client: Any, binary: bool) -> None:
    texts = np.array(["", "plain", "Grüße", "日本語", "\u0000inside"], dtype=np.object_).reshape(1, 5)
    tensor = http.InferInput("INPUT0", [1, 5], "BYTES")
    tensor.set_data_from_numpy(texts, binary_data=binary)
    result = client.infer(
        "simple_identity", [tensor], outputs=[http.InferRequestedOutput("OUTPUT0", binary_data=binary)]
    )
    got = [text if isinstance(text, str) else text.decode() for text in result.as_numpy("OUTPUT0")[0]]
    assert got == list(texts[0])


def test_bytes_that_are_no_text_fail_alone_and_are_named(client: Any) -> None:
    texts = np.array([b"fine", b"\xff\xfe"], dtype=np.object_).reshape(1, 2)
    tensor = http.InferInput("INPUT0", [1, 2], "BYTES")
    tensor.set_data_from_numpy(texts)
    with pytest.raises(InferenceServerException, match=r"INPUT0.*1") as caught:
        client.infer("simple_identity", [tensor])
    assert "UTF-8" in str(caught.value)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nothing")
    metadata = client.get_server_metadata()
    assert metadata["name"] == "triton"
    assert "binary_tensor_data" in metadata["extensions"]
    model = client.get_model_metadata("simple", query_params={"test": 1})
    assert model["name"] == "simple"
    assert model["platform"] == "onnxruntime_onnx"
    assert model["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'wrong_model_name' is not found"):
        client.get_model_metadata("wrong_model_name")
    config = client.get_model_config("simple")
    assert config["max_batch_size"] == 8
    index = client.get_model_repository_index()
    assert {"name": "simple", "version": "1", "state": "READY"} in index


def test_statistics_count_what_was_asked(live: Any, client: Any) -> None:
    def counts() -> tuple[int, int]:
        (record,) = client.get_inference_statistics("simple_int8")["model_stats"]
        return record["inference_count"], record["inference_stats"]["success"]["count"]

    before = counts()
    inputs, _ = two_inputs(np.int8, "INT8")
    for _ in range(5):
        client.infer("simple_int8", inputs)
    after = counts()
    assert (after[0] - before[0], after[1] - before[1]) == (5, 5)


def test_classification_of_real_handwriting(live: Any, client: Any, repository_root: Any) -> None:
    """Ten held-out images, by label."""
    held_out = np.load(repository_root / "model_repository" / "digits_heldout.npz")
    images = held_out[held_out.files[0]].astype(np.float32)
    tensor = http.InferInput("IMAGE", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    result = client.infer("digits", [tensor], outputs=[http.InferRequestedOutput("PROBABILITIES", class_count=1)])
    labels = [row[0].decode().split(":")[2] for row in result.as_numpy("PROBABILITIES")]
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert labels == [names[int(digit)] for digit in held_out[held_out.files[1]]]
