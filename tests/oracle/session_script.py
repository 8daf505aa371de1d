"""The scripted session: requests, valid and invalid, to be put to both servers in this order.

Each `Exchange` is one HTTP request. One that carries `newer` is answered differently by the reference build at hand
(2.51) than docs/reference/ says, which follows the current release; the replay then checks `expected` instead of the
recorded answer.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """One request. `newer` names the heading of docs/reference/ that overrules the recording; `expected` is (status,
    body)."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    newer: str = ""
    expected: tuple[int, str] | None = None


def infer(name: str, model: str, request: object, tail: bytes = b"", *, version: str = "", **fields: Any) -> Exchange:
    """An infer request with this JSON object (or these very bytes), and tensor bytes behind it."""
    head = request if isinstance(request, bytes) else json.dumps(request).encode()
    headers = dict(fields.pop("headers", {}))
    if tail:
        headers["Inference-Header-Content-Length"] = str(len(head))
    path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
    return Exchange(name, "POST", path, head + tail, headers, **fields)


def tensor(name: str, datatype: str, shape: list[int], data: object = None, **parameters: object) -> dict[str, object]:
    result: dict[str, object] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters:
        result["parameters"] = parameters
    if data is not None:
        result["data"] = data
    return result


ROW = list(range(16))
ONES = [1] * 16
TWO = [tensor("INPUT0", "INT32", [1, 16], ROW), tensor("INPUT1", "INT32", [1, 16], ONES)]
FOUR = tensor("INPUT0", "FP32", [1, 4], [0.1, 4.0, 3.0, -2.0])
PLAIN = tensor("INPUT0", "FP32", [2, 2], [1, 2, 3, 4])
FLOATS = struct.pack("<4f", 1, 2, 3, 4)
SIXTEEN = struct.pack("<16f", *range(16))
STRINGS = b"".join(struct.pack("<I", len(text)) + text for text in (b"a", b"", "é".encode()))


def script() -> Iterator[Exchange]:
    """All exchanges."""
    yield from _server()
    yield from _models()
    yield from _valid()
    yield from _types()
    yield from _binary()
    yield from _outputs()
    yield from _bad_json()
    yield from _bad_inputs()
    yield from _bad_core()
    yield from _parameters()
    yield from _compression()
    yield from _control()


def afterwards() -> Iterator[Exchange]:
    """What to ask when the whole script has been put once to a fresh server: did both count alike?"""
    yield get("stats of all models", "/v2/models/stats")
    yield get("stats of one model", "/v2/models/plain/stats")
    yield get("stats of one version", "/v2/models/add_sub/versions/1/stats")


def get(name: str, path: str, **fields: Any) -> Exchange:
    return Exchange(name, "GET", path, **fields)


def _server() -> Iterator[Exchange]:
    yield get("live", "/v2/health/live")
    yield get("ready", "/v2/health/ready")
    yield get("server metadata", "/v2")
    yield get("unknown route", "/v2/nothing")
    yield get("trailing slash", "/v2/")
    yield get("double slash", "/v2//health/live")
    yield get("query string", "/v2/health/live?x=1")
    yield Exchange("wrong method", "POST", "/v2/health/live")
    yield Exchange("wrong method on infer", "GET", "/v2/models/plain/infer")
    yield Exchange("options", "OPTIONS", "/v2")


def _models() -> Iterator[Exchange]:
    yield get("model ready", "/v2/models/plain/ready")
    yield get("version ready", "/v2/models/plain/versions/1/ready")
    yield get("unknown model ready", "/v2/models/nothing/ready")
    yield get("unknown version ready", "/v2/models/plain/versions/7/ready")
    yield get("metadata", "/v2/models/add_sub")
    yield get("metadata of strings", "/v2/models/identity_bytes/versions/1")
    yield get("metadata of unknown model", "/v2/models/nothing")
    yield get("metadata of unknown version", "/v2/models/plain/versions/7")
    yield get("version not a number", "/v2/models/plain/versions/x")
    yield get("version too large", "/v2/models/plain/versions/99999999999999999999")
    yield get("escaped name", "/v2/models/pl%61in")
    yield get("config", "/v2/models/add_sub/config")
    yield get("config with labels", "/v2/models/ranked/config")
    yield get("config of unknown model", "/v2/models/nothing/config")
    yield get("stats of unknown model", "/v2/models/nothing/stats")
    yield get("stats of unknown version", "/v2/models/plain/versions/7/stats")
    yield Exchange("index", "POST", "/v2/repository/index")
    yield Exchange("index ready", "POST", "/v2/repository/index", b'{"ready":true}')
    yield Exchange("index bad json", "POST", "/v2/repository/index", b"{ready")


def _valid() -> Iterator[Exchange]:
    yield infer("json add_sub", "add_sub", {"id": "7", "inputs": TWO})
    yield infer("json versioned", "plain", {"inputs": [PLAIN]}, version="1")
    yield infer("batch of two", "ranked", {"inputs": [tensor("INPUT0", "FP32", [2, 4], [1, 2, 3, 4, 5, 6, 7, 8])]})
    yield infer("nested data", "plain", {"inputs": [tensor("INPUT0", "FP32", [2, 2], [[1, 2], [3, 4]])]})
    yield infer("ragged nesting", "plain", {"inputs": [tensor("INPUT0", "FP32", [2, 2], [[1, [2]], 3, [[4]]])]})
    yield infer("inputs swapped", "add_sub", {"inputs": TWO[::-1]})
    yield infer("unknown members", "plain", {"inputs": [PLAIN], "else": {"x": 1}})
    yield infer("empty outputs", "plain", {"inputs": [PLAIN], "outputs": []})
    yield infer("variable dims", "wide", {"inputs": [tensor("INPUT0", "FP32", [3, 4], [0.5] * 12)]})
    yield infer("no elements", "wide", {"inputs": [tensor("INPUT0", "FP32", [0, 4], [])]})
    yield infer("a byte order mark", "plain", b"\xef\xbb\xbf" + json.dumps({"inputs": [PLAIN]}).encode())
    yield infer("first of two keys wins", "plain", b'{"id":"a","id":"b","inputs":[%s]}' % json.dumps(PLAIN).encode())
    yield infer(
        "strings", "identity_bytes", {"inputs": [tensor("INPUT0", "BYTES", [1, 3], ["a", "", 'é\u0000\n"\\/'])]}
    )


def _types() -> Iterator[Exchange]:
    numbers = [0, 1, 255, 256, 65536]
    yield infer("uint8 wraps", "type_uint8", {"inputs": [tensor("INPUT0", "UINT8", [5], numbers)]})
    yield infer("int8 wraps", "type_int8", {"inputs": [tensor("INPUT0", "INT8", [3], [200, -129, 127])]})
    yield infer("uint64", "type_uint64", {"inputs": [tensor("INPUT0", "UINT64", [2], [0, 2**64 - 1])]})
    yield infer("int64", "type_int64", {"inputs": [tensor("INPUT0", "INT64", [2], [-(2**63), 2**63 - 1])]})
    yield infer("int64 too big", "type_int64", {"inputs": [tensor("INPUT0", "INT64", [1], [2**63])]})
    yield infer("uint64 negative", "type_uint64", {"inputs": [tensor("INPUT0", "UINT64", [1], [-1])]})
    yield infer("int from 1.0", "type_int64", {"inputs": [tensor("INPUT0", "INT64", [1], [1.0])]})
    yield infer("bool", "type_bool", {"inputs": [tensor("INPUT0", "BOOL", [2], [True, False])]})
    yield infer("bool from 1", "type_bool", {"inputs": [tensor("INPUT0", "BOOL", [1], [1])]})
    doubles = [0.1, 1e-6, 1e-7, 1e20, 1e21, -0.0, 2.5e-10, 1e300, 123456.789, 5e-324]
    yield infer("fp64", "type_fp64", {"inputs": [tensor("INPUT0", "FP64", [10], doubles)]})
    yield infer("fp64 from integers", "type_fp64", {"inputs": [tensor("INPUT0", "FP64", [2], [1, -3])]})
    special = b'{"inputs":[{"name":"INPUT0","datatype":"FP64","shape":[3],"data":[NaN,Infinity,-Inf]}]}'
    yield infer("fp64 special", "type_fp64", special)
    yield infer("fp32 widened", "plain", {"inputs": [tensor("INPUT0", "FP32", [2, 2], [0.1, 1e-7, 6.5e25, 16777217])]})
    yield infer("fp16 json in", "type_fp16", {"inputs": [tensor("INPUT0", "FP16", [1], [1])]})
    halves = tensor("INPUT0", "FP16", [2], binary_data_size=4)
    yield infer("fp16 json out", "type_fp16", {"inputs": [halves]}, b"\0\x3c\0\x40")
    asked = {"inputs": [halves], "parameters": {"binary_data_output": True}}
    yield infer("fp16 binary", "type_fp16", asked, b"\0\x3c\0\x40")
    yield infer("unknown datatype", "plain", {"inputs": [tensor("INPUT0", "FP99", [2, 2], [1, 2, 3, 4])]})
    yield infer("wrong element", "plain", {"inputs": [tensor("INPUT0", "FP32", [2, 2], [1, 2, "3", 4])]})
    yield infer("string element not a string", "identity_bytes", {"inputs": [tensor("INPUT0", "BYTES", [1, 1], [5])]})


def _binary() -> Iterator[Exchange]:
    four = tensor("INPUT0", "FP32", [2, 2], binary_data_size=16)
    yield infer("binary in, json out", "plain", {"inputs": [four]}, FLOATS)
    binary = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    yield infer("binary both ways", "plain", {"inputs": [four], "outputs": binary}, FLOATS)
    strings = tensor("INPUT0", "BYTES", [1, 3], binary_data_size=len(STRINGS))
    yield infer("binary strings", "identity_bytes", {"inputs": [strings], "outputs": binary}, STRINGS)
    yield infer("binary strings, json out", "identity_bytes", {"inputs": [strings]}, STRINGS)
    yield infer("binary too short", "plain", {"inputs": [four]}, FLOATS[:12])
    yield infer("binary too long", "plain", {"inputs": [four]}, FLOATS + b"1234")
    short = tensor("INPUT0", "FP32", [2, 2], binary_data_size=12)
    yield infer("binary size and shape differ", "plain", {"inputs": [short]}, FLOATS[:12])
    wrong = tensor("INPUT0", "FP32", [2, 2], binary_data_size="16")
    yield infer("binary size not a number", "plain", {"inputs": [wrong]}, FLOATS)
    lies = [struct.pack("<I", 9) + b"abc", b"\1\0", STRINGS[:5], STRINGS + STRINGS]
    for index, lie in enumerate(lies):
        lying = tensor("INPUT0", "BYTES", [1, 3], binary_data_size=len(lie))
        yield infer(f"lying strings {index}", "identity_bytes", {"inputs": [lying]}, lie)
    yield Exchange(
        "header length zero is raw",
        "POST",
        "/v2/models/plain/infer",
        FLOATS,
        {"Inference-Header-Content-Length": "0"},
    )
    raw = {"Inference-Header-Content-Length": "0"}
    yield Exchange("raw batched", "POST", "/v2/models/identity_fp32/infer", SIXTEEN, raw)
    yield Exchange("raw deduced dimension", "POST", "/v2/models/wide/infer", FLOATS * 2, raw)
    yield Exchange("raw two unknown dimensions", "POST", "/v2/models/wider/infer", FLOATS, raw)
    yield Exchange("raw two inputs", "POST", "/v2/models/add_sub/infer", SIXTEEN, raw)
    yield Exchange("raw string", "POST", "/v2/models/one_string/infer", b"hello", raw)
    yield Exchange("raw string of any shape", "POST", "/v2/models/identity_bytes/infer", b"hello", raw)
    yield Exchange("raw wrong size", "POST", "/v2/models/plain/infer", FLOATS[:12], raw)
    yield Exchange("raw without a body", "POST", "/v2/models/plain/infer")
    beyond = {"Inference-Header-Content-Length": "999"}
    yield Exchange("header length too large", "POST", "/v2/models/plain/infer", b"{}", beyond)
    negative = {"Inference-Header-Content-Length": "-1"}
    yield Exchange("header length negative", "POST", "/v2/models/plain/infer", b"{}", negative)
    yield Exchange(
        "header length not a number",
        "POST",
        "/v2/models/plain/infer",
        b"{}",
        {"Inference-Header-Content-Length": "abc"},
        newer="docs/reference/http-inference.md#binary-tensors",
        expected=(400, '{"error":"Unable to parse Inference-Header-Content-Length, got: abc"}'),
    )


def _outputs() -> Iterator[Exchange]:
    yield infer("one output of two", "add_sub", {"inputs": TWO, "outputs": [{"name": "OUTPUT1"}]})
    yield infer("outputs swapped", "add_sub", {"inputs": TWO, "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]})
    yield infer("output twice", "plain", {"inputs": [PLAIN], "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]})
    yield infer("unknown output", "plain", {"inputs": [PLAIN], "outputs": [{"name": "X"}]})
    yield infer("outputs not an array", "plain", {"inputs": [PLAIN], "outputs": {"name": "OUTPUT0"}})
    yield infer("output without a name", "plain", {"inputs": [PLAIN], "outputs": [{}]})
    mixed = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}]
    yield infer("one binary, one json", "add_sub", {"inputs": TWO, "outputs": mixed})
    yield infer("all binary", "add_sub", {"inputs": TWO, "parameters": {"binary_data_output": True}})
    default = {"inputs": TWO, "outputs": [{"name": "OUTPUT0"}], "parameters": {"binary_data_output": True}}
    yield infer("listed outputs ignore the default", "add_sub", default)
    for count in (0, 1, 2, 9):
        best = [{"name": "OUTPUT0", "parameters": {"classification": count}}]
        yield infer(f"best {count}", "ranked", {"inputs": [FOUR], "outputs": best})
    two = tensor("INPUT0", "FP32", [2, 4], [1, 2, 3, 4, 8, 7, 6, 5])
    best = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
    yield infer("best of a batch", "ranked", {"inputs": [two], "outputs": best})
    yield infer(
        "best of integers", "ranked_int", {"inputs": [tensor("INPUT0", "INT32", [4], [3, 1, 9, 7])], "outputs": best}
    )
    binary = [{"name": "OUTPUT0", "parameters": {"classification": 2, "binary_data": True}}]
    yield infer("best as binary", "ranked", {"inputs": [FOUR], "outputs": binary})
    wrong = [{"name": "OUTPUT0", "parameters": {"classification": "2"}}]
    yield infer("classification not a number", "ranked", {"inputs": [FOUR], "outputs": wrong})
    wrong = [{"name": "OUTPUT0", "parameters": {"binary_data": "yes"}}]
    yield infer("binary_data not a bool", "ranked", {"inputs": [FOUR], "outputs": wrong})


def _bad_json() -> Iterator[Exchange]:
    bodies = {
        "open brace": b"{bad",
        "no colon": b'{"a"',
        "no value": b'{"a":',
        "no comma": b'{"a":1',
        "trailing": b"{} x",
        "bad escape": b'{"a":"\\x"}',
        "open string": b'{"a":"b',
        "array, no comma": b"[1 2]",
        "not a number": b'{"a":-}',
        "no fraction": b'{"a":1.}',
        "no exponent": b'{"a":1e}',
        "bad hex": b'{"a":"\\u12g4"}',
        "half a surrogate pair": b'{"a":"\\ud800x"}',
        "number too big": b'{"a":1e999}',
        "blank": b"   ",
        "a control character": b'{"a":"\x01"}',
    }
    for name, body in bodies.items():
        yield infer(f"json: {name}", "plain", body)
    yield infer("json: an array", "plain", [])
    yield infer("json: a number", "plain", 5)
    yield infer("no inputs", "plain", {})
    yield infer("inputs not an array", "plain", {"inputs": 5})
    yield infer("input not an object", "plain", {"inputs": [5]})
    yield infer("id not a string", "plain", {"id": 5, "inputs": [PLAIN]})


def _bad_inputs() -> Iterator[Exchange]:
    yield infer("input without data", "plain", {"inputs": [tensor("INPUT0", "FP32", [2, 2])]})
    both = tensor("INPUT0", "FP32", [2, 2], [1, 2, 3, 4], binary_data_size=16)
    yield infer("data and binary", "plain", {"inputs": [both]})
    nameless = {"datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    yield infer("no name", "plain", {"inputs": [nameless]})
    yield infer("no datatype", "plain", {"inputs": [{"name": "INPUT0", "shape": [2, 2], "data": [1, 2, 3, 4]}]})
    yield infer("no shape", "plain", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "data": [1, 2, 3, 4]}]})
    yield infer("name not a string", "plain", {"inputs": [{**nameless, "name": 5}]})
    yield infer("shape not an array", "plain", {"inputs": [{**PLAIN, "shape": 4}]})
    yield infer("negative dimension", "plain", {"inputs": [{**PLAIN, "shape": [2, -2]}]})
    yield infer("dimension not a number", "plain", {"inputs": [{**PLAIN, "shape": [2, "2"]}]})
    yield infer("data not an array", "plain", {"inputs": [{**PLAIN, "data": 5}]})
    yield infer("too many elements", "plain", {"inputs": [{**PLAIN, "data": [1, 2, 3, 4, 5]}]})
    text = '{"error":"Failed to parse \'data\' field: shape does not match true shape"}'
    yield infer(
        "too few elements",
        "plain",
        {"inputs": [{**PLAIN, "data": [1, 2, 3]}]},
        newer="docs/reference/http-inference.md#tensors-in-json",
        expected=(500, text),
    )


def _bad_core() -> Iterator[Exchange]:
    yield infer("unknown model", "nothing", {"inputs": [PLAIN]})
    yield infer("unknown version", "plain", {"inputs": [PLAIN]}, version="7")
    yield infer("input twice", "plain", {"id": "x", "inputs": [PLAIN, PLAIN]})
    yield infer("one input missing", "add_sub", {"id": "x", "inputs": TWO[:1]})
    yield infer("no input at all", "add_sub", {"inputs": []})
    yield infer("one input too many", "plain", {"inputs": [PLAIN, {**PLAIN, "name": "X"}]})
    yield infer("unexpected name", "plain", {"inputs": [{**PLAIN, "name": "X"}]})
    yield infer("datatype", "plain", {"inputs": [tensor("INPUT0", "INT32", [2, 2], [1, 2, 3, 4])]})
    yield infer("rank", "plain", {"inputs": [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4])]})
    yield infer("shape with batch", "ranked", {"inputs": [tensor("INPUT0", "FP32", [1, 5], [1, 2, 3, 4, 5])]})
    yield infer("batch dimension forgotten", "ranked", {"inputs": [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4])]})
    yield infer("empty shape", "ranked", {"inputs": [tensor("INPUT0", "FP32", [], [1])]})
    yield infer("batch too large", "ranked", {"inputs": [tensor("INPUT0", "FP32", [9, 4], [1] * 36)]})
    uneven = [tensor("INPUT0", "FP32", [1, 2], [1, 2]), tensor("INPUT1", "FP32", [2, 2], [1, 2, 3, 4])]
    yield infer("batch sizes differ", "pair", {"inputs": uneven})
    yield infer("too few strings", "identity_bytes", {"inputs": [tensor("INPUT0", "BYTES", [1, 3], ["a", "b"])]})
    yield infer("too many strings", "identity_bytes", {"inputs": [tensor("INPUT0", "BYTES", [1, 1], ["a", "b"])]})


def _parameters() -> Iterator[Exchange]:
    good = {"a": 1, "b": "x", "c": True, "d": 0.5, "priority": 1, "timeout": 1000, "sequence_id": 0}
    yield infer("parameters", "plain", {"inputs": [PLAIN], "parameters": good})
    bad = {
        "sequence_id": [],
        "sequence_start": 1,
        "sequence_end": "x",
        "priority": -1,
        "timeout": "5",
        "binary_data_output": 1,
        "triton_x": 1,
        "mine": None,
        "other": [1],
    }
    for name, value in bad.items():
        yield infer(f"bad parameter {name}", "plain", {"inputs": [PLAIN], "parameters": {name: value}})
    yield infer("parameters not an object", "plain", {"inputs": [PLAIN], "parameters": 5})
    region = tensor("INPUT0", "FP32", [2, 2], shared_memory_region="r", shared_memory_byte_size=16)
    yield infer("unknown shared memory", "plain", {"inputs": [region]})
    asked = [{"name": "OUTPUT0", "parameters": {"shared_memory_region": "r", "classification": 1}}]
    yield infer("shared memory and classification", "plain", {"inputs": [PLAIN], "outputs": asked})
    asked = [{"name": "OUTPUT0", "parameters": {"shared_memory_region": "r", "binary_data": True}}]
    yield infer("shared memory and binary", "plain", {"inputs": [PLAIN], "outputs": asked})


def _compression() -> Iterator[Exchange]:
    body = json.dumps({"inputs": [PLAIN]}).encode()
    gzip = zlib.compressobj(wbits=31)
    packed = gzip.compress(body) + gzip.flush()
    path = "/v2/models/plain/infer"
    yield Exchange("gzip", "POST", path, packed, {"Content-Encoding": "gzip"})
    yield Exchange("deflate", "POST", path, zlib.compress(body), {"Content-Encoding": "deflate"})
    yield Exchange("gzip called deflate", "POST", path, packed, {"Content-Encoding": "deflate"})
    yield Exchange("identity", "POST", path, body, {"Content-Encoding": "identity"})
    yield Exchange("unknown encoding", "POST", path, body, {"Content-Encoding": "br"})
    yield Exchange("upper-case encoding", "POST", path, packed, {"Content-Encoding": "GZIP"})
    yield Exchange("nothing compressed", "POST", path, b"", {"Content-Encoding": "gzip"})
    yield Exchange("answer in gzip", "POST", path, body, {"Accept-Encoding": "gzip"})
    yield Exchange("answer in deflate", "POST", path, body, {"Accept-Encoding": "gzip;q=0.5, deflate"})
    yield Exchange("any answer", "POST", path, body, {"Accept-Encoding": "*"})
    yield Exchange("answer not in gzip", "POST", path, body, {"Accept-Encoding": "gzip;q=0"})
    yield Exchange("errors are not compressed", "POST", path, b"{", {"Accept-Encoding": "gzip"})


def _control() -> Iterator[Exchange]:
    yield Exchange("load in mode none", "POST", "/v2/repository/models/plain/load")
    yield Exchange("unload in mode none", "POST", "/v2/repository/models/plain/unload")
    yield Exchange("load by GET", "GET", "/v2/repository/models/plain/load")
    yield Exchange("repository by name", "POST", "/v2/repository/here/index")
    yield Exchange("load from a named repository", "POST", "/v2/repository/here/models/plain/load")
