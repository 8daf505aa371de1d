"""The calls of Triton's model-control example clients, over HTTP and gRPC, with their checks."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from trireme.engine.options import ControlMode


@pytest.fixture(params=[http, grpc], ids=["http", "grpc"])
def client(request: Any, tmp_path: Path, serve: Callable[..., Any], repository_root: Path) -> Iterator[Any]:
    """Of a server in explicit mode, whose repository has ``simple`` and ``simple_string``, neither of them loaded."""
    for model in ("simple", "simple_string"):
        shutil.copytree(repository_root / "model_repository" / model, tmp_path / model)
    with serve(tmp_path, model_control_mode=ControlMode.EXPLICIT) as live:
        url = live.url if request.param is http else live.grpc_url
        with request.param.InferenceServerClient(url) as opened:
            yield opened


def rows(client: Any) -> list[dict[str, str]]:
    """The index, in the form that HTTP has."""
    index = client.get_model_repository_index()
    if isinstance(index, list):
        return index
    fields = ("name", "version", "state", "reason")
    return [{name: getattr(row, name) for name in fields if getattr(row, name)} for row in index.models]


def max_batch_size(client: Any, model: str) -> int:
    config = client.get_model_config(model)
    return config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size


def test_load_override_unload(client: Any) -> None:
    """``simple_http_model_control.py``, ``simple_grpc_model_control.py``."""
    assert [row["name"] for row in rows(client)] == ["simple", "simple_string"]
    client.load_model("simple")
    assert client.is_model_ready("simple")
    assert max_batch_size(client, "simple") == 8
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("simple", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
    assert "failed to load" in caught.value.message()
    assert client.is_model_ready("simple")
    client.load_model("simple", config='{"max_batch_size":"16"}')
    assert client.is_model_ready("simple")
    assert max_batch_size(client, "simple") == 16
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("wrong_model_name")
    assert caught.value.message() == "failed to load 'wrong_model_name', failed to poll from model repository"


def test_the_index_tells_what_became_of_a_model(client: Any) -> None:
    client.load_model("simple_string")
    assert rows(client) == [{"name": "simple"}, {"name": "simple_string", "version": "1", "state": "READY"}]
    client.unload_model("simple_string", unload_dependents=True)
    row = rows(client)[1]
    while row["state"] == "UNLOADING":
        row = rows(client)[1]
    assert row == {"name": "simple_string", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}


def test_a_model_whose_files_come_with_the_request(client: Any, repository_root: Path) -> None:
    """As the clients of Triton's own tests do it: files need a configuration, which may be all but empty."""
    model = (repository_root / "model_repository" / "simple" / "1" / "model.onnx").read_bytes()
    with pytest.raises(InferenceServerException, match="failed to load 'given', failed to poll from model repository"):
        client.load_model("given", files={"file:1/model.onnx": model})
    client.load_model("given", config='{"backend":"onnxruntime"}', files={"file:3/model.onnx": model})
    assert client.is_model_ready("given", "3")
    assert "given" not in [row["name"] for row in rows(client)]


def test_headers_and_parameters_as_bare_http(client: Any) -> None:
    """What the Python client sends could come from anywhere: the same request, written out."""
    if not isinstance(client, http.InferenceServerClient):
        client.load_model("simple", headers={"x": "y"}, client_timeout=20)
        assert client.is_model_ready("simple")
        return
    content = base64.b64encode(b"nonsense").decode()
    body = json.dumps({"parameters": {"config": '{"backend":"onnxruntime"}', "file:1/model.onnx": content}})
    answer = client._post("v2/repository/models/given/load", body, None, None)
    assert answer.status_code == 400
    assert b"load failed for model 'given': version 1 is at UNAVAILABLE state: " in answer.read()
