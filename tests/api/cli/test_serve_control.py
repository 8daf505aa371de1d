"""`trireme serve` with model control, asked by Triton's own client."""

from __future__ import annotations

import shutil
import signal
import threading
import urllib.request
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


def test_namespaces(start_serve: Any, repository: Path, tmp_path: Path) -> None:
    """Equal names in two repositories: without namespaces an error at start, with them told apart by their metrics."""
    second = tmp_path / "second"
    shutil.copytree(repository, second)
    shutil.copytree(repository / "simple", second / "other")
    (second / "other" / "config.pbtxt").unlink()
    places = (f"--model-repository={repository}", f"--model-repository={second}")
    refused = start_serve(*places)
    assert refused.wait() == 1
    assert "failed to poll model 'simple': not unique across all model repositories" in refused.stdout + refused.stderr
    served = start_serve(*places, "--model-namespacing=true", "--model-load-retry-count=1")
    http, metrics = served.ports()
    assert "no effect" not in served.stdout
    assert f"successfully loaded '{repository}::simple'" in served.stdout
    with triton.InferenceServerClient(f"127.0.0.1:{http}") as client:
        assert client.is_server_ready()
        assert client.is_model_ready("other")
        text = "There are 2 identifiers of model 'simple' in global map, model namespace must be provided to resolve"
        with pytest.raises(InferenceServerException, match=text):
            client.get_model_metadata("simple")
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
        text = answer.read().decode()
    for place in (repository, second):
        assert f'nv_inference_count{{model="simple",namespace="{place}",version="1"}} 0' in text


def test_a_load_that_fails_is_tried_again(start_serve: Any, repository: Path) -> None:
    (repository / "simple" / "1" / "model.onnx").write_bytes(b"no model")
    served = start_serve(f"--model-repository={repository}", "--model-load-retry-count=2")
    assert served.wait() == 1
    output = served.stdout + served.stderr
    assert output.count("trying again") == 2
    assert "error: creating server: Internal - failed to load all models" in output


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


def test_what_a_killed_server_left_behind_is_removed(
    start_serve: Any, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what one that still runs uses is not."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    flags = (f"--model-repository={repository}", "--model-control-mode=explicit")
    model = (repository / "simple" / "1" / "model.onnx").read_bytes()
    running, killed = start_serve(*flags), start_serve(*flags)
    left = set[Path]()
    for served in (running, killed):
        http, _ = served.ports()
        with triton.InferenceServerClient(f"127.0.0.1:{http}") as client:
            client.load_model("given", config='{"backend":"onnxruntime"}', files={"file:1/model.onnx": model})
        left = set(temporary.glob("trireme-*")) - left
    killed.process.kill()
    killed.wait()
    start_serve(*flags).ports()
    assert [path.exists() for path in left] == [False]
    assert len(list(temporary.glob("trireme-*"))) == 1


HANGS = """
import time

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print("it hangs", flush=True)
        time.sleep(1000)

    def execute(self, requests): ...
"""


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_a_signal_ends_a_load_that_hangs(start_serve: Any, tmp_path: Path, mode: str) -> None:
    """Neither the model's limit nor the exit timeout, which are longer than this test waits, is waited for."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").write_text(HANGS)
    flags = (f"--model-repository={tmp_path / 'models'}", f"--model-control-mode={mode}", "--exit-timeout-secs=600")
    served = start_serve(*flags)
    answers: list[str] = []

    def load(port: int) -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=600) as client:
            try:
                client.load_model("m")
            except InferenceServerException as error:
                answers.append(error.message())

    caller = None
    if mode == "explicit":
        caller = threading.Thread(target=load, args=served.ports()[:1])
        caller.start()
    served.read_until("it hangs")
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    if caller is not None:
        caller.join()
        assert answers == ["Server is stopping, models are not loaded or unloaded any more"]
