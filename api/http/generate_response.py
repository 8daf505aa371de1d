"""Encodes answers of the generate extension: one flat JSON object each (docs/reference/generate.md#response)."""

from __future__ import annotations

from ...engine.response import InferenceResponse
from ..large_answers import element_by_element
from . import json_writer
from .infer_response import refuse_bytes


def takes_long(response: InferenceResponse) -> bool:
    """Whether `encode_generate` takes so long that it is called on a thread."""
    return any(map(element_by_element, response.outputs))


def encode_generate(response: InferenceResponse) -> bytes:
    """All that a response has, by name, in the order of the names' bytes.

    A tensor of one element is that element, any other a flat array. Where two things have one name, the server's own
    come first, then response parameters, then outputs.

    Raises:
        InvalidArgumentError: JSON cannot carry an output.
        InternalError: an output's data does not fit its shape.
        UnsupportedError: JSON cannot carry a parameter.
    """
    members: dict[str, bytes] = {}
    if response.id:
        members["id"] = json_writer.string(response.id)
    members["model_name"] = json_writer.string(response.model_name)
    members["model_version"] = b'"%d"' % response.model_version
    if response.parameters:
        refuse_bytes(response.parameters)
        for name, value in response.parameters.items():
            members.setdefault(name, json_writer.dumps(value))
    for tensor in response.outputs:
        data = json_writer.tensor_data(tensor)
        members.setdefault(tensor.name, data[1:-1] if tensor.element_count == 1 else data)
    ordered = sorted((name.encode("utf-8", "surrogateescape"), value) for name, value in members.items())
    return b"{%b}" % b",".join(json_writer.string(name) + b":" + value for name, value in ordered)
