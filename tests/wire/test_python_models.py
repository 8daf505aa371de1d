"""Python models over the wire: as clients of Triton use them, and curl."""

from __future__ import annotations

import json
import os
import queue
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from calling_models import DECOUPLED, HEAD, REPEAT
from python_models import child_processes, write_model
from tritonclient.utils import InferenceServerException

DEADLY = (
    HEAD
    + """
        def execute(self, requests):
            if value_of(requests[0]) < 0:
                os._exit(1)
            return [response(*request.inputs()[0].as_numpy()[0]) for request in requests]
"""
)


@pytest.fixture(scope="module")
def strangers() -> set[int]:
    """Processes of other servers."""
    return child_processes()


@pytest.fixture(scope="module")
def server(strangers: set[int], tmp_path_factory: pytest.TempPathFactory, serve: Any) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "identity", DEADLY)
    write_model(repository, "repeat", REPEAT, DECOUPLED)
    with serve(repository) as live:
        yield live


def infer(client: Any, library: Any, model: str, values: np.ndarray) -> np.ndarray:
    tensor = library.InferInput("INPUT0", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    return client.infer(model, [tensor]).as_numpy("OUTPUT0")


@pytest.mark.parametrize("elements", [16, 1 << 20])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_answers(server: Any, protocol: str, elements: int) -> None:
    library, url = (http_client, server.url) if protocol == "http" else (grpc_client, server.grpc_url)
    values = np.arange(elements, dtype=np.float32)[None]
    with library.InferenceServerClient(url) as client:
        np.testing.assert_array_equal(infer(client, library, "identity", values), values)


def test_a_death_is_an_error_of_status_500_and_the_next_request_is_answered(server: Any) -> None:
    values = np.full((1, 4), -1, np.float32)
    with http_client.InferenceServerClient(server.url) as client:
        with pytest.raises(InferenceServerException, match="Stub process 'identity_0' is not healthy") as caught:
            infer(client, http_client, "identity", values)
        assert "500" in str(caught.value.status())
        np.testing.assert_array_equal(infer(client, http_client, "identity", -values), -values)


def test_responses_stream_over_grpc(server: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue(100)
    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        tensor = grpc_client.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[30]], np.float32))
        client.async_stream_infer("repeat", [tensor], enable_empty_final_response=True)
        results = [answers.get(timeout=30) for _ in range(31)]
        assert [float(result.as_numpy("OUTPUT0")[0, 0]) for result in results[:-1]] == list(range(30))
        assert results[-1].get_response().parameters["triton_final_response"].bool_param


def test_responses_stream_over_http(server: Any) -> None:
    body = json.dumps({"INPUT0": [3.0]}).encode()
    url = f"http://{server.url}/v2/models/repeat/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as reply:
        events = [json.loads(line[6:]) for line in reply.read().decode().splitlines() if line.startswith("data: ")]
    assert [event["OUTPUT0"] for event in events] == [0, 1, 2]


def test_the_server_does_not_notice_that_idle_processes_are_killed(server: Any, strangers: set[int]) -> None:
    for pid in child_processes() - strangers:
        os.kill(pid, signal.SIGKILL)
    values = np.ones((1, 4), np.float32)
    with http_client.InferenceServerClient(server.url) as client:
        assert client.is_server_live()
        try:
            infer(client, http_client, "identity", values)  # what comes before the death is noticed dies with it
        except InferenceServerException as error:
            assert "is not healthy" in str(error)  # noqa: PT017
        np.testing.assert_array_equal(infer(client, http_client, "identity", values), values)


CLIENTS = ("trireme-test-", "trireme-soak-")
"""How names begin of segments that clients make, of other tests too, which may run at the same time."""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="this system shows its segments elsewhere")
def test_nothing_is_left_in_shared_memory() -> None:
    assert not [name for name in os.listdir("/dev/shm") if "trireme" in name and not name.startswith(CLIENTS)]
