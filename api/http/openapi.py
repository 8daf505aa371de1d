"""The HTTP interface as an OpenAPI 3.1 document, for clients, gateways and fuzzers. `trireme openapi` prints it.

Each answer that a request can get has its status here (docs/reference/errors.md#error-kinds): what is not listed is
never answered. Left out are answers to what is no request of this interface at all: 404 for other paths, 405 for other
methods, and what the connection itself refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...engine.version import VERSION
from .exchange import Handler
from .handlers import management, model_routes
from .handlers.generate import generate, generate_stream
from .infer.handler import infer
from .routes import ROUTES

_ERRORS = {
    400: "Something in the request is wrong, or the model failed in a way of its own.",
    403: "Restricted: a header with a certain value is needed.",
    404: "There is no such model, version, route or shared-memory region.",
    413: "The body is too large.",
    500: "The body is not the JSON that is expected, or something failed inside the server or the model.",
    501: "Not supported, or switched off.",
    503: "The server or the model is not available at the moment.",
}
_PATH_PARTS: dict[str, Schema] = {
    "model": {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"},
    "version": {"type": "string", "pattern": "^[0-9]+$"},
    "route": {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"},
    "repository": {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"},
    "region": {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"},
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What a handler does.

    Attributes:
        summary: for people.
        errors: statuses it may be answered with, besides 200, 403, and, if it takes a body, 413.
        request: the schema of its body; empty if it looks at none. ``*`` stands for the kind of shared memory.
        response: the schema of its answer; empty if that has no body.
        optional: it may go without the body.
        media: further forms of its answer, by media type.
    """

    summary: str
    errors: tuple[int, ...] = ()
    request: str = ""
    response: str = ""
    optional: bool = False
    media: tuple[str, ...] = ()


_EVENTS = "text/event-stream"
_BINARY = "application/octet-stream"

OPERATIONS: dict[Handler, Operation] = {
    management.server_live: Operation("Is the server alive?", (400, 503)),
    management.server_ready: Operation("Is the server ready for requests?", (400, 503)),
    management.server_metadata: Operation("About the server.", response="ServerMetadata"),
    management.model_ready: Operation("Is the model ready for requests?", (400, 503)),
    management.model_metadata: Operation("About a model.", (400, 404, 503), response="ModelMetadata"),
    management.model_config: Operation("How a model is configured.", (400, 404, 503), response="ModelConfig"),
    management.statistics: Operation("Statistics of a model, or of all.", (400,), response="Statistics"),
    infer: Operation(
        "Ask a model that answers once.",
        (400, 404, 500, 501, 503),
        request="InferRequest",
        response="InferResponse",
        media=(_BINARY,),
    ),
    generate: Operation(
        "Ask a model that answers once, in plain JSON.", (400, 404, 500, 503), "GenerateRequest", "GenerateResponse"
    ),
    generate_stream: Operation(
        "Ask any model, in plain JSON; each response is a server-sent event.",
        (400, 404, 500, 503),
        request="GenerateRequest",
        media=(_EVENTS,),
    ),
    management.repository_index: Operation(
        "List the models, loaded or not.", (400, 500), "IndexRequest", "Index", optional=True
    ),
    management.load_model: Operation(
        "Load a model, or load it again.", (400, 500, 501, 503), "LoadRequest", optional=True
    ),
    management.unload_model: Operation("Unload a model.", (400, 500, 501, 503), "UnloadRequest", optional=True),
    model_routes.list_routes: Operation("List the routes, names for which models answer.", response="Routes"),
    model_routes.show_route: Operation("A route, and how it does.", (404,), response="Route"),
    model_routes.set_route: Operation("Set a route.", (400, 503), "RouteDocument", "Route"),
    model_routes.remove_route: Operation("Remove a route.", (404, 503)),
    model_routes.stop_rollout: Operation(
        "Have a route's canary give its share back.", (400, 404, 503), response="Route"
    ),
    management.region_status: Operation("Registered regions.", (404,), response="Regions"),
    management.register_region: Operation("Register a region.", (400, 500, 501), "*Region"),
    management.unregister_region: Operation("Forget a region, or all.", (400, 501)),
    management.trace_settings: Operation("What is traced.", (400, 501), response="TraceSettings"),
    management.change_trace: Operation("Change what is traced.", (400, 500, 501), "TraceChange", "TraceSettings"),
    management.log_settings: Operation("What is logged.", (501,), response="LogSettings"),
    management.change_log: Operation("Change what is logged.", (400, 500, 501, 503), "LogChange", "LogSettings"),
}
"""Of the handlers in `ROUTES`."""


def document() -> dict[str, Any]:
    """The whole document, as JSON values."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        for path in _paths(route.template):
            paths[path] = {"parameters": list(_parameters(path))}
            for method, handler in route.handlers.items():
                paths[path][method.lower()] = _described(OPERATIONS[handler], method.lower(), route.category, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trireme",
            "version": VERSION,
            "summary": "The KServe/Triton inference protocol over HTTP",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://localhost:8000"}],
        "tags": [{"name": category} for category in sorted({route.category for route in ROUTES})],
        "paths": paths,
        "components": {"schemas": schemas()},
    }


def _paths(template: str) -> Iterator[str]:
    """The paths of a route: of each kind, without its optional part, and with it."""
    for kind in ("system", "cuda") if "{kind}" in template else ("",):
        path = template.replace("{kind}", kind)
        start, bracket, rest = path.partition("[")
        if bracket:
            yield start + rest.partition("]")[2]
        yield start + rest.replace("]", "")


def _parameters(path: str) -> Iterator[dict[str, Any]]:
    for name, schema in _PATH_PARTS.items():
        if f"{{{name}}}" in path:
            yield {"name": name, "in": "path", "required": True, "schema": schema}


def _described(operation: Operation, method: str, category: str, path: str) -> dict[str, Any]:
    words = [method, *path.replace("{", "by/").replace("}", "").split("/")[2:]]
    described: dict[str, Any] = {
        "operationId": "_".join(words),
        "tags": [category],
        "summary": operation.summary,
        "responses": dict(_responses(operation)),
    }
    if operation.request:
        schema = operation.request.replace("*", "Cuda" if path.startswith("/v2/cuda") else "System")
        media: dict[str, Any] = {"application/json": {"schema": ref(schema)}}
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
    content: dict[str, Any] = {media: {} for media in operation.media}
    if operation.response:
        content["application/json"] = {"schema": ref(operation.response)}
    yield "200", {"description": "Done.", **({"content": content} if content else {})}
    for status in sorted({403, *((413,) if operation.request else ()), *operation.errors}):
        forms: dict[str, Any] = {"application/json": {"schema": ref("Error")}, "text/plain": {}}
        if status == 400 and _EVENTS in operation.media:
            forms[_EVENTS] = {}
        yield str(status), {"description": _ERRORS[status], "content": forms}


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


def _routes() -> dict[str, Schema]:
    number: Schema = {"type": "number"}
    percent: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
    limits = dict.fromkeys(("step-secs", "errors", "p99-times", "queue-times", "slack-ms"), number)
    members = {
        "targets": {"type": "object", "additionalProperties": percent, "description": "Weights; together 100."},
        "sticky": _STRING,
        "canary": _object("target", target=_STRING, steps=_array(percent), **limits),
        "shadow": _object("target", target=_STRING, percent=number, tolerance=number),
    }
    return {
        "RouteDocument": {**_object("targets", **members), "additionalProperties": False},
        "Route": _object("name targets state", name=_STRING, **members, state={"type": "object"}),
        "Routes": _array(ref("Route")),
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
        **_routes(),
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
