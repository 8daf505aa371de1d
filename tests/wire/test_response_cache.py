"""Answers from the response cache, as clients get them: over HTTP, over gRPC, on streams, in shared memory."""

from __future__ import annotations

import queue
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import shared_memory

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def caching(serve: Any, repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("cached") / "models"
    for name in ("simple", "digits", "simple_string"):
        shutil.copytree(repository_root / "model_repository" / name, repository / name)
        with (repository / name / "config.pbtxt").open("a") as file:
            file.write("\nresponse_cache { enable: true }\n")
    with serve(repository, cache_config={"local": {"size": "10000000"}}, allow_client_shm=True) as running:
        yield running


@pytest.fixture(params=list(CLIENTS))
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(caching: Any, protocol: str) -> Iterator[Any]:
    with CLIENTS[protocol].InferenceServerClient(caching.url if protocol == "http" else caching.grpc_url) as client:
        yield client


@pytest.fixture
def numbers() -> np.ndarray:
    """Asked for by no other test."""
    return np.frombuffer(uuid.uuid4().bytes * 4, np.int32).reshape(1, 16) // 4


def pair(protocol: str, numbers: np.ndarray) -> list[Any]:
    tensors = [CLIENTS[protocol].InferInput(f"INPUT{index}", [1, 16], "INT32") for index in range(2)]
    for tensor in tensors:
        tensor.set_data_from_numpy(numbers)
    return tensors


def hits(caching: Any, model: str) -> int:
    (entry,) = caching.run(caching.server.statistics, model)
    return entry.statistics.cache_hit.count


def test_the_same_answer_with_the_id_of_its_own_request(
    caching: Any, client: Any, protocol: str, numbers: np.ndarray
) -> None:
    before = hits(caching, "simple")
    answers = [client.infer("simple", pair(protocol, numbers), request_id=str(index)) for index in range(3)]
    assert hits(caching, "simple") == before + 2
    for index, answer in enumerate(answers):
        response = answer.get_response()
        assert (response["id"] if protocol == "http" else response.id) == str(index)
        assert (answer.as_numpy("OUTPUT0") == 2 * numbers).all()
        assert (answer.as_numpy("OUTPUT1") == 0).all()


def test_what_came_over_one_protocol_is_known_over_the_other(caching: Any, numbers: np.ndarray) -> None:
    before = hits(caching, "simple")
    with tritonclient.http.InferenceServerClient(caching.url) as http:
        http.infer("simple", pair("http", numbers))
    with tritonclient.grpc.InferenceServerClient(caching.grpc_url) as grpc:
        answer = grpc.infer("simple", pair("grpc", numbers))
    assert hits(caching, "simple") == before + 1
    assert answer is not None
    assert (answer.as_numpy("OUTPUT0") == 2 * numbers).all()


def test_strings_and_json(caching: Any, client: Any, protocol: str) -> None:
    texts = np.array([[str(uuid.uuid4().int % 1000).encode() for _ in range(16)]], object)
    module = CLIENTS[protocol]
    tensors = [module.InferInput(f"INPUT{index}", [1, 16], "BYTES") for index in range(2)]
    for tensor in tensors:
        tensor.set_data_from_numpy(texts)
    more = {"binary_data": False} if protocol == "http" else {}
    outputs = [module.InferRequestedOutput("OUTPUT0", **more)]
    before = hits(caching, "simple_string")
    first, second = (client.infer("simple_string", tensors, outputs=outputs) for _ in range(2))
    assert hits(caching, "simple_string") == before + 1
    assert second.as_numpy("OUTPUT0").tolist() == first.as_numpy("OUTPUT0").tolist()


def test_a_classification_is_made_of_what_is_kept(caching: Any, client: Any, protocol: str) -> None:
    """The cache holds the probabilities, whatever was asked for the first time."""
    module = CLIENTS[protocol]
    image = np.random.default_rng().random((1, 8, 8), np.float32) * 16
    tensor = module.InferInput("IMAGE", [1, 8, 8], "FP32")
    tensor.set_data_from_numpy(image)
    before = hits(caching, "digits")
    full = client.infer("digits", [tensor], outputs=[module.InferRequestedOutput("PROBABILITIES")])
    top = client.infer("digits", [tensor], outputs=[module.InferRequestedOutput("PROBABILITIES", class_count=1)])
    assert hits(caching, "digits") == before + 1
    best = int(full.as_numpy("PROBABILITIES").argmax())
    assert top.as_numpy("PROBABILITIES")[0, 0].decode().split(":")[1] == str(best)


def test_a_hit_is_written_to_shared_memory(caching: Any, client: Any, protocol: str, numbers: np.ndarray) -> None:
    client.infer("simple", pair(protocol, numbers))
    name = uuid.uuid4().hex
    handle = shared_memory.create_shared_memory_region(name, f"/trireme-test-{name}", 64)
    try:
        client.register_system_shared_memory(name, f"/trireme-test-{name}", 64)
        outputs = [CLIENTS[protocol].InferRequestedOutput(each) for each in ("OUTPUT0", "OUTPUT1")]
        outputs[0].set_shared_memory(name, 64)
        before = hits(caching, "simple")
        client.infer("simple", pair(protocol, numbers), outputs=outputs)
        assert hits(caching, "simple") == before + 1
        assert (shared_memory.get_contents_as_numpy(handle, np.int32, [1, 16]) == 2 * numbers).all()
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def test_answers_on_a_stream(caching: Any, numbers: np.ndarray) -> None:
    """Each in its turn, whether it was found or made."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    before = hits(caching, "simple")
    with tritonclient.grpc.InferenceServerClient(caching.grpc_url) as client:
        client.infer("simple", pair("grpc", numbers))
        client.start_stream(lambda result, error: answers.put((result, error)))
        asked = [numbers, numbers + 1, numbers, numbers + 2, numbers]
        for index, each in enumerate(asked):
            client.async_stream_infer("simple", pair("grpc", each), request_id=str(index))
        client.stop_stream()
    assert hits(caching, "simple") == before + 3
    for index, each in enumerate(asked):
        result, error = answers.get(timeout=20)
        assert error is None
        assert result.get_response().id == str(index)
        assert (result.as_numpy("OUTPUT0") == 2 * each).all()
