"""SageMaker's calls of a server with several models (docs/reference/cloud-front-ends.md#several-models)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import VALUES, CloudReply, CloudServer, fp32, serving_cloud
from repository_models import REPOSITORY

from trireme.actors import InferenceServer
from trireme.api.clouds.hosted_models import HostedModels, model_path
from trireme.api.clouds.sagemaker import SageMakerApplication, SageMakerOptions
from trireme.api.http.exchange import HttpOptions
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.options import ControlMode

TARGET = "identity.tar.gz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the platform puts models: `plain` is one, `nested` has one in a directory of its own."""
    root = tmp_path / "opt" / "models"
    shutil.copytree(REPOSITORY / "identity_fp32", root / "plain" / "model")
    shutil.copytree(REPOSITORY / "identity_fp32", root / "nested" / "model" / "identity_fp32")
    return root


@pytest.fixture
def live(root: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CloudServer]:
    (tmp_path / "empty").mkdir()

    def make(server: InferenceServer) -> SageMakerApplication:
        return SageMakerApplication(server, HttpOptions(), SageMakerOptions(), HostedModels(server, root))

    namespacing = getattr(request, "param", True)
    mode = ControlMode.EXPLICIT
    with serving_cloud(tmp_path / "empty", make, model_control_mode=mode, model_namespacing=namespacing) as server:
        yield server


def load(live: CloudServer, name: str, path: Path, **headers: str) -> CloudReply:
    return live.call("POST", "/models", {"model_name": name, "url": str(path)}, **headers)


@pytest.mark.parametrize("header", [TARGET, "another", None])
def test_a_model_is_loaded_invoked_and_unloaded(live: CloudServer, root: Path, header: str | None) -> None:
    """Under the name that the header says, whatever its directory and its configuration are called; what is unloaded is
    what was loaded, whatever it says then."""
    target = {"X_Amzn_SageMaker_Target_Model": TARGET}
    assert live.call("GET", "/models").json == {"models": []}
    reply = load(live, "h1", root / "plain" / "model", **target)
    assert (reply.status, reply.body) == (200, b"")
    row = {"modelName": "h1", "modelUrl": str(root / "plain")}
    reply = live.call("GET", "/models/")
    assert (reply.status, reply.media, reply.json) == (200, "text/plain", {"models": [row]})
    assert live.call("GET", "/models/h1").json == live.call("GET", "/models/h1/invoke").json == row
    reply = live.call("POST", "/models/h1/invoke", fp32(), **target)
    assert (reply.status, reply.json["model_name"], reply.json["outputs"][0]["data"]) == (200, TARGET, VALUES)
    reply = live.call("DELETE", "/models/h1", **({"X_Amzn_SageMaker_Target_Model": header} if header else {}))
    assert (reply.status, reply.body) == (200, b"")
    assert live.call("GET", "/models").json == {"models": []}
    assert live.run(live.server.repository_index, True) == []
    assert load(live, "h1", root / "plain" / "model", **target).status == 200, "it can be loaded again"


def test_of_two_models_of_one_name_one_is_unloaded(live: CloudServer, root: Path) -> None:
    """They are told apart by their repositories. Meanwhile neither can be invoked by that name."""
    target = {"X_Amzn_SageMaker_Target_Model": TARGET}
    for name in ("plain", "nested"):
        assert load(live, name, root / name / "model", **target).status == 200
    reply = live.call("POST", "/models/plain/invoke", fp32(), **target)
    assert (reply.status, reply.error[:27]) == (400, "There are 2 identifiers of ")
    assert live.call("DELETE", "/models/plain", **target).status == 200
    (row,) = live.call("GET", "/models").json["models"]
    assert row["modelName"] == "nested"
    assert live.call("POST", "/models/nested/invoke", fp32(), **target).json["outputs"][0]["data"] == VALUES


@pytest.mark.parametrize(("name", "model"), [("a/b", "m"), ("a", "m/n"), ("", "m")])
def test_a_name_that_no_path_can_say_is_refused(live: CloudServer, root: Path, name: str, model: str) -> None:
    reply = load(live, name, root / "plain" / "model", X_Amzn_SageMaker_Target_Model=model)
    wrong = model if "/" in model else name
    text = f"the name of a model must not be empty, or have a slash in it, got: '{wrong}'"
    assert (reply.status, reply.error) == (400, text)
    assert live.call("GET", "/models").json == {"models": []}


@pytest.mark.parametrize("live", [True, False], indirect=True, ids=["namespaces", "one name each"])
def test_without_the_header_the_platforms_name_counts(live: CloudServer, root: Path) -> None:
    for name in ("plain", "nested"):
        assert load(live, name, root / name / "model").status == 200
        assert live.call("POST", f"/models/{name}/invoke", fp32()).json["model_name"] == name
    names = [row["modelName"] for row in live.call("GET", "/models").json["models"]]
    assert names == ["plain", "nested"]
    assert live.call("GET", "/models/nested").json["modelUrl"] == str(root / "nested" / "model")
    assert live.call("DELETE", "/models/plain/invoke").status == 200
    assert live.call("POST", "/models/plain/invoke", fp32()).status == 404
    assert live.call("POST", "/models/nested/invoke", fp32()).status == 200


def test_of_several_directories_the_ensemble_is_meant(live: CloudServer, root: Path) -> None:
    model = root / "pipe" / "model"
    for name in ("digits", "digits_decode", "digits_label", "digits_pipeline"):
        shutil.copytree(REPOSITORY / name, model / name)
    (model / "a_last").mkdir()
    reply = load(live, "pipe", model)
    assert (reply.status, reply.body) == (200, b"")
    ready = {entry.name for entry in live.run(live.server.repository_index, True)}
    assert "pipe" in ready
    assert "digits_pipeline" not in ready
    assert live.call("DELETE", "/models/pipe").status == 200
    assert live.run(live.server.repository_index, True) == [], "its members are unloaded, too"


def test_what_is_not_there_is_not_found(live: CloudServer) -> None:
    for call in ("GET /models/x", "POST /models/x/invoke", "DELETE /models/x", "DELETE /models"):
        method, path = call.split()
        reply = live.call(method, path, b"")
        assert (reply.status, reply.body) == (404, b"")
    assert live.call("PUT", "/models/x", b"").status == 400


def test_a_name_and_a_path_can_be_taken_once(live: CloudServer, root: Path) -> None:
    assert load(live, "a", root / "plain" / "model").status == 200
    reply = load(live, "b", root / "plain" / "model")
    path = root / "plain"
    assert (reply.status, reply.error) == (409, f"model repository '{path}' has already been registered")
    reply = load(live, "a", root / "nested" / "model")
    assert (reply.status, reply.error) == (409, "model 'a' has already been loaded")
    assert [row["modelName"] for row in live.call("GET", "/models").json["models"]] == ["a"]


@pytest.mark.parametrize("live", [False], indirect=True, ids=["one name each"])
def test_without_namespaces_two_models_of_one_name_are_refused(live: CloudServer, root: Path) -> None:
    target = {"X_Amzn_SageMaker_Target_Model": TARGET}
    assert load(live, "a", root / "plain" / "model", **target).status == 200
    reply = load(live, "b", root / "nested" / "model", **target)
    text = f"failed to register '{TARGET}', there is a conflicting mapping for '{TARGET}'"
    assert (reply.status, reply.error) == (409, text)


def test_a_model_that_does_not_load_leaves_nothing_behind(live: CloudServer, root: Path) -> None:
    weights = next((root / "plain" / "model" / "1").glob("model.onnx"))
    whole = weights.read_bytes()
    weights.write_bytes(b"no model")
    reply = load(live, "a", root / "plain" / "model")
    assert (reply.status, reply.error[:54]) == (400, "load failed for model 'a': version 1 is at UNAVAILABLE")
    assert live.call("GET", "/models/a").status == 404
    weights.write_bytes(whole)
    assert load(live, "a", root / "plain" / "model").status == 200


def test_paths_that_are_none_of_models_are_refused(live: CloudServer, root: Path) -> None:
    reply = load(live, "a", root / "nothing" / "model")
    text = f"failed to register '{root / 'nothing' / 'model'}', repository not found"
    assert (reply.status, reply.error) == (400, text)
    reply = load(live, "a", Path("/proc/self"))
    assert (reply.status, reply.body) == (400, b"")
    (root / "empty" / "model").mkdir(parents=True)
    reply = load(live, "a", root / "empty" / "model")
    assert (reply.status, reply.error) == (400, "failed to load 'a', failed to poll from model repository")


def test_a_name_that_is_no_text_is_refused(live: CloudServer, root: Path) -> None:
    """Nothing can tell of it: it would be in the index that other clients ask for."""
    reply = load(live, "a", root / "plain" / "model", X_Amzn_SageMaker_Target_Model="\xff")  # one byte, in Latin-1
    assert (reply.status, reply.error) == (400, r"the name of a model must be in UTF-8, got: '\udcff'")
    assert live.run(live.server.repository_index) == []
    reply = load(live, "a", root / "plain" / "model", X_Amzn_SageMaker_Target_Model="\xc3\xa9")
    assert (reply.status, reply.body) == (200, b"")
    assert [entry.name for entry in live.run(live.server.repository_index, True)] == ["\xe9"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", "failed to parse the request JSON buffer"),
        ({"model_name": 5}, "attempt to access JSON non-string as string"),
        ({"url": []}, "attempt to access JSON non-string as string"),
        ({}, "Invalid \"url\" ''"),
        (b"", "Invalid \"url\" ''"),
    ],
)
def test_a_load_request_that_says_something_else_is_refused(live: CloudServer, body: Any, error: str) -> None:
    reply = live.call("POST", "/models", body)
    assert (reply.status, error in reply.error) == (400, True), reply.body


def test_whatever_is_wrong_with_an_invocation_is_a_bad_request(live: CloudServer, root: Path) -> None:
    assert load(live, "a", root / "plain" / "model").status == 200
    for body, headers in ((b"{", {}), (fp32(), {"X_Amzn_SageMaker_Target_Model": "b"}), (fp32([1.0]), {})):
        reply = live.call("POST", "/models/a/invoke", body, **headers)
        assert (reply.status, reply.media) == (400, "application/json"), reply.body
        assert reply.error
    reply = live.call("POST", "/models/a/invoke", b" " * 100_000, X_Amzn_SageMaker_Target_Model="b")
    assert (reply.status, reply.error) == (400, "Request for unknown model: 'b' is not found")


def test_executions_that_fail_are_bad_requests_or_lack_memory(live: CloudServer, root: Path) -> None:
    model = root / "broken" / "model"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 0\n'
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] }\n'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n'
    )
    (model / "1" / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        text = str(pb_utils.get_input_tensor_by_name(requests[0], 'INPUT0').as_numpy()[0, 0])\n"
        "        words = 'out of memory' if text == '7.0' else 'no idea'\n"
        "        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(words)) for _ in requests]\n"
    )
    assert load(live, "broken", model).status == 200
    for value, status, text in ((0.0, 400, "no idea"), (7.0, 507, "out of memory")):
        reply = live.call("POST", "/models/broken/invoke", fp32([value]))
        assert (reply.status, reply.media, reply.error) == (status, "text/plain", text)


ROOT = Path("/opt/ml/models")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/opt/ml/models/h/model", "h/model"),
        ("/opt/ml/models/h/./x/../model/", "h/model"),
        ("/opt/ml/models/h.1_A/model/sub", "h.1_A/model/sub"),
    ],
)
def test_paths_of_models_are_normalised(url: str, path: str) -> None:
    assert model_path(url, ROOT) == ROOT / path


@pytest.mark.parametrize(
    "url",
    [
        *("", "/", "/opt/ml/models", "/opt/ml/models/h", "/opt/ml/models/h/other", "/opt/ml/models/a b/model"),
        *("/opt/ml/models/h/model/a/b", "/opt/ml/models/../x/model", "/opt/ml/models/h/model/..", "/etc/h/model"),
        *("/dev/h/model", "/proc/1/model", "/sys/x/model"),
    ],
)
def test_other_paths_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        model_path(url, ROOT)
