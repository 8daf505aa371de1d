"""Requests that cost their sender little and, where nothing bounds it, the server much."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

MIB = 1 << 20

HEAVY_DIM = (1 << 63) - 1


def gzip_repeated(head: bytes, unit: bytes, count: int, tail: bytes) -> bytes:
    """`head + unit * count + tail`, compressed without ever being in memory as a whole."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    per_piece = max(1, MIB // len(unit))
    piece = unit * per_piece
    parts = [packer.compress(head)]
    whole, rest = divmod(count, per_piece)
    parts += [packer.compress(piece) for _ in range(whole)]
    parts += [packer.compress(unit * rest + tail), packer.flush()]
    return b"".join(parts)


def many_dims(count: int = 150_000) -> bytes:
    """An infer request in JSON whose shape has `count` dimensions of 2^63-1."""
    shape = ",".join([str(HEAVY_DIM)] * count)
    text = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{shape}],"data":[1]}}]}}'
    return gzip.compress(text.encode())


def nested_lists(nbytes: int) -> bytes:
    """`[[],[],…` of `nbytes` as the data of an input, compressed."""
    head = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,16],"data":[[]'
    return gzip_repeated(head, b",[]", nbytes // 3, b"]}]}")


def duplicate_keys(nbytes: int) -> bytes:
    """One object with the same key again and again."""
    return b'{"a":1' + b',"a":1' * (nbytes // 6) + b"}"


def not_utf8(nbytes: int) -> bytes:
    """A string of bytes that are no UTF-8."""
    return b'{"id":"' + b"\xff" * nbytes + b'","inputs":[]}'


def empty_strings_json(count: int) -> bytes:
    """`count` empty BYTES elements as JSON."""
    head = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,%d],"data":[""' % count
    return head + b',""' * (count - 1) + b"]}]}"


def empty_strings_binary(count: int) -> tuple[bytes, bytes]:
    """The JSON head, and `count` empty BYTES elements behind it."""
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, count], "parameters": {"binary_data_size": 4 * count}}
    head = {"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
    return json.dumps(head).encode(), bytes(4 * count)


def classification(rows: int, count: int) -> tuple[bytes, bytes]:
    """Wants all classes of `rows` times `count` random numbers."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [rows, count]}
    tensor["parameters"] = {"binary_data_size": 4 * rows * count}
    output = {"name": "OUTPUT0", "parameters": {"classification": (1 << 32) - 1}}
    blob = np.random.default_rng(1).random(rows * count, np.float32).tobytes()
    return json.dumps({"inputs": [tensor], "outputs": [output]}).encode(), blob


def small_infer() -> tuple[bytes, bytes]:
    """FP32[1, 16] for an identity model, in binary."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    head = {"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
    return json.dumps(head).encode(), np.arange(16, dtype=np.float32).tobytes()


# ---- protobuf, by hand: the messages are to be wrong in ways that no library writes ----


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def grpc_many_dims(model: str, count: int = 150_000) -> bytes:
    """A ModelInferRequest whose shape has `count` dimensions of 2^63-1."""
    shape = field(3, varint(HEAVY_DIM) * count)
    return field(1, model.encode()) + field(5, field(1, b"INPUT0") + field(2, b"FP32") + shape)


def grpc_empty_strings(model: str, count: int) -> bytes:
    """A ModelInferRequest with `count` empty `bytes_contents`."""
    shape = field(3, varint(1) + varint(count))
    contents = field(5, b"\x42\x00" * count)
    return field(1, model.encode()) + field(5, field(1, b"INPUT0") + field(2, b"BYTES") + shape + contents)


def grpc_small(model: str) -> bytes:
    """FP32[1, 16] for an identity model."""
    tensor = field(1, b"INPUT0") + field(2, b"FP32") + field(3, varint(1) + varint(16))
    return field(1, model.encode()) + field(5, tensor) + field(7, bytes(64))


def grpc_floats(model: str, nbytes: int) -> bytes:
    """A ModelInferRequest with FP32[1, n] of so many bytes."""
    tensor = field(1, b"INPUT0") + field(2, b"FP32") + field(3, varint(1) + varint(nbytes // 4))
    return field(1, model.encode()) + field(5, tensor) + field(7, bytes(nbytes))


def floats(nbytes: int) -> tuple[bytes, bytes]:
    """The JSON head and the data of FP32[1, n] of so many bytes; the answer is to be binary, too."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, nbytes // 4]}
    tensor["parameters"] = {"binary_data_size": nbytes}
    head = {"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
    return json.dumps(head).encode(), bytes(nbytes)


def grpc_frame(message: bytes, *, packed: bool = False) -> bytes:
    """A message with gRPC's prefix."""
    return bytes([packed]) + len(message).to_bytes(4, "big") + message


# ---- HTTP/1.1 ----


def http_request(method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """A request; Content-Length is added unless the headers say how long the body is."""
    headers = list(headers)
    named = {name.lower() for name, _ in headers}
    if not named & {"content-length", "transfer-encoding"}:
        headers.append(("Content-Length", str(len(body))))
    if "host" not in named:
        headers.append(("Host", "localhost"))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode() + body


def infer_request(model: str, head: bytes, blob: bytes = b"", *, encoding: str | None = None) -> bytes:
    """An infer request over HTTP; with `blob`, binary tensors behind the JSON."""
    headers = []
    if blob:
        headers.append(("Inference-Header-Content-Length", str(len(head))))
    if encoding is not None:
        headers.append(("Content-Encoding", encoding))
    return http_request("POST", f"/v2/models/{model}/infer", headers, head + blob)


def pieces(nbytes: int, piece_bytes: int = MIB) -> Iterator[bytes]:
    """Zeros, in pieces."""
    piece = bytes(piece_bytes)
    for _ in range(nbytes // piece_bytes):
        yield piece
