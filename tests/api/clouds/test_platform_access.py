"""Access rules at the ports for cloud platforms, and at that for metrics."""

from __future__ import annotations

from typing import Any, cast

import pytest
from http_fakes import FakeExchange, FakeServer, HttpReply
from ruled_server import key_of, rules_text

from trireme.actors.access_gate import LocalAccess
from trireme.api.access import AccessChecks
from trireme.api.clouds.hosted_models import HostedModels
from trireme.api.clouds.sagemaker import SageMakerApplication, SageMakerOptions
from trireme.api.clouds.vertex_ai import VertexAiApplication, VertexAiOptions
from trireme.api.http.exchange import HttpOptions
from trireme.api.metrics.collector import MetricsApplication
from trireme.engine.access.control import AccessControl
from trireme.engine.access.rules import read_rules
from trireme.engine.clock import SystemClock

RULES = rules_text(
    infers='infer = ["identity"]',
    reader='read = ["*"]',
    partly='read = ["i*"]\nmanage = ["i*"]',
    keeper='manage = ["*"]',
)
INFER = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'


@pytest.fixture
def server() -> Any:
    server = FakeServer()
    server.access = LocalAccess(AccessControl(read_rules(RULES, "rules"), bytes(32), 0.0), SystemClock())
    return cast(Any, server)


async def status(application: Any, method: str, path: str, caller: str, body: bytes = b"", **headers: str) -> int:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    exchange = FakeExchange(method, path, [body], given | ({"X-API-Key": key_of(caller)} if caller else {}))
    await application(exchange)
    return HttpReply(exchange).status


async def test_sagemaker(server: Any) -> None:
    """What models there are, and which are loaded, is for who has the right on all of them, whatever a header says."""
    application = SageMakerApplication(server, HttpOptions(), SageMakerOptions(), HostedModels(server))
    target = {"X_Amzn_SageMaker_Target_Model": "identity"}
    for method, path, caller, expected in (
        ("GET", "/ping", "", 200),
        ("POST", "/invocations", "", 401),
        ("POST", "/invocations", "infers", 403),
        ("POST", "/models/x/invoke", "reader", 403),
        ("POST", "/models/x/invoke", "infers", 404),
        ("GET", "/models", "partly", 403),
        ("GET", "/models", "reader", 200),
        ("GET", "/models/x", "partly", 403),
        ("DELETE", "/models/x", "partly", 403),
        ("DELETE", "/models/x", "keeper", 404),
        ("POST", "/models", "partly", 403),
        ("POST", "/models", "keeper", 400),
    ):
        assert await status(application, method, path, caller, INFER, **target) == expected, (method, path, caller)


async def test_vertex_ai(server: Any) -> None:
    settings = VertexAiOptions(health="/health", predict="/predict")
    application = VertexAiApplication(server, HttpOptions(), settings, "identity", lambda: b"page")
    for path, caller, redirect, expected in (
        ("/predict", "reader", "", 403),
        ("/predict", "infers", "", 200),
        ("/predict", "infers", "v2/models/identity", 403),
        ("/predict", "partly", "v2/models/identity", 200),
        ("/predict", "partly", "metrics", 403),
        ("/predict", "reader", "metrics", 200),
    ):
        headers = {"X_Vertex_Ai_Triton_Redirect": redirect} if redirect else {}
        assert await status(application, "POST", path, caller, INFER, **headers) == expected, (path, caller, redirect)


async def test_metrics(server: Any) -> None:
    class Nothing:
        def collect(self) -> list[Any]:
            return []

    application = MetricsApplication(Nothing(), AccessChecks.of(server, "metrics"))
    for path, caller, expected in (
        ("/metrics", "", 401),
        ("/", "", 401),
        ("/metrics", "partly", 403),
        ("/metrics", "keeper", 200),
    ):
        assert await status(application, "GET", path, caller) == expected, (path, caller)
