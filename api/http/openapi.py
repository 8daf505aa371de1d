"""The HTTP interface as an OpenAPI 3.1 document, for clients, gateways and fuzzers. `trireme openapi` prints it.

Each path of docs/reference/http.md#routes is written out, with and without its optional parts. Each answer that a
request can get has its status here (docs/reference/errors.md#error-kinds): what is not listed is never answered. Left
out are answers to what is no request of this interface at all: 404 for other paths, 405 for other methods, and what the
connection itself refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...actors.version import server_version
from .openapi_schemas import Schema, ref, schemas

_MODEL = "/v2/models/{model}"
_VERSION = "/versions/{version}"
_ERRORS = {
    400: "Something in the request is wrong, or the model failed in a way of its own.",
    403: "Restricted: a header with a certain value is needed.",
    404: "There is no such model, version or shared-memory region.",
    413: "The body is too large.",
    500: "The body is not the JSON that is expected, or something failed inside the server or the model.",
    501: "Not supported, or switched off.",
    503: "The server or the model is not available at the moment.",
}
_PATH_PARTS: dict[str, Schema] = {
    "model": {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"},
    "version": {"type": "string", "pattern": "^[0-9]+$"},
    "repository": {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"},
    "region": {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"},
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What one method does on some paths.

    Attributes:
        method: in lower case.
        paths: with their parts in braces.
        category: what a restriction calls it (docs/reference/http.md#restricted-apis).
        summary: for people.
        errors: statuses it may be answered with, besides 200, 403, and, if it takes a body, 413.
        request: the schema of its body; empty if it looks at none.
        optional: it may go without the body.
        response: the schema of its answer; empty if that has no body.
        media: further forms of its answer, by media type.
    """

    method: str
    paths: tuple[str, ...]
    category: str
    summary: str
    errors: tuple[int, ...] = ()
    request: str = ""
    optional: bool = False
    response: str = ""
    media: tuple[str, ...] = ()


def _of_model(suffix: str) -> tuple[str, ...]:
    return (_MODEL + suffix, _MODEL + _VERSION + suffix)


def _of_regions(kind: str, verb: str) -> tuple[str, ...]:
    return (f"/v2/{kind}sharedmemory/{verb}", f"/v2/{kind}sharedmemory/region/{{region}}/{verb}")


def _of_repository(suffix: str) -> tuple[str, ...]:
    return ("/v2/repository" + suffix, "/v2/repository/{repository}" + suffix)


_EVENTS = "text/event-stream"
_BINARY = "application/octet-stream"

OPERATIONS = (
    Operation("get", ("/v2/health/live",), "health", "Is the server alive?", (400, 503)),
    Operation("get", ("/v2/health/ready",), "health", "Is the server ready for requests?", (400, 503)),
    Operation("get", _of_model("/ready"), "health", "Is the model ready for requests?", (400, 503)),
    Operation("get", ("/v2",), "metadata", "About the server.", (), response="ServerMetadata"),
    Operation("get", _of_model(""), "metadata", "About a model.", (400, 404, 503), response="ModelMetadata"),
    Operation(
        "get",
        _of_model("/config"),
        "model-config",
        "How a model is configured.",
        (400, 404, 503),
        response="ModelConfig",
    ),
    Operation("get", ("/v2/models/stats",), "statistics", "Statistics of all models.", (), response="Statistics"),
    Operation("get", _of_model("/stats"), "statistics", "Statistics of a model.", (400,), response="Statistics"),
    Operation(
        "post",
        _of_model("/infer"),
        "inference",
        "Ask a model that answers once.",
        (400, 404, 500, 501, 503),
        request="InferRequest",
        response="InferResponse",
        media=(_BINARY,),
    ),
    Operation(
        "post",
        _of_model("/generate"),
        "inference",
        "Ask a model that answers once, in plain JSON.",
        (400, 404, 500, 503),
        request="GenerateRequest",
        response="GenerateResponse",
    ),
    Operation(
        "post",
        _of_model("/generate_stream"),
        "inference",
        "Ask any model, in plain JSON; each response is a server-sent event.",
        (400, 404, 500, 503),
        request="GenerateRequest",
        media=(_EVENTS,),
    ),
    Operation(
        "post",
        _of_repository("/index"),
        "model-repository",
        "List the models, loaded or not.",
        (400, 500),
        request="IndexRequest",
        optional=True,
        response="Index",
    ),
    Operation(
        "post",
        _of_repository("/models/{model}/load"),
        "model-repository",
        "Load a model, or load it again.",
        (400, 500, 501, 503),
        request="LoadRequest",
        optional=True,
    ),
    Operation(
        "post",
        _of_repository("/models/{model}/unload"),
        "model-repository",
        "Unload a model.",
        (400, 500, 501, 503),
        request="UnloadRequest",
        optional=True,
    ),
    *(
        Operation(
            "get", _of_regions(kind, "status"), "shared-memory", "Registered regions.", (404,), response="Regions"
        )
        for kind in ("system", "cuda")
    ),
    *(
        Operation(
            "post",
            _of_regions(kind, "register"),
            "shared-memory",
            "Register a region.",
            (400, 500, 501),
            request=f"{kind.title()}Region",
        )
        for kind in ("system", "cuda")
    ),
    *(
        Operation("post", _of_regions(kind, "unregister"), "shared-memory", "Forget a region, or all.", (400, 501))
        for kind in ("system", "cuda")
    ),
    Operation(
        "get",
        ("/v2/trace/setting", _MODEL + "/trace/setting"),
        "trace",
        "What is traced.",
        (400, 501),
        response="TraceSettings",
    ),
    Operation(
        "post",
        ("/v2/trace/setting", _MODEL + "/trace/setting"),
        "trace",
        "Change what is traced.",
        (400, 500, 501),
        request="TraceChange",
        response="TraceSettings",
    ),
    Operation("get", ("/v2/logging",), "logging", "What is logged.", (501,), response="LogSettings"),
    Operation(
        "post",
        ("/v2/logging",),
        "logging",
        "Change what is logged.",
        (400, 500, 501, 503),
        request="LogChange",
        response="LogSettings",
    ),
)
"""The table of docs/reference/http.md#routes."""


def document() -> dict[str, Any]:
    """The whole document, as JSON values."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        for path in operation.paths:
            paths.setdefault(path, {"parameters": list(_parameters(path))})[operation.method] = _described(
                operation, path
            )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trireme",
            "version": server_version(),
            "summary": "The KServe/Triton inference protocol over HTTP",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://localhost:8000"}],
        "tags": [{"name": category} for category in sorted({operation.category for operation in OPERATIONS})],
        "paths": paths,
        "components": {"schemas": schemas()},
    }


def _parameters(path: str) -> Iterator[dict[str, Any]]:
    for name, schema in _PATH_PARTS.items():
        if f"{{{name}}}" in path:
            yield {"name": name, "in": "path", "required": True, "schema": schema}


def _described(operation: Operation, path: str) -> dict[str, Any]:
    words = [operation.method, *path.replace("{", "by/").replace("}", "").split("/")[2:]]
    described: dict[str, Any] = {
        "operationId": "_".join(words),
        "tags": [operation.category],
        "summary": operation.summary,
        "responses": dict(_responses(operation)),
    }
    if operation.request:
        media: dict[str, Any] = {"application/json": {"schema": ref(operation.request)}}
        described["requestBody"] = {"required": not operation.optional, "content": media}
    if _BINARY in operation.media:
        described["requestBody"]["content"][_BINARY] = {}
        described["parameters"] = [
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "description": "How much of the body is JSON; tensors in binary follow. Without it, all of it is.",
                "schema": {"type": "integer", "minimum": 0},
            }
        ]
    return described


def _responses(operation: Operation) -> Iterator[tuple[str, Any]]:
    yield "200", {"description": "Done.", **_content(operation)}
    for status in sorted({403, *((413,) if operation.request else ()), *operation.errors}):
        forms: dict[str, Any] = {"application/json": {"schema": ref("Error")}, "text/plain": {}}
        if status == 400 and _EVENTS in operation.media:
            forms[_EVENTS] = {}
        yield str(status), {"description": _ERRORS[status], "content": forms}


def _content(operation: Operation) -> dict[str, Any]:
    forms: dict[str, Any] = {media: {} for media in operation.media}
    if operation.response:
        forms["application/json"] = {"schema": ref(operation.response)}
    return {"content": forms} if forms else {}
