"""Putting a call to a server, and reducing the answer to what both servers must agree on.

The written normalisation is that of the HTTP session (``session_exchange.py``): times, the server's version, and what
differs between an ONNX or scripted model and its python-backend twin. Statistics of the scripted models are left out:
the python backend has requests that it answered with an error counted as successes, where failures are
wanted (docs/reference/scheduling.md#failure-reasons). Order matters everywhere except within maps, in the list of
inputs that a server got, and between answers to different requests of an `interleaved` stream.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from grpc_calls import Answer, Call, pb
from grpc_models import SCRIPTED_MODELS
from session_exchange import DIFFERENT_BY_NATURE, NEWER_CONFIG_FIELDS, SERVER_IDENTITY, drop_fields, sort_input_names

PATIENCE_S = 30
TIMES = ("ns", "last_inference")


def put(channel: grpc.Channel, call: Call) -> Answer:
    """The server's answer, in a form that JSON can hold."""
    method = channel.stream_stream(call.path)
    running = method(
        iter(call.messages), timeout=PATIENCE_S, metadata=call.metadata or None, compression=call.compression
    )
    responses: list[Any] = []
    with suppress(grpc.RpcError):  # the status is read from `running`, good or bad
        for message in running:
            responses.append(_readable(call, message))  # noqa: PERF401 - keep what came before an error
    return {"code": running.code().name, "details": running.details(), "responses": responses}


def _readable(call: Call, message: bytes) -> Any:
    kind = getattr(pb, f"{call.method}Response", None)
    if call.method == "ModelStreamInfer":
        kind = pb.ModelStreamInferResponse
    return MessageToDict(kind.FromString(message), preserving_proto_field_name=True) if kind else message.hex()


def normalised(call: Call, answer: Answer) -> Answer:
    """The answer without what differs by nature."""
    responses = [_normalised_response(call, response) for response in answer["responses"]]
    if call.interleaved:
        responses.sort(key=lambda response: response["infer_response"].get("id", ""))  # stable
    return {"code": answer["code"], "details": sort_input_names(answer["details"]), "responses": responses}


def _normalised_response(call: Call, response: Any) -> Any:
    match call.method:
        case "ServerMetadata":
            return drop_fields(response, SERVER_IDENTITY)
        case "ModelMetadata":
            return drop_fields(response, ("platform",))
        case "ModelConfig":
            return drop_fields(response, (*DIFFERENT_BY_NATURE, *NEWER_CONFIG_FIELDS))
        case "ModelStatistics":
            scripted = {model.name for model in SCRIPTED_MODELS}
            records = [record for record in response.get("model_stats", []) if record["name"] not in scripted]
            return drop_fields({"model_stats": records}, TIMES)
        case "ModelStreamInfer" if "error_message" in response:
            return {**response, "error_message": sort_input_names(response["error_message"])}
    return response
