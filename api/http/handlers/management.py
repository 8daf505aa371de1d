"""All calls but inference: what the server tells about itself and its models, what is logged and traced, the model
repository, and shared-memory regions (docs/reference/http.md, docs/reference/logs.md#settings,
docs/reference/traces.md#over-http, docs/reference/shared-memory.md#regions).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from ....engine.config import config_json
from ....engine.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from ....engine.memory.cuda import HANDLE_BYTES
from ....engine.memory.regions import RegionKind
from ....engine.repository.uploads import FILE_PREFIX
from ....engine.tensor import Buffer
from ... import about
from ...about import check_traced_model, read_trace_change
from ...access import OTHERS_TOO, readable
from ...logging import FORMATS, LogFacade, LogSettings, log_file_refused, log_unreachable, verbose_level
from ...model_routes import ROUTE_PARAMETER, RouteChange, shown_config
from ...pipeline import find_model
from ...request_parameters import refuse_region_changes
from ..bodies import read_json, too_large
from ..exchange import JSON, TEXT, Answer, Context, HttpRequest, error_body
from ..json import reader as json_reader
from ..json import writer as json_writer
from ..json.pieces import LargeString
from ..json.reader import MOST_PLAIN_VALUES, ON_LOOP_BYTES, LargeText, load_places, members_of
from .model_routes import change_route


async def server_live(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/live``."""
    about.refuse_when_exiting(context.server)
    return Answer(200 if await context.server.management.live() else 400, TEXT)


async def server_ready(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/ready``."""
    about.refuse_when_exiting(context.server)
    return Answer(200 if await context.server.management.ready() else 400, TEXT)


async def server_metadata(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2``."""
    return Answer(200, JSON, json_writer.dumps(await context.server.management.server_metadata()))


async def model_ready(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]/ready``: why a model is not ready is not told."""
    version = request.match.model_version()
    about.refuse_when_exiting(context.server)
    if await context.server.management.model_ready(request.match.name, version):
        return Answer(200, TEXT)
    return Answer(400, TEXT, error_body("Model version not ready"))


async def model_metadata(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]``."""
    match = request.match
    one_version = bool(match.version_text)
    await find_model(context.server, match.name, match.model_version())
    body = about.model_metadata(context.server, match.name, match.model_version(), one_version=one_version)
    return Answer(200, JSON, json_writer.dumps(body))


async def model_config(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]/config``."""
    version = request.match.model_version()
    return Answer(200, JSON, config_json(await shown_config(context.server, request.match.name, version)))


async def statistics(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/stats`` (no name in the path) and ``GET /v2/models/M[/versions/V]/stats``."""
    body = await context.server.management.model_statistics(request.match.name, request.match.model_version())
    return Answer(200, JSON, json_writer.dumps(body))


# ---- the log ----


async def log_settings(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/logging``."""
    return _log_answer(await _log(context).change_and_show())


async def change_log(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/logging``: all that the body asks for, or, if something in it is wrong, nothing."""
    log = _log(context)
    return _log_answer(await log.change_and_show(**_changes(await read_json(context, request))))


def _log(context: Context) -> LogFacade:
    if context.log is None:
        raise log_unreachable()
    return context.log


def _log_answer(now: LogSettings) -> Answer:
    body = {
        "log_file": now.file,
        "log_info": now.info,
        "log_warning": now.warning,
        "log_error": now.error,
        "log_verbose_level": max(0, now.verbose),
        "log_format": now.format,
    }
    return Answer(200, JSON, json_writer.dumps(body))


def _changes(body: Any) -> dict[str, Any]:
    """Fields of `LogSettings`. Null leaves a setting as it is; members of other names are ignored."""
    given = {name: value for name, value in members_of(body).items() if value is not None}
    if "log_file" in given:
        raise log_file_refused()
    return {field: read(given[name]) for name, field, read in _SETTINGS if name in given}


def _read_level(value: Any) -> int:
    return verbose_level(json_reader.as_unsigned(value))


def _read_format(value: Any) -> str:
    name = json_reader.as_string(value)
    if name not in FORMATS:
        raise UnavailableError(f"invalid argument for --log_format, got: {name}")
    return name


_SETTINGS: tuple[tuple[str, str, Callable[[Any], object]], ...] = (
    ("log_info", "info", json_reader.as_bool),
    ("log_warning", "warning", json_reader.as_bool),
    ("log_error", "error", json_reader.as_bool),
    ("log_verbose_level", "verbose", _read_level),
    ("log_format", "format", _read_format),
)
"""Member, field of `LogSettings`, reader; read in this order."""

# ---- traces ----


async def trace_settings(context: Context, request: HttpRequest) -> Answer:
    """``GET …/trace/setting``."""
    check_traced_model(context.server, request.match.name)
    return _trace_answer(await context.server.management.trace_settings(request.match.name))


async def change_trace(context: Context, request: HttpRequest) -> Answer:
    """``POST …/trace/setting``: all that the body asks for, or, if something in it is wrong, nothing."""
    name = request.match.name
    check_traced_model(context.server, name)
    given = members_of(await read_json(context, request))
    changes = read_trace_change(given, _read_levels, lambda _, value: json_reader.as_string(value), gap="")
    return _trace_answer(await context.server.management.trace_settings(name, changes))


def _trace_answer(shown: Iterable[tuple[str, str | list[str]]]) -> Answer:
    # Not by way of a dictionary: a name may come twice.
    members = (b"%b:%b" % (json_writer.string(name), json_writer.dumps(value)) for name, value in shown)
    return Answer(200, JSON, b"{%b}" % b",".join(members))


def _read_levels(value: Any) -> list[str]:
    return [json_reader.as_string(level) for level in json_reader.as_array(value)]


# ---- shared-memory regions: `engine.memory.regions` says what they are ----


async def region_status(context: Context, request: HttpRequest) -> Answer:
    """``GET …/status``: one region, or all of a kind."""
    entries = await context.server.management.region_status(RegionKind(request.match.kind), request.match.name)
    return Answer(200, JSON, json_writer.dumps(entries))


async def register_region(context: Context, request: HttpRequest) -> Answer:
    """``POST …/region/R/register``."""
    refuse_region_changes(context.options.allow_client_shm)
    match = request.match
    if not match.name:
        raise InvalidArgumentError(f"'region name' is necessary to register {match.kind} shared memory region")
    document = await read_json(context, request)
    if RegionKind(match.kind) is RegionKind.CUDA:
        await context.server.management.register_cuda_region(match.name, *_read_cuda_document(document))
    else:
        await context.server.management.register_system_region(match.name, *_read_system_document(document))
    return Answer(200, JSON)


async def unregister_region(context: Context, request: HttpRequest) -> Answer:
    """``POST …/unregister``: one region, or all of a kind. The body does not matter."""
    refuse_region_changes(context.options.allow_client_shm)
    match = request.match
    await context.server.management.unregister_region(RegionKind(match.kind), match.name)
    return Answer(200, JSON)


def _read_system_document(document: Any) -> tuple[str, int, int]:
    """Key, offset and byte size."""
    key = json_reader.as_string(_required(document, "key"))
    offset = json_reader.as_unsigned(members_of(document).get("offset", 0))
    return key, offset, json_reader.as_unsigned(_required(document, "byte_size"))


def _read_cuda_document(document: Any) -> tuple[bytes, int, int]:
    """Handle, device and byte size."""
    handle = _required(document, "raw_handle")
    text = json_reader.as_string(json_reader.member(handle, "b64"))
    byte_size, device_id = (
        json_reader.as_unsigned(json_reader.member(document, name)) for name in ("byte_size", "device_id")
    )
    try:
        raw = binascii.a2b_base64(text)
    except ValueError:
        raw = b""
    if len(raw) != HANDLE_BYTES:
        raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return raw, device_id, byte_size


def _required(document: Any, name: str) -> Any:
    members = members_of(document)
    if name not in members:
        raise InvalidArgumentError(f"Shared memory register request has no '{name}' field")
    return members[name]


# ---- the model repository ----


async def repository_index(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository[/REPO]/index``; REPO is ignored."""
    body = await _read_optional_json(context, request)
    ready_only = body.get("ready", False)
    if type(ready_only) is not bool:
        raise InvalidArgumentError("Invalid value for 'ready': expected a boolean")
    rows = await context.server.management.repository_index(ready_only)
    return Answer(200, JSON, json_writer.dumps(readable(request.exchange.caller, rows)))


async def load_model(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository/models/M/load``: answered when the model is loaded."""
    _refuse_repository_name(request)
    parameters = await _read_load(context, request)
    limit_bytes = context.options.max_management_bytes
    if len(request.body) > limit_bytes and not any(name.startswith(FILE_PREFIX) for name in parameters):
        return too_large(len(request.body), limit_bytes, "http-max-management-size")
    if ROUTE_PARAMETER in parameters:
        change = RouteChange.of_load(request.match.name, parameters, parameters[ROUTE_PARAMETER])
        return await change_route(context, request, change)
    if parameters:
        _check_others_too(context, request)
    await context.server.management.load_model(request.match.name, parameters)
    return Answer(200, JSON)


async def unload_model(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository/models/M/unload``: answered when unloading has begun."""
    _refuse_repository_name(request)
    parameters = await _unload_parameters(context, request)
    if change := RouteChange.of_unload(request.match.name, parameters):
        return await change_route(context, request, change)
    dependents = parameters.get("unload_dependents") is True
    if dependents:
        _check_others_too(context, request)
    await context.server.management.unload_model(request.match.name, dependents)
    return Answer(200, JSON)


def _check_others_too(context: Context, request: HttpRequest) -> None:
    """See `access.OTHERS_TOO`."""
    exchange = request.exchange
    if context.access is not None and exchange.caller is not None:
        name = f"{exchange.method} {request.match.route.template}"
        context.access.check(exchange.caller, *OTHERS_TOO, name, exchange.address)


def _refuse_repository_name(request: HttpRequest) -> None:
    if request.match.repository:
        raise UnsupportedError("'repository_name' specification is not supported")


async def _read_load(context: Context, request: HttpRequest) -> dict[str, str | Buffer]:
    """The parameters of a load request; none without a body. A large body is read on a thread."""
    body = memoryview(request.body)
    if len(body) <= ON_LOOP_BYTES:
        return _load_parameters(await read_json(context, request)) if body else {}
    most = min(context.options.max_json_values, MOST_PLAIN_VALUES)
    in_pieces = context.server.offload.in_pieces
    text = await in_pieces(partial(LargeText, body, most, with_files=True))
    await request.hold(text.cost_bytes)
    return await in_pieces(text.read, load_places, _load_parameters)


def _load_parameters(document: Any) -> dict[str, str | Buffer]:
    """``config`` and ``route`` as text, files as bytes.

    Raises:
        TriremeError: not an object, a value is not a string, an unknown name, or a file is not base64.
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
        if name == ROUTE_PARAMETER and not isinstance(text, str):
            raise InvalidArgumentError("load parameter 'route' is of another type, expected a string (JSON)")
        json_reader.as_string(text)
        if name in ("config", ROUTE_PARAMETER):
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


async def _unload_parameters(context: Context, request: HttpRequest) -> dict[str, Any]:
    """The parameters of an unload request. What cannot be read says nothing (docs/reference/http.md#unload)."""
    try:
        body = await _read_optional_json(context, request)
    except InternalError:
        return {}
    parameters = body.get("parameters")
    return parameters if type(parameters) is dict else {}


async def _read_optional_json(context: Context, request: HttpRequest) -> dict[str, Any]:
    """The object that the body holds; empty for an empty body, or for a value of another type, which has no members."""
    if not request.body:
        return {}
    value = await read_json(context, request)
    return value if type(value) is dict else {}


# ---- base64 in pieces: one call for all of a file would hold the interpreter's lock ----

_OTHERS = re.compile(rb"[^A-Za-z0-9+/=]+")


def decode_pieces(pieces: Iterable[bytes], nbytes: int) -> memoryview:
    """What `binascii.a2b_base64` makes of the pieces, of at most `nbytes` together, put together: characters outside of
    the alphabet are skipped, and what follows the padding is ignored.

    Raises:
        ValueError: it is no base64.
    """
    decoder = _Base64Decoder(nbytes)
    for piece in pieces:
        if not piece.isascii():
            raise ValueError("string argument should contain only ASCII characters")
        decoder.feed(piece)
    return decoder.end()


class _Base64Decoder:
    """Decodes whole groups of four characters as they come.

    Attributes:
        padded: the padding has been found.
    """

    def __init__(self, nbytes: int) -> None:
        self._plain = np.empty(nbytes // 4 * 3 + 3, np.uint8).data
        self._filled = 0
        self._group = b""  # of fewer than four characters
        self._pads = 0
        self.padded = False

    def feed(self, piece: bytes) -> None:
        first, *others = _OTHERS.sub(b"", piece).split(b"=")
        self._add(first)
        for each in others:
            if self.padded:
                return
            self._pad()
            self._add(each)

    def end(self) -> memoryview:
        if self._group and not self.padded:
            if len(self._group) == 1:
                count = self._filled // 3 * 4 + 1
                raise ValueError(
                    f"Invalid base64-encoded string: number of data characters ({count}) cannot be 1 more than a "
                    "multiple of 4"
                )
            raise ValueError("Incorrect padding")
        return self._plain[: self._filled].toreadonly()

    def _add(self, characters: bytes) -> None:
        if characters and not self.padded:
            self._pads = 0
            characters = self._group + characters
            whole = len(characters) & ~3
            self._put(characters[:whole])
            self._group = characters[whole:]

    def _pad(self) -> None:
        if len(self._group) >= 2:
            self._pads += 1
            if len(self._group) + self._pads >= 4:
                self._put(self._group.ljust(4, b"="))
                self.padded = True

    def _put(self, characters: bytes) -> None:
        plain = binascii.a2b_base64(characters)
        self._plain[self._filled : self._filled + len(plain)] = plain
        self._filled += len(plain)
