"""The model repository: index, load, unload (docs/reference/http.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...engine.description import IndexEntry
from ...engine.errors import InternalError, InvalidArgumentError, UnsupportedError
from ...engine.repository.load_parameters import FILE_PREFIX
from ...engine.tensor import Buffer
from . import json_reader, json_writer
from .base64_pieces import decode_pieces
from .body_limits import too_large
from .exchange import JSON, Answer, Context, HttpRequest
from .json_access import members_of
from .json_pieces import LargeString
from .large_bodies import read_load, read_optional_json


async def index(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository[/REPO]/index``; REPO is ignored."""
    body = await read_optional_json(context, request)
    ready_only = body.get("ready", False)
    if type(ready_only) is not bool:
        raise InvalidArgumentError("Invalid value for 'ready': expected a boolean")
    await context.server.rescan()
    entries = context.server.repository_index(ready_only)
    return Answer(200, JSON, json_writer.dumps([_index_entry(entry) for entry in entries]))


async def load(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository/models/M/load``: answered when the model is loaded."""
    _refuse_repository_name(request)
    parameters = await read_load(context, request, _load_parameters) or {}
    limit_bytes = context.options.max_management_bytes
    if len(request.body) > limit_bytes and not any(name.startswith(FILE_PREFIX) for name in parameters):
        return too_large(len(request.body), limit_bytes, "http-max-management-size")
    await context.server.load_model(request.match.name, parameters)
    return Answer(200, JSON)


async def unload(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository/models/M/unload``: answered when unloading has begun."""
    _refuse_repository_name(request)
    await context.server.unload_model(request.match.name, await _unload_dependents(context, request))
    return Answer(200, JSON)


def _index_entry(entry: IndexEntry) -> dict[str, str]:
    row = {"name": entry.name}
    if entry.version:
        row["version"] = entry.version
    if entry.state is not None:
        row["state"] = entry.state.value
    if entry.reason:
        row["reason"] = entry.reason
    return row


def _refuse_repository_name(request: HttpRequest) -> None:
    if request.match.repository:
        raise UnsupportedError("'repository_name' specification is not supported")


def _load_parameters(document: Any) -> dict[str, str | Buffer]:
    """``config`` as text, files as bytes.

    Raises:
        InternalError: not an object, a value is not a string, or an unknown name.
        InvalidArgumentError: a file is not base64.
        OddTextError: a large file is not plain JSON.
    """
    parameters: dict[str, str | Buffer] = {}
    body = members_of(document)
    if "parameters" not in body:
        return parameters
    given = body["parameters"]
    for name in json_reader.members(given):
        text = given[name]
        if isinstance(text, LargeString):
            parameters[name] = _file_content(name, text.pieces(), text.nbytes)
            continue
        json_reader.as_string(text)
        if name == "config":
            parameters[name] = text
        elif name.startswith(FILE_PREFIX):
            parameters[name] = _file_content(name, [text.encode("utf-8", "surrogateescape")], len(text))
        else:
            raise InternalError("unexpected error on creating Triton parameter")
    return parameters


def _file_content(name: str, pieces: Iterable[bytes], nbytes: int) -> memoryview:
    try:
        return decode_pieces(pieces, nbytes)
    except ValueError as error:
        raise InvalidArgumentError(f"failed to decode parameter '{name}' as base64: {error}") from error


async def _unload_dependents(context: Context, request: HttpRequest) -> bool:
    """Whether the models that only this one needs go too. What cannot be read does not say so
    (docs/reference/http.md#unload)."""
    try:
        body = await read_optional_json(context, request)
    except InternalError:
        return False
    parameters = body.get("parameters")
    return type(parameters) is dict and parameters.get("unload_dependents") is True
