"""Calls of `Management`, and of the log, from a front end to the engine (`kinds.CALL`, `kinds.RESULT`).

A call has a name and a list of arguments; what of them is bytes, or may be long, stands in the payload. The result is
JSON in the payload, or an error. Both ends are made from the same methods, so that a front end cannot tell them from
those of a server in its own process.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import orjson
import trio

from ..actors.access_gate import LocalAccess
from ..actors.facade import Management, TraceChanges
from ..engine.errors import UnsupportedError
from ..engine.memory.regions import RegionKind
from ..engine.request import LATEST
from ..engine.tensor import Buffer
from ..python_backend.child.codec import Payload
from .access import AUTHORISE, answer_authorise, read_authorise
from .kinds import RESULT
from .link import LinkHead
from .slots import aligned, check_payload
from .values import (
    broken,
    read_bool,
    read_integer,
    read_list,
    read_text,
    read_value,
    write_text,
    write_value,
)

_END_64 = 2**64
_LEAST_64 = -(2**63)
_MOST_PARAMETERS = 65_536
_MOST_WAITS = 512
"""Calls that wait for models at a time: they may take long, and others are not to wait for them."""

CHANGING = frozenset(
    {
        "load_model",
        "want",
        "unload_model",
        "set_route",
        "remove_route",
        "register_system_region",
        "register_cuda_region",
        "unregister_region",
        "trace_settings",
    }
)
"""Calls that may change what front ends are told of. Each is answered when all of them have heard of that: so a client
that loads a model by one of them finds it by any other."""

Ask = Callable[[str, list[Any], Payload], Awaitable[Any]]
"""Makes a call: its name, its arguments, its payload; gives the value, or raises the error."""


class _Log(Protocol):
    """As `api.logging.LogFacade`."""

    async def change_and_show(self, **changes: Any) -> Any: ...


# ---- a front end's end ----


class RemoteManagement(Management):
    """See `Management`.

    Args:
        asks_for: called with the name of a model that is wanted, before and after.
    """

    def __init__(self, ask: Ask, asks_for: Callable[[str], None] = lambda _name: None) -> None:
        self._ask = ask
        self._asks_for = asks_for
        self._waits = trio.Semaphore(_MOST_WAITS)

    async def live(self) -> bool:
        return await self._call("live")

    async def ready(self) -> bool:
        return await self._call("ready")

    async def model_ready(self, name: str, version: int = LATEST) -> bool:
        return await self._call("model_ready", write_text(name), version)

    async def server_metadata(self) -> dict[str, Any]:
        return await self._call("server_metadata")

    async def model_statistics(self, name: str = "", version: int = LATEST) -> dict[str, Any]:
        return await self._call("model_statistics", write_text(name), version)

    async def repository_index(self, ready_only: bool = False) -> list[dict[str, str]]:
        return await self._call("repository_index", ready_only)

    async def load_model(self, name: str, parameters: Mapping[str, str | Buffer]) -> None:
        payload = Payload()
        given: list[Any] = []
        for key, value in parameters.items():
            is_text = isinstance(value, str)
            data: Buffer = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            payload.add(data)
            given.append([write_text(key), is_text, len(data)])
        await self._ask("load_model", [write_text(name), given], payload)

    async def want(self, name: str, timeout_us: int = 0) -> None:
        async with self._waits:
            self._asks_for(name)
            try:
                await self._call("want", write_text(name), timeout_us)
            finally:
                self._asks_for(name)

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        await self._call("unload_model", write_text(name), unload_dependents)

    async def route_status(self, name: str = "") -> list[dict[str, Any]]:
        return await self._call("route_status", write_text(name))

    async def set_route(self, name: str, document: Mapping[str, Any]) -> None:
        payload = Payload()
        payload.add(json.dumps(document).encode())
        await self._ask("set_route", [write_text(name), len(payload.parts[0])], payload)

    async def remove_route(self, name: str) -> None:
        await self._call("remove_route", write_text(name))

    async def stop_rollout(self, name: str) -> None:
        await self._call("stop_rollout", write_text(name))

    async def region_status(self, kind: RegionKind, name: str = "") -> list[dict[str, Any]]:
        return await self._call("region_status", kind.value, write_text(name))

    async def register_system_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        await self._call("register_system_region", write_text(name), write_text(key), offset, byte_size)

    async def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        await self._call("register_cuda_region", write_text(name), handle.hex(), device_id, byte_size)

    async def unregister_region(self, kind: RegionKind, name: str = "") -> None:
        await self._call("unregister_region", kind.value, write_text(name))

    async def trace_settings(
        self, model_name: str = "", changes: TraceChanges | None = None
    ) -> list[tuple[str, str | list[str]]]:
        given = [[name, value] for name, value in (changes or {}).items()]
        return [(name, value) for name, value in await self._call("trace_settings", write_text(model_name), given)]

    async def custom_metric(self, family: str) -> list[tuple[dict[str, str], float]]:
        return [(labels, value) for labels, value in await self._call("custom_metric", write_text(family))]

    async def fleet_report(self, since: int = 0) -> dict[str, Any]:
        return await self._call("fleet_report", since)

    async def _call(self, name: str, *arguments: Any) -> Any:
        return await self._ask(name, list(arguments), Payload())


class RemoteLog:
    """The engine's log (`api.logging.LogFacade`).

    Args:
        settings: makes the settings of their fields.
    """

    def __init__(self, ask: Ask, settings: Callable[..., Any]) -> None:
        self._ask = ask
        self._settings = settings

    async def change_and_show(self, **changes: Any) -> Any:
        """See `LogFacade`."""
        given = [[name, write_value(value)] for name, value in changes.items()]
        return self._settings(**await self._ask("log_settings", [given], Payload()))


# ---- the engine's end ----

_Read = Callable[[list[Any], memoryview], tuple[Any, ...]]


def _nothing(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    read_list(arguments, 0, 0)
    return ()


def _model(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    """Its name, and its version or how long to wait for it."""
    name, number = read_list(arguments, 2, 2)
    return read_text(name), read_integer(number, _LEAST_64)


def _flag(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    return (read_bool(read_list(arguments, 1, 1)[0]),)


def _number(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    return (read_integer(read_list(arguments, 1, 1)[0]),)


def _name(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    return (read_text(read_list(arguments, 1, 1)[0]),)


def _load(arguments: list[Any], payload: memoryview) -> tuple[Any, ...]:
    """Files stay where they lie, in memory that the front end may still change: who loads copies them."""
    name, given = read_list(arguments, 2, 2)
    parameters: dict[str, str | Buffer] = {}
    at = 0
    for each in read_list(given, 0, _MOST_PARAMETERS):
        key, is_text, nbytes = read_list(each, 3, 3)
        end = at + read_integer(nbytes)
        check_payload(payload, end)
        data = payload[at:end]
        parameters[read_text(key)] = _text(data) if read_bool(is_text) else data
        at = aligned(end)
    return read_text(name), parameters


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise broken("a text", bytes(data[:64])) from None


def _unload(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    name, dependents = read_list(arguments, 2, 2)
    return read_text(name), read_bool(dependents)


def _route(arguments: list[Any], payload: memoryview) -> tuple[Any, ...]:
    name, nbytes = read_list(arguments, 2, 2)
    document = read_result(nbytes, payload)
    if not isinstance(document, dict):
        raise broken("a route", document)
    return read_text(name), document


def _region(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    kind, name = read_list(arguments, 2, 2)
    try:
        return RegionKind(kind), read_text(name)
    except ValueError:
        raise broken("a kind of region", kind) from None


def _system_region(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    name, key, offset, byte_size = read_list(arguments, 4, 4)
    return read_text(name), read_text(key), read_integer(offset, 0, _END_64), read_integer(byte_size, 0, _END_64)


def _cuda_region(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    name, handle, device_id, byte_size = read_list(arguments, 4, 4)
    try:
        raw = bytes.fromhex(read_text(handle))
    except ValueError:
        raise broken("a handle", handle) from None
    return read_text(name), raw, read_integer(device_id, _LEAST_64, _END_64), read_integer(byte_size, 0, _END_64)


_TRACE_FIELDS = frozenset({"level", "rate", "count", "log_frequency"})
_LOG_FIELDS = {"info": bool, "warning": bool, "error": bool, "verbose": int, "format": str}
_LEVELS = 4
_LOG_FORMATS = frozenset({"default", "ISO8601", "json"})


def _trace(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    name, given = read_list(arguments, 2, 2)
    changes: dict[str, int | None] = {}
    for pair in read_list(given, 0, len(_TRACE_FIELDS)):
        field, value = read_list(pair, 2, 2)
        if field.__class__ is not str or field not in _TRACE_FIELDS:
            raise broken("a field of a trace setting", field)
        end = _LEVELS if field == "level" else 1 << 32
        changes[field] = None if value is None else read_integer(value, 0 if field != "count" else -1, end)
    return read_text(name), changes


def _log_changes(arguments: list[Any], _payload: memoryview) -> tuple[Any, ...]:
    changes: dict[str, Any] = {}
    for pair in read_list(read_list(arguments, 1, 1)[0], 0, len(_LOG_FIELDS)):
        field, value = read_list(pair, 2, 2)
        kind = _LOG_FIELDS.get(field) if field.__class__ is str else None
        given = read_value(value)
        if kind is None or given.__class__ is not kind or (field == "format" and given not in _LOG_FORMATS):
            raise broken("a setting of the log", pair)
        changes[field] = given
    return (changes,)


_READERS: Mapping[str, _Read] = {
    "live": _nothing,
    "ready": _nothing,
    "model_ready": _model,
    "server_metadata": _nothing,
    "model_statistics": _model,
    "repository_index": _flag,
    "load_model": _load,
    "want": _model,
    "unload_model": _unload,
    "route_status": _name,
    "set_route": _route,
    "remove_route": _name,
    "stop_rollout": _name,
    "region_status": _region,
    "register_system_region": _system_region,
    "register_cuda_region": _cuda_region,
    "unregister_region": _region,
    "trace_settings": _trace,
    "custom_metric": _name,
    "fleet_report": _number,
    "log_settings": _log_changes,
    AUTHORISE: read_authorise,
}


class EngineCalls:
    """What front ends may call.

    Args:
        management: of the server.
        access: its rules; None if there are none.
        log: its log; None if it has none that clients may see.
        refused: names of calls that no client may make, whatever a front end says.
    """

    def __init__(
        self,
        management: Management,
        log: _Log | None = None,
        refused: frozenset[str] = frozenset(),
        access: LocalAccess | None = None,
    ) -> None:
        self._management = management
        self._access = access
        self._log = log
        self._refused = refused

    def prepare(self, name: Any, arguments: Any, payload: memoryview) -> Callable[[], Awaitable[Any]]:
        """What makes a call, and gives its value (`write_result`), or raises a TriremeError.

        Raises:
            LinkError: there is no such call, or it has other arguments.
        """
        read = _READERS.get(name) if name.__class__ is str else None
        if read is None:
            raise broken("the name of a call", name)
        values = read(read_list(arguments), payload)

        async def call() -> Any:
            missing = {"log_settings": self._log, AUTHORISE: self._access}
            if name in self._refused or missing.get(name, self) is None:
                raise UnsupportedError("this server does not let clients do that")
            if name == "log_settings" and self._log is not None:
                return asdict(await self._log.change_and_show(**values[0]))
            if name == AUTHORISE and self._access is not None:
                return await answer_authorise(self._access, *values)
            return await getattr(self._management, name)(*values)

        return call


def write_result(number: int, value: Any) -> tuple[LinkHead, Payload]:
    """The message that a value becomes."""
    payload = Payload()
    try:
        payload.add(orjson.dumps(value))
    except orjson.JSONEncodeError:  # a text with lone surrogates
        payload.add(json.dumps(value).encode())
    return (RESULT, number, len(payload.parts[0]), None), payload


def read_result(nbytes: Any, payload: memoryview) -> Any:
    """The value of a message.

    Raises:
        LinkError: it has none.
    """
    check_payload(payload, read_integer(nbytes))
    text = bytes(payload[:nbytes])
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except ValueError:
        raise broken("JSON", text) from None
