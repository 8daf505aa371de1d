"""One server, every framework: the digits network gives the same answers whatever runs it, over HTTP and over gRPC."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

TWINS = ("digits_exported", "digits_numpy", "digits_openvino", "digits_savedmodel", "digits_torchscript")


@pytest.fixture(scope="module")
def twins(serve: Any, repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server on what the script writes; made in a process of its own, as users do."""
    repository = tmp_path_factory.mktemp("frameworks")
    script = repository_root / "framework_repository" / "make_digits_twins.py"
    subprocess.run([sys.executable, "-B", script, repository], check=True, capture_output=True)
    with serve(repository) as server:
        yield server


@pytest.fixture(scope="module")
def held_out(repository_root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images FP32 [10, 8, 8], and what ONNX Runtime makes of them: FP32 [10, 10]."""
    import onnxruntime

    with np.load(repository_root / "model_repository" / "digits_heldout.npz") as stored:
        images = stored["images"].astype(np.float32)
    session = onnxruntime.InferenceSession(repository_root / "model_repository" / "digits" / "1" / "model.onnx")
    expected: Any = session.run(["PROBABILITIES"], {"IMAGE": images})[0]
    return images, expected


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_twin_answers_alike(twins: Any, held_out: Any, twin: str, protocol: str) -> None:
    images, expected = held_out
    kind: Any = {"http": http, "grpc": grpc}[protocol]
    with kind.InferenceServerClient(twins.url if protocol == "http" else twins.grpc_url) as client:
        more = {"as_json": True} if protocol == "grpc" else {}
        metadata = client.get_model_metadata(twin, **more)
        ((given,), (made,)) = metadata["inputs"], metadata["outputs"]
        tensor = kind.InferInput(given["name"], images.shape, "FP32")
        tensor.set_data_from_numpy(images)
        probabilities = client.infer(twin, [tensor]).as_numpy(made["name"])
        asked = [kind.InferRequestedOutput(made["name"], class_count=1)]
        labels = client.infer(twin, [tensor], outputs=asked).as_numpy(made["name"])
    # OpenVINO computes with fewer bits where the processor has units for that.
    np.testing.assert_allclose(probabilities, expected, atol=0.02 if twin == "digits_openvino" else 1e-5)
    best = [text.decode().split(":")[2] for text in labels.ravel()]
    assert best == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def test_all_of_them_are_ready(twins: Any) -> None:
    with http.InferenceServerClient(twins.url) as client:
        index = client.get_model_repository_index()
    assert sorted((model["name"], model["state"]) for model in index) == [(name, "READY") for name in TWINS]
