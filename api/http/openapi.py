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

from ...engine.description import server_version

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


# ---- schemas (JSON Schema 2020-12) of the documents, as wide as what the server takes: members that it ignores are
# allowed, and so are types that Triton turns into others ----


Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """What stands for the schema `name`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", /, **members: Schema) -> Schema:
    """An object with these members, of which those named must be there."""
    schema: Schema = {"type": "object", "properties": members}
    if required:
        schema["required"] = required.split()
    return schema


def _array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_STRING: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_UNSIGNED: Schema = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
_INT64: Schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_SHAPE = _array(_UNSIGNED, maxItems=16)
_DATATYPE = _one_of(
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16", "BYTES"),
)
_DURATION = ref("Duration")
_REGION = {"shared_memory_region": _STRING, "shared_memory_offset": _UNSIGNED, "shared_memory_byte_size": _UNSIGNED}
_PARAMETERS: Schema = {"type": "object", "additionalProperties": _SCALAR}


def _infer() -> dict[str, Schema]:
    request_parameters = {
        **_object(
            sequence_id={"anyOf": [_UNSIGNED, _STRING]},
            sequence_start=_FLAG,
            sequence_end=_FLAG,
            priority=_UNSIGNED,
            timeout={**_UNSIGNED, "description": "Microseconds in the queue."},
            binary_data_output=_FLAG,
        ),
        "additionalProperties": _SCALAR,
    }
    input_parameters = _object(binary_data_size=_UNSIGNED, **_REGION)
    output_parameters = _object(binary_data=_FLAG, classification=_UNSIGNED, **_REGION)
    a_input = _object(
        "name shape datatype",
        name=_STRING,
        shape=_SHAPE,
        datatype=_DATATYPE,
        parameters=input_parameters,
        data=_array({"type": ["array", "string", "number", "boolean"]}),
    )
    an_output = _object(
        "name datatype shape",
        name=_STRING,
        datatype=_DATATYPE,
        shape=_array(_INT64),
        parameters=_object(binary_data_size=_UNSIGNED),
        data=_array(_SCALAR),
    )
    wanted = _object("name", name=_STRING, parameters=output_parameters)
    return {
        "InferRequest": _object(
            "inputs", id=_STRING, parameters=request_parameters, inputs=_array(a_input), outputs=_array(wanted)
        ),
        "InferResponse": _object(
            "model_name model_version outputs",
            id=_STRING,
            model_name=_STRING,
            model_version=_STRING,
            parameters=_PARAMETERS,
            outputs=_array(an_output),
        ),
        "GenerateRequest": {
            **_object(id=_STRING, parameters={"type": "object"}),
            "additionalProperties": {"anyOf": [_SCALAR, _array(_SCALAR)]},
            "description": "Members that are called like inputs of the model are inputs, others are parameters.",
        },
        "GenerateResponse": {"type": "object"},
    }


def _about() -> dict[str, Schema]:
    tensor = _object("name datatype shape", name=_STRING, datatype=_STRING, shape=_array(_INT64))
    durations = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    computes = {f"compute_{part}": _DURATION for part in ("input", "infer", "output")}
    statistics = _object(
        "name version last_inference inference_count execution_count inference_stats batch_stats",
        name=_STRING,
        version=_STRING,
        last_inference=_UNSIGNED,
        inference_count=_UNSIGNED,
        execution_count=_UNSIGNED,
        inference_stats=_object(**dict.fromkeys((*durations, "cache_hit", "cache_miss"), _DURATION)),
        response_stats={"type": "object"},
        batch_stats=_array(_object("batch_size", batch_size=_UNSIGNED, **computes)),
        memory_usage=_array(_object(type=_STRING, id=_INT64, byte_size=_UNSIGNED)),
    )
    return {
        "Error": {**_object("error", error=_STRING), "additionalProperties": False},
        "ServerMetadata": _object("name version extensions", name=_STRING, version=_STRING, extensions=_array(_STRING)),
        "ModelMetadata": _object(
            "name versions platform inputs outputs",
            name=_STRING,
            versions=_array(_STRING),
            platform=_STRING,
            inputs=_array(tensor),
            outputs=_array(tensor),
        ),
        "ModelConfig": _object("name platform backend max_batch_size input output", name=_STRING),
        "Duration": _object("count ns", count=_UNSIGNED, ns=_UNSIGNED),
        "Statistics": _object("model_stats", model_stats=_array(statistics)),
    }


def _operation() -> dict[str, Schema]:
    row = _object(
        "name",
        name=_STRING,
        version=_STRING,
        state=_one_of("UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"),
        reason=_STRING,
    )
    load = {**_object(config=_STRING), "additionalProperties": _STRING}
    region = _object(
        "name byte_size", name=_STRING, key=_STRING, offset=_UNSIGNED, device_id=_UNSIGNED, byte_size=_UNSIGNED
    )
    handle = _object("b64", b64=_STRING)
    traced = ("trace_rate", "trace_count", "log_frequency")
    levels = _array(_one_of("OFF", "TIMESTAMPS", "TENSORS"))
    switches = dict.fromkeys(("log_info", "log_warning", "log_error"), _FLAG)
    return {
        "IndexRequest": _object(ready=_FLAG),
        "Index": _array(row),
        "LoadRequest": _object(parameters=load),
        "UnloadRequest": _object(parameters=_object(unload_dependents=_FLAG)),
        "SystemRegion": _object("key byte_size", key=_STRING, offset=_UNSIGNED, byte_size=_UNSIGNED),
        "CudaRegion": _object(
            "raw_handle device_id byte_size", raw_handle=handle, device_id=_UNSIGNED, byte_size=_UNSIGNED
        ),
        "Regions": _array(region),
        "TraceChange": _object(trace_level=_nullable(levels), **dict.fromkeys(traced, _nullable(_STRING))),
        "TraceSettings": _object("trace_level", trace_level=_array(_STRING), **dict.fromkeys(traced, _STRING)),
        "LogChange": _object(
            **{name: _nullable(kind) for name, kind in switches.items()},
            log_verbose_level=_nullable(_UNSIGNED),
            log_format=_nullable(_one_of("default", "ISO8601")),
        ),
        "LogSettings": _object(
            "log_file log_info log_warning log_error log_verbose_level log_format",
            log_file=_STRING,
            **switches,
            log_verbose_level=_UNSIGNED,
            log_format=_STRING,
        ),
    }


def schemas() -> dict[str, Schema]:
    """All of them."""
    return {**_about(), **_infer(), **_operation()}
