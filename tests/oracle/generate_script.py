"""The scripted session over the generate extension: calls, valid and invalid, to be put to both servers in order."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from session_script import Exchange

_IN_JSON = "docs/reference/http-inference.md#tensors-in-json"


def generate(name: str, model: str, request: object, *, stream: bool = False, **fields: Any) -> Exchange:
    """A call with this JSON object, or these very bytes."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    path = f"/v2/models/{model}/{'generate_stream' if stream else 'generate'}"
    return Exchange(name, "POST", path, body, **fields)


def both(name: str, model: str, request: object, **fields: Any) -> Iterator[Exchange]:
    """The same over both routes."""
    yield generate(name, model, request, **fields)
    yield generate(f"{name}, streamed", model, request, stream=True, **fields)


def script() -> Iterator[Exchange]:
    """All exchanges."""
    yield from _types()
    yield from _bad_types()
    yield from _shapes()
    yield from _parameters()
    yield from _documents()
    yield from _routes()
    yield from _answers()
    yield from _counts()


def _types() -> Iterator[Exchange]:
    values: dict[str, list[object]] = {
        "BOOL": [True, [False, True]],
        "UINT8": [7, [1, 2, 256, 300]],
        "UINT16": [70000],
        "INT8": [-7, [200, -200]],
        "INT32": [-7, [2**31, 1]],
        "INT64": [-(2**63), [2**63 - 1, 0]],
        "UINT64": [2**64 - 1, [0, 2**63]],
        "FP32": [1, 0.1, [1.5, 1e-7, 0.5, -0.0], 1e300],
        "FP64": [1, 0.1, [1e-7, 123456789012345680000.0]],
        "STRING": ["", 'é\n"\\/\u0001', ["a", "", "\u0000"]],
    }
    for datatype, given in values.items():
        for number, value in enumerate(given):
            yield generate(f"{datatype} {number}", "types", {f"A_{datatype}": value})
    yield generate("rows of INT32", "rows", {"A_INT32": [1, 2, 3]})
    yield generate("one row", "rows", {"A_INT32": 1})
    yield generate("two inputs", "rows", {"A_INT32": [1, 2], "A_STRING": ["a", "b"]})
    yield generate("inputs of two lengths", "types", {"A_INT32": [1, 2], "A_STRING": "a"})
    yield generate("no input at all", "types", {})
    yield generate("NaN", "types", b'{"A_FP32": NaN}')
    yield generate("infinities", "types", b'{"A_FP64": [Infinity, -Infinity, -Inf]}')


def _bad_types() -> Iterator[Exchange]:
    values: dict[str, list[object]] = {
        "BOOL": [1, "true", [True, 0]],
        "UINT8": [-1, 1.0, "1", True, [1, None]],
        "INT32": [1.0, "1", 2**63, [1, "2"]],
        "UINT64": [2**64, -1],
        "FP16": [1, [1.0]],
        "FP32": ["1", True, [1, [2]]],
        "STRING": [1, None, ["a", 1], True],
    }
    for datatype, given in values.items():
        for number, value in enumerate(given):
            yield generate(f"{datatype} wrong {number}", "types", {f"A_{datatype}": value})
    for datatype in ("BOOL", "INT32", "FP32", "STRING"):
        yield generate(f"{datatype} null", "types", {f"A_{datatype}": None})
        yield generate(f"{datatype} object", "types", {f"A_{datatype}": {"a": 1}})
        yield generate(f"{datatype} nested", "types", {f"A_{datatype}": [[1]]})
        yield generate(f"{datatype} of no elements", "types", {f"A_{datatype}": []})
    yield generate("FP16 of no elements", "types", {"A_FP16": []})
    yield generate("numbers of a wrong type and shape", "must", {"A": ["x", "y"], "B": "x"})
    yield generate("strings of a wrong type and shape", "must", {"A": 1, "B": [1, 2]})
    yield generate("a wrong type among nested parameters", "types", {"parameters": {"A_INT32": "x"}})
    yield generate("a wrong shape among nested parameters", "must", {"parameters": {"A": [1, 2]}})
    yield generate("a wrong id behind a wrong parameter", "types", {"p": [1], "id": 3})
    yield generate("a wrong parameter before a wrong input", "types", {"zz": [], "A_INT32": "x"})
    yield generate("a wrong input before wrong parameters", "types", {"A_INT32": "x", "parameters": 3})
    yield from both("a wrong type", "must", {"A": "x", "B": "y"})


def _shapes() -> Iterator[Exchange]:
    for number in range(7):
        for count in (1, 2, 3, 4, 6, 12):
            yield generate(f"shape {number} of {count}", "shapes", {f"A_{number}": list(range(count))})
        yield generate(f"shape {number} of a scalar", "shapes", {f"A_{number}": 5})
    for number in range(3):
        for count in (1, 2, 3, 4, 6, 12, 20):
            yield generate(f"row shape {number} of {count}", "row_shapes", {f"A_{number}": list(range(count))})
    for model, number in (
        ("shapes", 0),
        ("shapes", 2),
        ("shapes", 3),
        ("shapes", 6),
        ("row_shapes", 0),
        ("row_shapes", 1),
    ):
        yield generate(f"no elements, {model} {number}", model, {f"A_{number}": []})
    yield generate("no rows", "rows", {"A_INT32": [], "A_STRING": []})
    for number, value in enumerate(([[1, 2]], [[1, 2], []], [[], [1, 2]])):
        yield generate(f"uneven numbers {number}", "types", {"A_INT32": value})
    too_few = (500, '{"error":"Failed to parse \'data\' field: shape does not match true shape"}')
    yield generate("too few numbers", "types", {"A_INT32": [[]]}, newer=_IN_JSON, expected=too_few)
    for number, value in enumerate(([["a", "b"]], [["a"], []], [["a"], ["b"]])):
        yield generate(f"uneven strings {number}", "types", {"A_STRING": value})
    yield generate("rows that disagree", "row_shapes", {"A_0": [1, 2, 3], "A_2": [1, 2]})


def _parameters() -> Iterator[Exchange]:
    yield generate("plain parameters", "types", {"A_INT32": 1, "s": "x", "n": 3, "b": True, "d": 0.5})
    yield generate("nested parameters", "types", {"A_INT32": 1, "parameters": {"s": "x", "n": 3, "b": False, "d": 1.5}})
    yield generate("an input among nested parameters", "types", {"parameters": {"A_INT32": 4, "n": 1}})
    yield generate("an input twice", "types", {"A_INT32": 1, "parameters": {"A_INT32": 4}})
    yield generate("a parameter twice", "types", {"A_INT32": 1, "n": 1, "parameters": {"n": 2}})
    yield generate("a parameter twice, nested first", "types", {"parameters": {"n": 2}, "A_INT32": 1, "n": 1})
    yield generate("parameters inside parameters", "types", {"A_INT32": 1, "parameters": {"parameters": {"n": 1}}})
    yield generate("parameters inside parameters, no object", "types", {"parameters": {"parameters": 3}})
    yield generate("an id among nested parameters", "types", {"A_INT32": 1, "parameters": {"id": "nested"}})
    yield generate("an id", "types", {"A_INT32": 1, "id": "mine"})
    yield generate("an empty id", "types", {"A_INT32": 1, "id": ""})
    for number, value in enumerate((5, None, True, ["x"], 1.5)):
        yield generate(f"an id of another type {number}", "types", {"A_INT32": 1, "id": value})
    for number, value in enumerate((None, [1], {"a": 1}, [])):
        yield generate(f"a parameter of a wrong type {number}", "types", {"A_INT32": 1, "p": value})
        yield generate(f"a nested parameter of a wrong type {number}", "types", {"parameters": {"p": value}})
    for number, value in enumerate(("x", 3, None, [1], [], True)):
        yield generate(f"parameters that are no object {number}", "types", {"A_INT32": 1, "parameters": value})
    yield generate("large numbers", "types", {"A_INT32": 1, "n": 2**63, "m": -(2**63), "big": 2**64})
    for name, value in {
        "sequence_id": 7,
        "sequence_start": True,
        "priority": 1,
        "timeout": 5,
        "binary_data_output": True,
        "headers": "h",
        "triton_x": "t",
        "triton_final_response": True,
        "triton_enable_empty_final_response": True,
        "": "nameless",
    }.items():
        yield generate(f"a parameter called {name!r}", "types", {"A_INT32": 1, name: value})
    yield generate("a name that means something, of another type", "types", {"priority": "x", "sequence_start": 3})
    yield generate("a sequence without an id", "sequential", {"A": 1, "sequence_id": 5, "sequence_start": True})
    yield generate("an input called parameters", "odd", {"parameters": 1})
    yield generate("an input called parameters, and an object", "odd", {"parameters": {"n": 1}})
    yield generate("an input called parameters, not given", "odd", {"n": 1})
    yield generate("an input twice, nested first", "types", {"parameters": {"A_INT32": 4}, "A_INT32": 1})
    yield generate("an input twice, with an id", "types", {"A_INT32": 1, "parameters": {"A_INT32": 4}, "id": "mine"})
    yield generate("outputs called as the server's own", "odd_names", {"id": "request", "WORD": "output"})
    yield generate("outputs called as the server's own, no id", "odd_names", {"WORD": "output"})
    yield generate("an input called id", "odd_id", {"id": "both"})
    yield generate("a non-ASCII parameter", "types", {"A_INT32": 1, "é": "ü"})


def _documents() -> Iterator[Exchange]:
    bodies = {
        "nothing": b"",
        "an array": b"[]",
        "a number": b"3",
        "null": b"null",
        "half an object": b'{"A": 1',
        "garbage behind": b'{"A": 1} x',
        "no JSON": b"hello",
    }
    for name, body in bodies.items():
        yield from both(f"a body that is {name}", "must", body)
    yield from both("missing inputs", "must", {"A": 1})
    yield from both("no inputs", "must", {})
    yield from both("another name", "must", {"A": 1, "B": "x", "C": [1]})
    yield generate("a duplicate parameter", "types", b'{"A_INT32": 1, "n": 1, "n": 2}')
    yield generate("not UTF-8", "types", b'{"A_STRING": "\xff"}')
    packed = gzip.compress(b'{"A": 1, "B": "x"}', mtime=0)
    for encoding in ("gzip", "deflate", "identity", "br", "", "GZIP"):
        headers = {"Content-Encoding": encoding}
        body = packed if encoding == "gzip" else b'{"A": 1, "B": "x"}'
        yield from both(f"content encoding {encoding!r}", "must", body, headers=headers)
    yield generate("compressed to an unknown model", "nobody", packed, headers={"Content-Encoding": "gzip"})
    yield from both("a compressed answer wanted", "must", {"A": 1, "B": "x"}, headers={"Accept-Encoding": "gzip"})
    json_length = {"Inference-Header-Content-Length": "3"}
    yield from both("a header length", "must", {"A": 1, "B": "x"}, headers=json_length)
    yield from both("another content type", "must", {"A": 1, "B": "x"}, headers={"Content-Type": "text/plain"})


def _routes() -> Iterator[Exchange]:
    for verb in ("generate", "generate_stream"):
        yield Exchange(f"GET {verb}", "GET", f"/v2/models/must/{verb}")
        yield Exchange(f"GET {verb} of an unknown model", "GET", f"/v2/models/nobody/{verb}")
        for version in ("1", "7", "99999999999999999999", "0"):
            path = f"/v2/models/must/versions/{version}/{verb}"
            yield Exchange(f"{verb} version {version}", "POST", path, b'{"A": 1, "B": "x"}')
        yield Exchange(f"{verb} version x", "POST", f"/v2/models/must/versions/x/{verb}", b"{}")
        yield Exchange(f"{verb} of an unknown model", "POST", f"/v2/models/nobody/{verb}", b"{}")
        yield Exchange(f"{verb} of an unknown model, no JSON", "POST", f"/v2/models/nobody/{verb}", b"")
    yield Exchange("infer on a decoupled model", "POST", "/v2/models/story/infer", b"{}")


def _answers() -> Iterator[Exchange]:
    for verb in ("say", "pair", "empty", "half", "fail", "missing"):
        yield from both(f"one answer: {verb}", "line", {"SCRIPT": verb})
        yield from both(f"one answer with an id: {verb}", "line", {"SCRIPT": verb, "id": "i"})


def _counts() -> Iterator[Exchange]:
    for steps in (
        "end",
        "say!",
        "say end",
        "say say!",
        "say pair empty end",
        "fail!",
        "missing!",
        "fail end",
        "fail say end",
        "say fail!",
        "say fail end",
        "say missing say fail say!",
        "half end",
        "half!",
        "say half say!",
        "empty end",
    ):
        yield from both(f"story: {steps}", "story", {"SCRIPT": steps})
    yield from both("story with an id", "story", {"SCRIPT": "say fail say!", "id": "i"})
    wanted = {"SCRIPT": "say end", "triton_enable_empty_final_response": True}
    yield from both("story, empty final response wanted", "story", wanted)
