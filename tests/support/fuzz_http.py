"""Requests to be fuzzed over HTTP: right ones, and ones of which something is wrong, to every route; and what an answer
to them may be."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fuzz_mutations import NUMBERS, mutate
from fuzz_server import MODELS, TYPES
from fuzz_target import Finding, Target, converse, described

from trireme.api.http.exchange import Route
from trireme.api.http.openapi import document
from trireme.api.http.routes import Router

NOT_OF_THE_INTERFACE = {400, 404, 405, 408, 413, 431}
"""How requests are answered that are none."""

_SIZES = {"BOOL": "?", "FP16": "e", "FP32": "f", "FP64": "d", "BF16": "H"}
_WORDS = ("", "canary ", "sequence_id", "priority", "triton_x", "a/b", "é", "\0", "x" * 300, "NaN", "OUT_A", "IN", "1")
_ROUTER = Router()


@dataclass
class Sent:
    """A request; its framing is right, whatever else is not."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encoded(self, *, close: bool = True) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: x\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head += f"Content-Length: {len(self.body)}\r\n" + ("Connection: close\r\n" if close else "") + "\r\n"
        return head.encode("latin-1", "replace") + self.body


def hostile(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value; most likely none that is wanted."""
    match rng.randrange(9 if depth < 3 else 7):
        case 0:
            return rng.choice((0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30))
        case 1:
            return rng.choice((0.0, -0.0, 1.0, 0.5, 1e308, 1e-320, float("nan"), float("inf")))
        case 2:
            return rng.choice((True, False))
        case 3:
            return None
        case 4 | 5:
            return rng.choice(_WORDS)
        case 6:
            return rng.choice(([], {}, [[]], [1, 2, 3, 4], ["a"]))
        case 7:
            return [hostile(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(_WORDS): hostile(rng, depth + 1) for _ in range(rng.randrange(4))}


def spoil(rng: random.Random, value: Any) -> Any:
    """`value` with something in it replaced, left out, or added."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice([*value])
        changed = dict(value)
        match rng.randrange(6):
            case 0:
                del changed[name]
            case 1:
                changed[rng.choice(_WORDS)] = hostile(rng)
            case _:
                changed[name] = spoil(rng, value[name])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value[:at], value[at], *value[at:]]
            case _:
                return [*value[:at], spoil(rng, value[at]), *value[at + 1 :]]
    return hostile(rng)


def dumps(rng: random.Random, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return mutate(rng, text) if rng.random() < 0.1 else text


def an_input(rng: random.Random, name: str, datatype: str, shape: list[int]) -> tuple[dict[str, Any], bytes]:
    """An input, and its bytes if they are to follow the JSON text."""
    count = int(np.prod(shape))
    numbers = [rng.randrange(2) if datatype == "BOOL" else rng.randrange(-3, 9) for _ in range(count)]
    given: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if rng.random() < 0.5 and datatype not in ("FP16", "BF16"):
        kinds: dict[str, Callable[[int], Any]] = {"BOOL": bool, "BYTES": str}
        unsigned = datatype.startswith("UINT")
        given["data"] = [kinds.get(datatype, int)(abs(each) if unsigned else each) for each in numbers]
        return given, b""
    if datatype == "BYTES":
        data = b"".join(len(str(each)).to_bytes(4, "little") + str(each).encode() for each in numbers)
    else:
        code = _SIZES.get(datatype) or f"{'u' if datatype[0] == 'U' else 'i'}{int(datatype.lstrip('UINT')) // 8}"
        data = np.array(numbers).astype(code).tobytes()
    if rng.random() < 0.1:
        data = mutate(rng, data)
    given["parameters"] = {"binary_data_size": len(data)}
    return given, data


def infer(rng: random.Random) -> Sent:
    """An infer request: JSON and binary tensors, header lengths, compression."""
    model = rng.choice((*MODELS, "canary", "pair", "text", "absent"))
    tensors = {
        "canary": [("A", "INT32", [4]), ("B", "INT32", [4])],
        "pair": [("A", "INT32", [2, 4]), ("B", "INT32", [2, 4])],
        "text": [("IN", "BYTES", [3])],
        "steps": [("X", "BYTES", [2])],
        "types": [(name, name, [rng.randrange(3)]) for name in rng.sample(TYPES, 2)],
        "sequence": [("IN", "FP32", [1, 2])],
    }.get(model, [("IN", "FP32", [2])])
    made = [an_input(rng, *tensor) for tensor in tensors]
    document: dict[str, Any] = {"inputs": [given for given, _ in made]}
    if rng.random() < 0.3:
        parameters = {
            "sequence_id": 1,
            "sequence_start": True,
            "priority": 1,
            "timeout": 5,
            "k": "v",
            "binary_data_output": 1,
        }
        document["parameters"] = {name: parameters[name] for name in rng.sample([*parameters], 2)}
    if rng.random() < 0.4:
        form = {"binary_data": True, "classification": 2, "shared_memory_region": "r", "shared_memory_byte_size": 8}
        chosen = {name: form[name] for name in rng.sample([*form], rng.randrange(3))}
        document["outputs"] = [{"name": rng.choice(("OUT_A", "OUT_B", "OUT_IN", "Y", "?")), "parameters": chosen}]
    if rng.random() < 0.3:
        document["id"] = "some id"
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        document = spoil(rng, document)
    text = dumps(rng, document)
    blobs = b"".join(blob for _, blob in made)
    headers = {}
    if blobs or rng.random() < 0.1:
        length = str(len(text))
        if rng.random() < 0.2:
            length = rng.choice((str(len(text) + rng.randrange(-3, 4)), rng.choice(NUMBERS).decode("latin-1")))
        headers["Inference-Header-Content-Length"] = length
    body = text + blobs
    if rng.random() < 0.1:
        body = rng.choice((b"", blobs, body[: rng.randrange(len(body) + 1)], body + b"x"))
    body = _packed(rng, headers, body)
    if rng.random() < 0.15:
        headers["Accept-Encoding"] = rng.choice(
            ("gzip", "deflate", "gzip;q=0.5, deflate", "*", "br", ";q=", "gzip;q=x")
        )
    version = rng.choice((*[""] * 12, "/versions/1", "/versions/2", "/versions/" + "9" * 30))
    return Sent("POST", f"/v2/models/{model}{version}/infer", headers, body)


def _packed(rng: random.Random, headers: dict[str, str], body: bytes) -> bytes:
    if rng.random() < 0.85:
        return body
    headers["Content-Encoding"] = rng.choice(("gzip", "deflate", "identity", "br", "GZIP", ""))
    pack = zlib.compressobj(wbits=rng.choice((31, 15, -15)))
    packed = pack.compress(body) + pack.flush()
    return mutate(rng, packed) if rng.random() < 0.3 else packed


def generate(rng: random.Random) -> Sent:
    model = rng.choice((*MODELS, "many", "many", "absent"))
    document: Any = {"IN": rng.choice(([0.5], 3, [2.5, 1], [-1], [])), "k": "v"}
    if model in ("canary", "pair"):
        document = {"A": [1, 2, 3, 4], "B": [1, 2, 3, 4], "parameters": {"n": 1}}
    elif model in ("text", "steps"):
        document = {"IN" if model == "text" else "X": rng.choice(("a", ["a", "b"])), "id": "i"}
    elif model == "types":
        document = {name: rng.choice((1, [1, 0], True, 0.5)) for name in rng.sample(TYPES, 2)}
    for _ in range(rng.choice((0, 1, 2))):
        document = spoil(rng, document)
    headers: dict[str, str] = {}
    body = _packed(rng, headers, dumps(rng, document))
    return Sent("POST", f"/v2/models/{model}/{rng.choice(('generate', 'generate_stream'))}", headers, body)


def elsewhere(rng: random.Random) -> Sent:
    """A request to any other route."""
    model = rng.choice((*[name for name in MODELS if name != "canary"], "absent", "%C3%A9", "%00", ".."))
    region, bodies = rng.choice(("", "/region/r", "/region/%2F")), {"parameters": {"config": "{}"}}
    unloaded = rng.choice((model, "absent", "absent", "absent"))
    about_model = [f"/v2/models/{model}{version}{what}" for version in ("", "/versions/1") for what in _ABOUT]
    method, path, body = rng.choice(
        (
            *(("GET", path, None) for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats")),
            *(("GET", path, None) for path in about_model),
            ("POST", "/v2/repository/index", {"ready": True}),
            ("POST", f"/v2/repository/models/{model}/load", rng.choice((bodies, {}))),
            ("POST", f"/v2/repository/models/{unloaded}/unload", {"parameters": {"unload_dependents": False}}),
            ("GET", f"/v2/systemsharedmemory{region}/status", None),
            ("POST", f"/v2/systemsharedmemory{region}/register", {"key": "/none", "offset": 0, "byte_size": 8}),
            ("POST", f"/v2/systemsharedmemory{region}/unregister", None),
            ("GET", f"/v2/cudasharedmemory{region}/status", None),
            (
                "POST",
                f"/v2/cudasharedmemory{region}/register",
                {"raw_handle": {"b64": ""}, "device_id": 0, "byte_size": 8},
            ),
            ("GET", "/v2/trace/setting", None),
            ("POST", f"/v2/models/{model}/trace/setting", {"trace_rate": "1", "trace_level": ["OFF"]}),
            ("GET", "/v2/logging", None),
            ("POST", "/v2/logging", {"log_info": True}),
        )
    )
    if rng.random() < 0.1:
        method = rng.choice(("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"))
    if rng.random() < 0.1:
        path = "/" + re.sub(r"[^!-~]|[?#]", "x", mutate(rng, path.encode()).decode("latin-1"))
    sent = b""
    if body is not None:
        sent = dumps(rng, spoil(rng, body) if rng.random() < 0.6 else body)
    elif rng.random() < 0.1:
        sent = dumps(rng, hostile(rng))
    return Sent(method, path, {}, sent)


_ABOUT = ("", "/ready", "/config", "/stats")


def any_request(rng: random.Random) -> Sent:
    return rng.choice((infer, infer, generate, elsewhere))(rng)


# What may be answered.


def _documented() -> dict[tuple[int, str], set[int]]:
    """Statuses by route and method."""
    known: dict[tuple[int, str], set[int]] = {}
    for path, item in document()["paths"].items():
        for part in ("model", "repository", "region"):
            path = path.replace(f"{{{part}}}", "x")
        match = _ROUTER.match(path.replace("{version}", "1").encode())
        assert match is not None
        for method, operation in item.items():
            if method != "parameters":
                statuses = {int(status) for status in operation["responses"]}
                known.setdefault((id(match.route), method.upper()), set()).update(statuses)
    return known


_STATUSES = _documented()


def allowed(sent: Sent) -> set[int]:
    """The statuses that a request may be answered with."""
    match = _ROUTER.match(sent.path.encode("latin-1", "replace"))
    if match is None:
        return {404}
    route: Route = match.route
    return _STATUSES[id(route), sent.method] - {403} if sent.method in route.handlers else {405}


def check_form(status: int, body: bytes, sent: Any) -> None:
    """An error looks like one, and is not a defect's.

    Raises:
        Finding: it does not.
    """
    if status < 400 or not body:
        return
    text = body.removeprefix(b"data: ").split(b"\n\n")[0].decode("utf-8", "replace")
    try:
        members = json.loads(text, strict=False)
    except ValueError:
        members = None
    if not isinstance(members, dict) or list(members) != ["error"] or not isinstance(members["error"], str):
        raise Finding(f"{status} with {body!r} to {described(sent)}")
    if "unexpected failure" in members["error"] or members["error"] == "internal error":
        raise Finding(f"a defect: {body!r} to {described(sent)}")


def ask(target: Target, rng: random.Random) -> None:
    """One request whose framing is right gets one answer, of a status that its route has."""
    sent = any_request(rng)
    heard = converse(target, target.http_port, [sent.encoded()], ends=False)
    head, separator, body = heard.partition(b"\r\n\r\n")
    if not separator or not head.startswith(b"HTTP/1.1 "):
        raise Finding(f"no answer but {heard!r} to {described(sent)}")
    status = int(head[9:12])
    if status not in allowed(sent):
        raise Finding(f"{status} with {body[:300]!r} to {described(sent)}, expected one of {allowed(sent)}")
    if b"transfer-encoding" not in head.lower():
        check_form(status, body, sent)
