"""`trireme serve` with model control, asked by Triton's own client."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def test_explicit_mode(start_serve: Any, repository: Path) -> None:
    shutil.copytree(repository / "simple", repository / "other")
    (repository / "other" / "config.pbtxt").unlink()
    served = start_serve(f"--model-repository={repository}", "--model-control-mode=explicit", "--load-model=simple")
    http, _ = served.ports()
    with triton.InferenceServerClient(f"127.0.0.1:{http}") as client:
        assert client.get_model_repository_index() == [
            {"name": "other"},
            {"name": "simple", "version": "1", "state": "READY"},
        ]
        client.load_model("other")
        assert client.is_model_ready("other")
        model = (repository / "simple" / "1" / "model.onnx").read_bytes()
        client.load_model("given", config='{"backend":"onnxruntime"}', files={"file:7/model.onnx": model})
        metadata: Any = client.get_model_metadata("given")
        assert metadata["versions"] == ["7"]
        client.unload_model("simple")
        with pytest.raises(InferenceServerException, match="has no available versions"):
            client.get_model_metadata("simple")
        with pytest.raises(InferenceServerException, match="failed to load 'x', failed to poll from model repository"):
            client.load_model("x")
        assert client.is_server_live()


def test_poll_mode(start_serve: Any, repository: Path, tmp_path: Path) -> None:
    served = start_serve(
        f"--model-repository={repository}", "--model-control-mode=poll", "--repository-poll-secs=1", "--log-verbose=0"
    )
    served.ports()
    shutil.copytree(repository / "simple", tmp_path / "late")
    (tmp_path / "late" / "config.pbtxt").unlink()
    (tmp_path / "late").rename(repository / "late")
    served.read_until("successfully loaded 'late'")
    shutil.rmtree(repository / "late")
    served.read_until("successfully unloaded 'late' version 1")
