"""The types of ASGI 3, as far as they are used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER_NAMES = "trireme.header_names"
"""Scope key of HTTP/1.x connections: header names as received, in the order of ``headers``."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}


def http_scope(
    http_version: str,
    method: str,
    scheme: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    client: tuple[str, int] | None,
    server: tuple[str, int] | None,
) -> Scope:
    """The scope of a request. ``raw_path`` is what the client sent, ``path`` its decoded form.

    Args:
        target: path and query.
        headers: lower-case names, in order.
        client, server: (address, port) of both ends.
    """
    raw_path, _, query = target.partition(b"?")
    path = unquote_to_bytes(raw_path) if b"%" in raw_path else raw_path
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": http_version,
        "method": method,
        "scheme": scheme,
        "path": path.decode("utf-8", "replace"),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": client,
        "server": server,
    }
