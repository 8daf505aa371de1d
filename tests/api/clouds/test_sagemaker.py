"""SageMaker's calls of a server with one model (docs/reference/cloud-front-ends.md#sagemaker)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest
from cloud_servers import VALUES, CloudServer, ask, connected, fp32, serving_cloud
from repository_models import link_models

from trireme.actors import InferenceServer
from trireme.api.clouds.hosted_models import HostedModels
from trireme.api.clouds.sagemaker import SageMakerApplication, SageMakerOptions, failed
from trireme.api.http.exchange import Exchange, HttpOptions
from trireme.api.request_parameters import Restriction
from trireme.engine.errors import InternalError

MEDIA = "application/vnd.sagemaker-triton.binary+json;json-header-size="
DEFAULT = SageMakerOptions(default_model="identity_fp32")


def made(server: InferenceServer, platform: SageMakerOptions = DEFAULT, **options: Any) -> SageMakerApplication:
    return SageMakerApplication(server, HttpOptions(**options), platform, HostedModels(server))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    models = link_models(tmp_path_factory.mktemp("models"), "identity_fp32", "repeat_int32")
    with serving_cloud(models, made) as server:
        yield server


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    """Each category has its key; no body may be larger than 2,000 bytes; what is invoked generates."""
    models = link_models(tmp_path_factory.mktemp("models"), "identity_fp32")
    names = ("health", "inference", "model-repository")
    keys = tuple(Restriction((name,), "key", name) for name in names)
    platform = SageMakerOptions("live", "identity_fp32", "generate")
    with serving_cloud(
        models, lambda server: made(server, platform, restrictions=keys, max_input_bytes=2_000)
    ) as server:
        yield server


def test_ping_tells_readiness(live: CloudServer) -> None:
    reply = live.call("GET", "/ping")
    assert (reply.status, reply.media, reply.body) == (200, "text/plain", b"")
    reply = live.call("POST", "/ping")
    assert (reply.status, reply.media, reply.error) == (405, "text/plain", "Method Not Allowed")


def test_invocations_ask_the_default_model(live: CloudServer) -> None:
    reply = live.call("POST", "/invocations", fp32(id="7"))
    assert (reply.status, reply.media) == (200, "application/json")
    assert (reply.json["model_name"], reply.json["id"]) == ("identity_fp32", "7")
    assert reply.json["outputs"][0]["data"] == VALUES
    reply = live.call("GET", "/invocations")
    assert (reply.status, reply.media, reply.error) == (405, "text/plain", "Method Not Allowed")


def test_they_are_counted_as_inferences(live: CloudServer) -> None:
    def counted() -> int:
        (entry,) = live.run(live.server.statistics, "identity_fp32")
        return entry.statistics.inference_count

    before = counted()
    assert live.call("POST", "/invocations", fp32()).status == 200
    assert counted() == before + 1


def test_tensors_in_binary_are_announced_by_the_content_type(live: CloudServer) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    reply = live.call("POST", "/invocations", head + pack("<16f", *VALUES), Content_Type=f"{MEDIA}{len(head)}")
    assert reply.status == 200, reply.body
    assert reply.media.startswith(MEDIA)
    assert "inference-header-content-length" not in reply.headers
    length = int(reply.media.removeprefix(MEDIA))
    assert json.loads(reply.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 64}
    assert list(unpack("<16f", reply.body[length:])) == VALUES


def test_a_body_without_json_is_one_tensor(live: CloudServer) -> None:
    reply = live.call("POST", "/invocations", pack("<16f", *VALUES), Content_Type=f"{MEDIA}0")
    assert (reply.status, reply.media[: len(MEDIA)]) == (200, MEDIA)
    assert list(unpack("<16f", reply.body[-64:])) == VALUES


@pytest.mark.parametrize(
    ("media", "error"),
    [
        (
            f"text/plain, {MEDIA}5",
            f"expect MIME type for binary data starts with '{MEDIA}', got: text/plain, {MEDIA}5",
        ),
        (f"{MEDIA}x", "Unable to parse inference header size, got: x"),
        (
            f"{MEDIA}99999999999",
            "Unable to parse inference header size, value is out of range, got: 99999999999",
        ),
        (f"{MEDIA}-1", "inference header size should be in range (0, 10), got: -1"),
        (f"{MEDIA}11", "inference header size should be in range (0, 10), got: 11"),
    ],
)
def test_a_content_type_that_says_something_else_is_refused(live: CloudServer, media: str, error: str) -> None:
    reply = live.call("POST", "/invocations", b"0123456789", Content_Type=media)
    assert (reply.status, reply.error) == (400, error)


def test_headers_of_the_http_front_end_mean_nothing_here(live: CloudServer) -> None:
    """Neither the other header for binary tensors, nor compression in either direction."""
    reply = live.call(
        "POST",
        "/invocations",
        fp32(),
        Inference_Header_Content_Length="3",
        Content_Encoding="gzip",
        Accept_Encoding="gzip",
    )
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, VALUES)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"{", 500, "failed to parse the request JSON buffer"),
        (fp32([1.0]), 400, "unexpected shape for input 'INPUT0' for model 'identity_fp32'"),
        ({"inputs": []}, 400, "expected 1 inputs but got 0 inputs for model 'identity_fp32'"),
    ],
)
def test_refusals_are_those_of_the_http_front_end(live: CloudServer, body: Any, status: int, error: str) -> None:
    reply = live.call("POST", "/invocations", body)
    assert (reply.status, error in reply.error) == (status, True), reply.body


def test_without_a_default_model_its_name_says_so(tmp_path: Path) -> None:
    with serving_cloud(link_models(tmp_path / "models"), lambda server: made(server, SageMakerOptions())) as live:
        reply = live.call("POST", "/invocations", fp32())
        unspecified = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
        assert (reply.status, reply.error) == (404, f"Request for unknown model: '{unspecified}' is not found")
        assert live.call("GET", "/ping").status == 200


@pytest.mark.parametrize("path", ["/", "/v2", "/v2/health/ready", "/v2/models/identity_fp32/infer", "/ping/", "/model"])
def test_no_other_path_leads_anywhere(live: CloudServer, path: str) -> None:
    for method in ("GET", "POST"):
        reply = live.call(method, path, b"")
        assert (reply.status, reply.media, reply.body) == (400, "text/plain", b"")


def test_invocations_need_no_task(tmp_path: Path) -> None:
    """As inferences on the HTTP port, with tensors in binary, too."""
    asked: list[bytes] = []

    class Watched(SageMakerApplication):
        async def __call__(self, exchange: Exchange) -> None:
            asked.append(exchange.path)
            await super().__call__(exchange)

    def make(server: InferenceServer) -> SageMakerApplication:
        return Watched(server, HttpOptions(), DEFAULT, HostedModels(server))

    with (
        serving_cloud(link_models(tmp_path / "models", "identity_fp32"), make) as live,
        connected(live.port) as connection,
    ):
        assert ask(connection, "GET", "/ping").status == 200, "the first one of a connection always has a task"
        reply = ask(connection, "POST", "/invocations", pack("<16f", *VALUES), Content_Type=f"{MEDIA}0")
        assert (reply.status, reply.media[: len(MEDIA)]) == (200, MEDIA)
        reply = ask(connection, "POST", "/invocations", b"0123", Content_Type=f"{MEDIA}5")
        assert (reply.status, reply.error) == (400, "inference header size should be in range (0, 4), got: 5")
        assert ask(connection, "POST", "/models/a/invoke", fp32()).status == 404
        assert asked == [b"/ping", b"/models/a/invoke"]


def test_restrictions_hold(restricted: CloudServer) -> None:
    calls = (("GET", "/ping", "health"), ("POST", "/invocations", "inference"), ("GET", "/models", "model-repository"))
    for method, path, category in (*calls, ("POST", "/models/a/invoke", "inference")):
        refused = restricted.call(method, path, b"")
        assert (refused.status, refused.error) == (403, "This API is restricted, expecting header 'key'")
        assert restricted.call(method, path, b"", key=category).status != 403


def test_sizes_are_bounded(restricted: CloudServer) -> None:
    reply = restricted.call("POST", "/invocations", b" " * 2_001, key="inference")
    assert (reply.status, "Use --http-max-input-size" in reply.error) == (413, True)


def test_invocations_may_generate(restricted: CloudServer) -> None:
    """The model has no text to give; its shape is refused in the words of that call."""
    reply = restricted.call("POST", "/invocations", {"INPUT0": VALUES}, key="inference")
    assert (reply.status, reply.json) == (200, {"model_name": "identity_fp32", "model_version": "1", "OUTPUT0": VALUES})


def test_a_failure_for_want_of_memory_has_a_status_of_its_own() -> None:
    texts = ("CUDA out of memory. Tried to allocate", "MemoryError: ", "write: No space left on device", "bad input")
    assert [failed(InternalError(text), b"").status for text in texts] == [507, 507, 507, 400]
