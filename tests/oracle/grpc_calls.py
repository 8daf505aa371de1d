"""What the scripted gRPC session is made of: calls, and short ways to write their messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

pb: Any = service_pb2
"""The messages, made when the module is imported: type checkers cannot see them."""

Answer = dict[str, Any]
"""``code`` (name of the status), ``details``, and ``responses``: messages as JSON would have them, in order."""


@dataclass(frozen=True)
class Call:
    """One call: its messages, then a half-close; all answers are awaited.

    Attributes:
        method: of the inference service; or a whole path.
        messages: encoded; one for a unary call, unless it is misused on purpose.
        interleaved: answers to different requests may come in any order; those to the same one may not.
        newer: why the recorded answer does not count: the heading of docs/reference/ that overrules it, or
            what is plainly wrong with it. `expected` then holds instead.
        recorded: False for a call that the reference build (2.51) does not survive.
    """

    name: str
    method: str
    messages: tuple[bytes, ...] = (b"",)
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    compression: grpc.Compression = grpc.Compression.NoCompression
    interleaved: bool = False
    newer: str = ""
    expected: Answer | None = None
    recorded: bool = True

    @property
    def path(self) -> str:
        return self.method if self.method.startswith("/") else f"/inference.GRPCInferenceService/{self.method}"


def unary(name: str, method: str, message: Message | bytes = b"", **fields: Any) -> Call:
    """A call with one message."""
    return Call(name, method, (encoded(message),), **fields)


def ask(name: str, method: str, /, **fields: Any) -> Call:
    """A call of the service with these fields in its request."""
    return unary(name, method, getattr(pb, f"{method}Request")(**fields))


def infer(name: str, message: Message | bytes, **fields: Any) -> Call:
    return unary(name, "ModelInfer", message, **fields)


def stream(name: str, *messages: Message | bytes, **fields: Any) -> Call:
    return Call(name, "ModelStreamInfer", tuple(encoded(message) for message in messages), **fields)


def encoded(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def failed(code: str, details: str, responses: Sequence[Mapping[str, Any]] = ()) -> Answer:
    """An expected answer that ends with this status."""
    return {"code": code, "details": details, "responses": [dict(response) for response in responses]}


Parameters = Mapping[str, Message]
"""InferParameter messages by name."""

CHOICES = {
    "bool": pb.InferParameter(bool_param=True),
    "int": pb.InferParameter(int64_param=5),
    "negative": pb.InferParameter(int64_param=-5),
    "zero": pb.InferParameter(int64_param=0),
    "string": pb.InferParameter(string_param="x"),
    "double": pb.InferParameter(double_param=0.5),
    "uint": pb.InferParameter(uint64_param=5),
    "nothing": pb.InferParameter(),
}
"""One of each kind of parameter."""


def tensor(
    name: str,
    datatype: str,
    shape: Sequence[int],
    parameters: Parameters | None = None,
    *,
    empty: bool = False,
    **contents: Iterable[Any],
) -> Message:
    """An input; `contents` by field, ``fp32=[1, 2]``. `empty`: contents that are there, with nothing in them."""
    result = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape, parameters=parameters)
    for field, values in contents.items():
        getattr(result.contents, f"{field}_contents").extend(values)
    if empty:
        result.contents.SetInParent()
    return result


def output(name: str, **parameters: Message) -> Message:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters)


def request(
    model: str,
    inputs: Sequence[Message] = (),
    raw: Sequence[bytes] = (),
    outputs: Sequence[Message] = (),
    parameters: Parameters | None = None,
    *,
    id: str = "",  # noqa: A002 - the name of the field
    version: str = "",
) -> Message:
    return pb.ModelInferRequest(
        model_name=model,
        model_version=version,
        id=id,
        inputs=inputs,
        raw_input_contents=raw,
        outputs=outputs,
        parameters=parameters,
    )


FLOATS = np.array([1, 2, 3, 4], np.float32).tobytes()
FOUR = tensor("INPUT0", "FP32", [2, 2])
"""The input of `plain`; its data are FLOATS, in raw form."""


def plain(*, parameters: Parameters | None = None, **fields: Any) -> Message:
    """A good request to `plain`."""
    return request("plain", [FOUR], [FLOATS], parameters=parameters, **fields)


def moody(mood: int, **fields: Any) -> Message:
    return request("moody", [tensor("MOOD", "INT32", [1], int=[mood])], **fields)


def repeat(count: int, end: int, **fields: Any) -> Message:
    """To the decoupled model; `end` 0: the final flag comes by itself, 1: with the last answer, 2: with an error."""
    return request(
        "repeat", [tensor("COUNT", "INT32", [1], int=[count]), tensor("END", "INT32", [1], int=[end])], **fields
    )


def strings(*elements: bytes) -> bytes:
    """BYTES in raw form."""
    packed = serialize_byte_tensor(np.array(elements, dtype=np.object_))
    return packed.item() if packed.size else b""
