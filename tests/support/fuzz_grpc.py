"""gRPC to be fuzzed: messages of every method, spoilt as protobuf, in framing, in compression and as frames."""

from __future__ import annotations

import random
import zlib
from typing import Any

from fuzz_http import hostile
from fuzz_http2 import answers, conversation
from fuzz_mutations import mutate, pieces
from fuzz_server import MODELS, TYPES
from fuzz_target import Finding, Target, converse, described
from grpc_stub import MESSAGES

from trireme.api.http2 import frames

SERVICE = "/inference.GRPCInferenceService/"
_STATUSES = {b"%d" % code for code in (0, 1, 2, 3, 4, 5, 6, 8, 12, 13, 14)}
_CHOICES = ("bool_param", "int64_param", "string_param", "double_param", "uint64_param")
_FIELDS = {
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def _put(rng: random.Random, parameters: Any, *names: str) -> None:
    """Parameters of these names, of any type."""
    for name in names:
        value, choice = hostile(rng, 3), rng.choice(_CHOICES)
        if isinstance(value, bool):
            choice = _CHOICES[0]
        try:
            setattr(parameters[name], choice, value)
        except (TypeError, ValueError, OverflowError):
            parameters[name].int64_param = 5


def infer(rng: random.Random) -> Any:
    """A ``ModelInferRequest``, more or less right."""
    model = rng.choice((*MODELS, "pair", "text", "many", "absent"))
    message = MESSAGES.ModelInferRequest(
        model_name=model, model_version=rng.choice(("", "", "", "1", "-1", "x")), id="i"
    )
    wanted = {
        "canary": [("A", "INT32", [4]), ("B", "INT32", [4])],
        "pair": [("A", "INT32", [1, 4]), ("B", "INT32", [1, 4])],
        "text": [("IN", "BYTES", [2])],
        "steps": [("X", "BYTES", [2])],
        "types": [(name, name, [2]) for name in rng.sample(TYPES, 2)],
        "sequence": [("IN", "FP32", [1, 2])],
    }.get(model, [("IN", "FP32", [2])])
    for name, datatype, shape in wanted:
        if rng.random() < 0.1:
            shape = [rng.choice((0, -1, 2**62, 3)) for _ in range(rng.randrange(4))]
        given = message.inputs.add(name=name, datatype=datatype, shape=shape)
        if rng.random() < 0.5:
            kind = "uint_contents" if datatype.startswith("UINT") else "int_contents"
            values = [b"ab", b""] if datatype == "BYTES" else [1, 0, 1, 0][: rng.randrange(5)]
            getattr(given.contents, _FIELDS.get(datatype, kind)).extend(values)
        else:
            message.raw_input_contents.append(rng.randbytes(rng.choice((0, 1, 4, 8, 16, 16))))
        if rng.random() < 0.1:
            _put(rng, given.parameters, "shared_memory_region", "shared_memory_byte_size")
    if rng.random() < 0.2:
        _put(
            rng,
            message.parameters,
            rng.choice(("sequence_id", "sequence_start", "priority", "timeout", "triton_x", "k")),
        )
    if rng.random() < 0.2:
        output = message.outputs.add(name=rng.choice(("OUT_A", "OUT_IN", "?")))
        _put(rng, output.parameters, rng.choice(("classification", "shared_memory_region", "shared_memory_offset")))
    return message


def elsewhere(rng: random.Random) -> tuple[str, Any]:
    """A method, and a request to it."""
    name = rng.choice((*[name for name in MODELS if name != "canary"], "absent", ""))
    region = {"name": rng.choice(("", "r")), "byte_size": 8}
    return rng.choice(
        (
            ("ServerLive", MESSAGES.ServerLiveRequest()),
            ("ServerReady", MESSAGES.ServerReadyRequest()),
            ("ModelReady", MESSAGES.ModelReadyRequest(name=name, version=rng.choice(("", "1", "x")))),
            ("ServerMetadata", MESSAGES.ServerMetadataRequest()),
            ("ModelMetadata", MESSAGES.ModelMetadataRequest(name=name)),
            ("ModelConfig", MESSAGES.ModelConfigRequest(name=name)),
            ("ModelStatistics", MESSAGES.ModelStatisticsRequest(name=name)),
            ("RepositoryIndex", MESSAGES.RepositoryIndexRequest(ready=rng.random() < 0.5)),
            ("RepositoryModelLoad", MESSAGES.RepositoryModelLoadRequest(model_name=name)),
            ("SystemSharedMemoryStatus", MESSAGES.SystemSharedMemoryStatusRequest(name="r")),
            ("SystemSharedMemoryRegister", MESSAGES.SystemSharedMemoryRegisterRequest(key="/none", **region)),
            ("SystemSharedMemoryUnregister", MESSAGES.SystemSharedMemoryUnregisterRequest(name="r")),
            ("CudaSharedMemoryStatus", MESSAGES.CudaSharedMemoryStatusRequest()),
            ("CudaSharedMemoryRegister", MESSAGES.CudaSharedMemoryRegisterRequest(raw_handle=bytes(64), **region)),
            ("TraceSetting", MESSAGES.TraceSettingRequest(model_name=name)),
            ("LogSettings", MESSAGES.LogSettingsRequest()),
        )
    )


def request(rng: random.Random) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A call: a header list and a body of one or more messages."""
    method = rng.choice(("ModelInfer", "ModelStreamInfer", ""))
    if method:
        messages = [infer(rng) for _ in range(rng.choice((1, 1, 3)) if method == "ModelStreamInfer" else 1)]
    else:
        method, message = elsewhere(rng)
        messages = [message]
    head = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", (SERVICE + method).encode()),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    encoding = rng.choice((None,) * 8 + (b"gzip", b"deflate", b"identity", b"snappy"))
    if encoding:
        head.append((b"grpc-encoding", encoding))
    if rng.random() < 0.1:
        head.append((b"grpc-timeout", rng.choice((b"1S", b"0n", b"5", b"99999999H", b"-1S", b"1m"))))
    if rng.random() < 0.1:
        head.append((b"grpc-accept-encoding", rng.choice((b"gzip", b"deflate,gzip", b"", b"identity"))))
    if rng.random() < 0.1:
        head.append(rng.choice(((b"x-bin", b"!!"), (b"triton_grpc_error", b"true"), (b"user-agent", b"\xff"))))
    return head, b"".join(_framed(rng, message.SerializeToString(), encoding) for message in messages)


def _framed(rng: random.Random, message: bytes, encoding: bytes | None) -> bytes:
    if rng.random() < 0.25:
        message = mutate(rng, message, rng.choice((1, 1, 3)))
    flag = 0
    if encoding and rng.random() < 0.8:
        pack = zlib.compressobj(wbits=31 if encoding == b"gzip" else 15)
        message = pack.compress(message) + pack.flush()
        flag = 1
        if rng.random() < 0.2:
            message = mutate(rng, message)
    if rng.random() < 0.03:
        flag = rng.choice((1, 2, 255))
    size = len(message) if rng.random() < 0.97 else rng.choice((0, 1, len(message) + 1, 2**31, 2**32 - 1))
    return bytes([flag]) + size.to_bytes(4) + message


def attack(target: Target, rng: random.Random) -> None:
    """Whatever is said, what comes back is HTTP/2 with gRPC's statuses, and none of them is a defect's."""
    said = conversation(rng, request)
    if rng.random() < 0.3:
        said = said[:24] + mutate(rng, said[24:], rng.choice((1, 1, 3)))
    abrupt = rng.random() < 0.05
    heard = converse(target, target.grpc_port, pieces(rng, said), abrupt=abrupt)
    if not said.startswith(frames.PREFACE):
        return
    for lists, _ in answers(heard, said).values():
        for fields in lists:
            status, text = fields.get(b"grpc-status"), fields.get(b"grpc-message", b"")
            if status is not None and status not in _STATUSES:
                raise Finding(f"status {status!r} {text!r} to {described(said)}")
            if text == b"Internal Server Error":
                raise Finding(f"a defect, to {described(said)}")
