"""Vertex AI's calls (docs/reference/cloud-front-ends.md#vertex-ai)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from struct import pack, unpack
from typing import Any, cast

import pytest
from cloud_servers import VALUES, CloudReply, CloudServer, ask, connected, fp32, serving_cloud
from http_fakes import FakeServer
from repository_models import link_models

from trireme.actors import InferenceServer
from trireme.api.clouds.vertex_ai import VertexAiApplication, VertexAiOptions, default_model
from trireme.api.http.exchange import Exchange, HttpOptions
from trireme.api.request_parameters import Restriction
from trireme.engine.description import IndexEntry, ModelState
from trireme.engine.errors import InvalidArgumentError

MEDIA = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
PATHS = VertexAiOptions("/predict(/v[12])?", "/health")


def made(server: InferenceServer, **options: Any) -> VertexAiApplication:
    return VertexAiApplication(server, HttpOptions(**options), PATHS, "identity_fp32", lambda: b"nv_page 1\n")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    with serving_cloud(link_models(tmp_path_factory.mktemp("models"), "identity_fp32", "simple"), made) as server:
        yield server


def redirect(live: CloudServer, where: str, body: Any = b"", method: str = "POST", **headers: str) -> CloudReply:
    return live.call(method, "/predict", body, X_Vertex_Ai_Triton_Redirect=where, **headers)


def test_health_tells_readiness(live: CloudServer) -> None:
    reply = live.call("GET", "/health")
    assert (reply.status, reply.media, reply.body) == (200, "text/plain", b"")
    reply = live.call("POST", "/health")
    assert (reply.status, reply.media, reply.error) == (405, "text/plain", "Method Not Allowed")


@pytest.mark.parametrize("path", ["/predict", "/predict/v2", "/predict?x=1"])
def test_predictions_ask_the_default_model(live: CloudServer, path: str) -> None:
    reply = live.call("POST", path, fp32())
    assert (reply.status, reply.json["model_name"], reply.json["outputs"][0]["data"]) == (200, "identity_fp32", VALUES)


@pytest.mark.parametrize("path", ["/", "/predict/", "/predict/v3", "/predictions", "/healthy", "/v2/health/ready"])
def test_paths_match_as_a_whole(live: CloudServer, path: str) -> None:
    reply = live.call("POST", path, fp32())
    assert (reply.status, reply.body) == (400, b"")


def test_other_methods_are_refused(live: CloudServer) -> None:
    reply = live.call("GET", "/predict")
    assert (reply.status, reply.error) == (405, "Method Not Allowed")
    reply = redirect(live, "v2", method="GET")
    assert (reply.status, reply.body) == (405, b"")


def test_tensors_in_binary_come_in_one_form_and_go_in_another(live: CloudServer) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    reply = live.call("POST", "/predict", head + pack("<16f", *VALUES), Content_Type=f"{MEDIA}{len(head)}")
    assert (reply.status, reply.media) == (200, "application/octet-stream")
    length = int(reply.headers["inference-header-content-length"])
    assert list(unpack("<16f", reply.body[length:])) == VALUES
    reply = live.call("POST", "/predict", b"[]", Content_Type=f"{MEDIA}3")
    assert (reply.status, reply.error) == (400, "inference header size should be in range (0, 2), got: 3")


@pytest.mark.parametrize(
    ("where", "member"),
    [
        ("v2", "extensions"),
        ("v2/models/stats", "model_stats"),
        ("v2/models/simple", "platform"),
        ("v2/models/simple/versions/1", "platform"),
        ("v2/models/simple/config", "max_batch_size"),
        ("v2/models/simple/versions/1/stats", "model_stats"),
    ],
)
def test_a_header_asks_for_another_call(live: CloudServer, where: str, member: str) -> None:
    reply = redirect(live, where)
    assert (reply.status, member in reply.json) == (200, True)


def test_it_may_ask_for_health_the_index_and_regions(live: CloudServer) -> None:
    for where in ("v2/health/live", "v2/health/ready", "v2/models/simple/ready"):
        assert (redirect(live, where).status, redirect(live, where).body) == (200, b"")
    assert redirect(live, "v2/models/none/ready").status == 400
    for where in ("v2/repository/index", "v2/repository/any/index"):
        assert [row["name"] for row in redirect(live, where).json] == ["identity_fp32", "simple"]
    for where in ("v2/systemsharedmemory/status", "v2/cudasharedmemory/status"):
        assert redirect(live, where).json == []


def test_it_may_ask_another_model(live: CloudServer) -> None:
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]
    reply = redirect(live, "v2/models/simple/versions/1/infer", {"inputs": inputs})
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2] * 16)
    reply = redirect(live, "v2/models/none/infer", {"inputs": inputs})
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'none' is not found")
    reply = redirect(live, "v2/models/simple/infer", b"[]", Content_Type=f"{MEDIA}3")
    assert reply.status == 400


def test_it_may_ask_for_metrics(live: CloudServer) -> None:
    reply = redirect(live, "metrics")
    assert (reply.status, reply.media, reply.body) == (200, "text/plain", b"nv_page 1\n")


@pytest.mark.parametrize(
    "where",
    [
        *("v2/repository/models/simple/load", "v2/repository/models/simple/unload"),
        *("v2/repository/r/models/simple/load", "v2/cudasharedmemory/unregister"),
        "v2/systemsharedmemory/region/r/register",
    ],
)
def test_it_changes_nothing(live: CloudServer, where: str) -> None:
    reply = redirect(live, where)
    assert (reply.status, reply.body) == (403, b"")


@pytest.mark.parametrize(
    "where",
    [
        *("/v2", "", "v2/", "v2?x", "v2/trace/setting", "v2/logging", "metrics/", "v2/models/simple/unknown"),
        *("v2/models/simple/generate", "v2/models/simple/generate_stream", "v2/models/simple/trace/setting"),
    ],
)
def test_it_leads_nowhere_else(live: CloudServer, where: str) -> None:
    reply = redirect(live, where)
    assert (reply.status, reply.body) == (400, b"")


def test_predictions_alone_need_no_task(tmp_path: Path) -> None:
    """As inferences on the HTTP port; whatever else there is asks the application."""
    asked: list[str] = []

    class Watched(VertexAiApplication):
        async def __call__(self, exchange: Exchange) -> None:
            asked.append(dict(exchange.headers).get(b"x-vertex-ai-triton-redirect", b"").decode())
            await super().__call__(exchange)

    def make(server: InferenceServer) -> VertexAiApplication:
        return Watched(server, HttpOptions(), PATHS, "identity_fp32", None)

    with (
        serving_cloud(link_models(tmp_path / "m", "identity_fp32"), make) as live,
        connected(live.port) as connection,
    ):
        first = "v2/health/ready"  # which always has a task
        assert ask(connection, "POST", "/predict", b"", X_Vertex_Ai_Triton_Redirect=first).status == 200
        assert ask(connection, "POST", "/predict", fp32(), Accept_Encoding="gzip").status == 200
        assert ask(connection, "POST", "/predict?x", b"{").status == 500
        assert asked == [first]
        other = "v2/models/identity_fp32/infer"
        assert ask(connection, "POST", "/predict", fp32(), X_Vertex_Ai_Triton_Redirect=other).status == 200
        assert ask(connection, "POST", "/predict", b"[]", Content_Type=f"x{MEDIA}1").status == 400
        assert asked == [first, other, ""]


def test_restrictions_hold_for_what_is_asked_for(tmp_path: Path) -> None:
    keys = tuple(Restriction((name,), "key", name) for name in ("health", "inference", "metadata"))
    with serving_cloud(link_models(tmp_path / "m", "identity_fp32"), partial(made, restrictions=keys)) as live:
        assert live.call("GET", "/health").status == 403
        assert live.call("POST", "/predict", fp32()).status == 403
        assert redirect(live, "v2", key="inference").status == 403
        assert redirect(live, "v2", key="metadata").status == 200


def test_without_metrics_their_page_is_refused(tmp_path: Path) -> None:
    def make(server: InferenceServer) -> VertexAiApplication:
        return VertexAiApplication(server, HttpOptions(), PATHS, "none", None)

    with serving_cloud(link_models(tmp_path / "m"), make) as live:
        assert redirect(live, "metrics").status == 400


def ready(*rows: str) -> list[IndexEntry]:
    return [IndexEntry(name, version, ModelState.READY) for name, _, version in (row.partition("/") for row in rows)]


def test_the_default_model_is_the_one_named_or_the_only_one() -> None:
    assert default_model("", ready("a/1")) == "a"
    assert default_model("b", ready("a/1", "b/1", "b/2")) == "b"
    for index in ((), ("a/1", "a/2"), ("a/1", "b/1")):
        with pytest.raises(InvalidArgumentError, match=r"^Expect the model repository contains only a "):
            default_model("", ready(*index))
    with pytest.raises(InvalidArgumentError, match=r"^Expect the default model 'c' is loaded$"):
        default_model("c", ready("a/1"))


@pytest.mark.parametrize(
    ("predict", "health", "error"),
    [
        ("", "", "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        ("/p", "", "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
        ("/p(", "/h", r"AIP_PREDICT_ROUTE is no regular expression: /p\(: missing \): /p\("),
    ],
)
def test_both_paths_are_needed(predict: str, health: str, error: str) -> None:
    server = cast("InferenceServer", FakeServer())
    with pytest.raises(InvalidArgumentError, match=f"^{error}"):
        VertexAiApplication(server, HttpOptions(), VertexAiOptions(predict, health), "m", None)
