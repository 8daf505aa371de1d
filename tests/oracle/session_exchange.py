"""Putting an exchange to a server, and reducing the answer to what both servers must agree on.

The written normalisation: times and versions of the server differ by nature; so do, between an ONNX model and its
python-backend twin, ``backend``, ``platform``, ``runtime``, ``default_model_filename`` and ``instance_group`` of a
config and ``platform`` of metadata. Fields that the reference build (2.51) does not have yet are dropped from a config,
too. Triton lists the inputs that it got in no particular order, so that list is sorted. Everything else is compared as
it is.
"""

from __future__ import annotations

import http.client
import json
import re
import zlib
from typing import Any

from session_script import Exchange

KEPT_HEADERS = ("content-type", "transfer-encoding", "inference-header-content-length", "content-encoding")
DIFFERENT_BY_NATURE = ("backend", "platform", "runtime", "default_model_filename", "instance_group")
SERVER_IDENTITY = ("version",)
NEWER_CONFIG_FIELDS = ("is_non_linear_format_io", "model_metrics")


def put(host: str, port: int, exchange: Exchange) -> dict[str, Any]:
    """The server's answer, in a form that JSON can hold; a body is text, each byte one character."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        connection.putrequest(exchange.method, exchange.path, skip_accept_encoding=True)
        for name, value in exchange.headers.items():
            connection.putheader(name, value)
        if exchange.method == "POST":
            connection.putheader("Content-Length", str(len(exchange.body)))
        connection.endheaders(exchange.body or None)
        response = connection.getresponse()
        body = response.read()
        headers = {name: value for name in KEPT_HEADERS if (value := response.getheader(name)) is not None}
        if headers.get("content-encoding") in ("gzip", "deflate"):
            body = zlib.decompress(body, wbits=47)
        return {
            "status": response.status,
            "reason": response.reason,
            "headers": headers,
            "body": body.decode("latin-1"),
        }
    finally:
        connection.close()


def normalised(exchange: Exchange, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without what differs by nature."""
    result = dict(answer)
    result["body"] = sort_input_names(answer["body"])
    if exchange.path == "/v2":
        result["body"] = _without(answer["body"], SERVER_IDENTITY)
    elif exchange.path.endswith("/config") and answer["status"] == 200:
        result["body"] = _without(answer["body"], DIFFERENT_BY_NATURE, NEWER_CONFIG_FIELDS)
    elif exchange.path.endswith("/stats") and answer["status"] == 200:
        result["body"] = re.sub(r'"(ns|last_inference)":\d+', r'"\1":0', answer["body"])
    elif _is_metadata(exchange.path) and answer["status"] == 200:
        result["body"] = _without(answer["body"], ("platform",))
    return result


def sort_input_names(text: str) -> str:
    """The text with the inputs that the server got in order."""
    return re.sub(r"Got input\(s\) \[(.*?)\]", _sorted_names, text)


def _sorted_names(match: re.Match[str]) -> str:
    return f"Got input(s) [{','.join(sorted(match.group(1).split(',')))}]"


def _is_metadata(path: str) -> bool:
    parts = path.strip("/").split("/")
    return parts[:2] == ["v2", "models"] and (len(parts) == 3 or (len(parts) == 5 and parts[3] == "versions"))


def _without(body: str, names: tuple[str, ...], everywhere: tuple[str, ...] = ()) -> str:
    value = json.loads(body.encode("latin-1"))
    for name in names:
        value.pop(name, None)
    return json.dumps(drop_fields(value, everywhere))


def drop_fields(value: Any, names: tuple[str, ...]) -> Any:
    """The value without these members, at any depth."""
    if isinstance(value, dict):
        return {key: drop_fields(item, names) for key, item in value.items() if key not in names}
    if isinstance(value, list):
        return [drop_fields(item, names) for item in value]
    return value
