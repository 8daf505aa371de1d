"""The JSON documents of the HTTP interface, as schemas (JSON Schema 2020-12) by name. `openapi` refers to them.

They are as wide as what the server takes: members that it ignores are allowed, and so are types that Triton turns into
others.
"""

from __future__ import annotations

from typing import Any

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
