"""The API server of Kubernetes, asked for the EndpointSlices of one Service.

Each list and each watch has a connection of its own, for which the service account's token and the authority's
certificate are read again: both are replaced while a pod runs. An address without TLS, that of ``kubectl proxy``, gets
no token. The client is httpcore2, of the extra `kubernetes`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import orjson
import trio

from ..engine.plugins import import_package
from ..engine.version import VERSION
from .endpoint_slices import SERVICE_LABEL
from .kubernetes_settings import KubernetesSettings
from .slice_watch import ApiServerError
from .token_file import read_token

_LIMIT_S = 10.0
"""To connect, and to write."""
_LIST_LIMIT_S = 30.0
"""For all of a list: one that comes byte by byte is none."""
_WATCH_S = 300
"""A watch lasts so long, or up to twice as long, as those of Kubernetes' own clients."""
_LATE_S = 30.0
"""A watch that has not ended so long after it should have is lost."""
_MOST_LIST_BYTES = 256 << 20
_MOST_EVENT_BYTES = 16 << 20
_MOST_TEXT_BYTES = 64 << 10
_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A watch is silent for minutes: whether there still is a machine at its other end is asked every half a minute."""


class ApiServer:
    """See above.

    Args:
        settings: with `server` and `namespace`.

    Raises:
        UnavailableError: the extra is not installed.
    """

    def __init__(self, settings: KubernetesSettings, chance: Random) -> None:
        self._http: Any = import_package("httpcore2", "[kubernetes] of the file of the fleet needs", "kubernetes")
        self._settings = settings
        self._chance = chance

    async def list(self) -> dict[str, Any]:
        """All slices, as an EndpointSliceList.

        Raises:
            ApiServerError: it cannot be had.
        """
        with trio.move_on_after(_LIST_LIMIT_S):
            async with self._answer("list", {}, _LIST_LIMIT_S) as answer:
                return _read_json(await self._read(answer, _MOST_LIST_BYTES))
        raise ApiServerError(f"{self._settings.server}: no complete list within {_LIST_LIMIT_S:g} s")

    @asynccontextmanager
    async def watch(self, version: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """What changes from a version on: objects with ``type`` and ``object``, until the API server ends the watch.

        Raises:
            ApiServerError: it is refused, or is lost.
        """
        last_s = _WATCH_S + int(self._chance.random() * _WATCH_S)
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": str(last_s)}
        async with self._answer("watch", query, last_s + _LATE_S) as answer, aclosing(self._events(answer)) as events:
            yield events

    @asynccontextmanager
    async def _answer(self, verb: str, query: dict[str, str], limit_s: float) -> AsyncIterator[Any]:
        """The answer to a request that was accepted."""
        settings = self._settings
        tls, headers = await trio.to_thread.run_sync(self._credentials)
        selector = {"labelSelector": f"{SERVICE_LABEL}={settings.service}"}
        path = f"apis/discovery.k8s.io/v1/namespaces/{quote(settings.namespace)}/endpointslices"
        address = f"{settings.server}/{path}?{urlencode(selector | query)}"
        limits = {"connect": _LIMIT_S, "write": _LIMIT_S, "read": limit_s, "pool": _LIMIT_S}
        pool = self._http.AsyncConnectionPool(ssl_context=tls, socket_options=_ALIVE)
        asking: AbstractAsyncContextManager[Any] = pool.stream(
            "GET", address, headers=headers, extensions={"timeout": limits}
        )
        trouble = (self._http.NetworkError, self._http.TimeoutException, self._http.ProtocolError)
        try:
            async with pool, asking as answer:
                if answer.status != 200:
                    raise self._refusal(verb, answer.status, await self._read(answer, _MOST_TEXT_BYTES))
                yield answer
        except trouble as error:
            raise ApiServerError(f"{settings.server}: {_reason(error)}") from error

    def _credentials(self) -> tuple[ssl.SSLContext | None, list[tuple[str, str]]]:
        """For one connection. Blocks."""
        settings = self._settings
        headers = [("Accept", "application/json"), ("User-Agent", f"trireme-gateway/{VERSION}")]
        if not settings.server.startswith("https:"):
            return None, headers
        try:
            token = read_token(settings.token_file)
        except (OSError, ValueError) as error:
            raise ApiServerError(f"the token of the service account: {error}") from error
        try:
            tls = ssl.create_default_context(cafile=settings.ca_file)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ApiServerError(f"the certificate of its authority, {settings.ca_file}: {error}") from error
        return tls, [*headers, ("Authorization", f"Bearer {token}")]

    async def _read(self, answer: Any, most: int) -> bytes:
        content = bytearray()
        async with aclosing(answer.aiter_stream()) as chunks:
            async for chunk in chunks:
                content += chunk
                if len(content) > most:
                    raise ApiServerError(f"its answer is larger than {most} bytes")
        return bytes(content)

    async def _events(self, answer: Any) -> AsyncGenerator[dict[str, Any]]:
        rest = bytearray()
        async with aclosing(answer.aiter_stream()) as chunks:
            async for chunk in chunks:
                rest += chunk
                *lines, last = rest.split(b"\n") if b"\n" in chunk else [rest]
                rest = bytearray(last)
                if len(rest) > _MOST_EVENT_BYTES:
                    raise ApiServerError(f"an event is larger than {_MOST_EVENT_BYTES} bytes", anew=True)
                for line in lines:
                    if line.strip():
                        yield _read_json(bytes(line))

    def _refusal(self, verb: str, status: int, content: bytes) -> ApiServerError:
        """What a status other than 200 means, with what can be done about it."""
        settings = self._settings
        try:
            said = str(_read_json(content).get("message") or "")
        except ApiServerError:
            said = ""
        text = f"it answers {status} to {verb}{f': {said}' if said else ''}"
        if status == 401:
            text += f"; the token in {settings.token_file} is not accepted"
        elif status == 403:
            text += (
                f"; the service account of this gateway needs a Role in the namespace {settings.namespace} with the "
                "verbs get, list and watch on endpointslices of the API group discovery.k8s.io, and a RoleBinding to it"
            )
        elif status == 404:
            text += "; EndpointSlices of discovery.k8s.io/v1 are there since Kubernetes 1.21"
        return ApiServerError(text, status)


def _reason(error: BaseException) -> str:
    """In words: what lies at the bottom of it says more than the names of exceptions."""
    while not str(error) and (below := error.__cause__ or error.__context__) is not None:
        error = below
    return str(error) or type(error).__name__


def _read_json(content: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ApiServerError(f"it answers with what is no JSON: {error}", anew=True) from error
    if not isinstance(found, dict):
        raise ApiServerError("it answers with what is no object of JSON", anew=True)
    return found
