"""The model repository: index, load, unload (docs/reference/http.md)."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from ....engine.errors import InternalError, InvalidArgumentError, UnsupportedError
from ....engine.repository.uploads import FILE_PREFIX
from ....engine.tensor import Buffer
from ... import about
from ..bodies import read_json, too_large
from ..exchange import JSON, Answer, Context, HttpRequest
from ..json import reader as json_reader
from ..json import writer as json_writer
from ..json.pieces import LargeString
from ..json.reader import MOST_PLAIN_VALUES, ON_LOOP_BYTES, LargeText, load_places, members_of


async def index(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository[/REPO]/index``; REPO is ignored."""
    body = await _read_optional_json(context, request)
    ready_only = body.get("ready", False)
    if type(ready_only) is not bool:
        raise InvalidArgumentError("Invalid value for 'ready': expected a boolean")
    await context.server.rescan()
    return Answer(200, JSON, json_writer.dumps(about.repository_index(context.server, ready_only=ready_only)))


async def load(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/repository/models/M/load``: answered when the model is loaded."""
    _refuse_repository_name(request)
    parameters = await _read_load(context, request)
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


def _refuse_repository_name(request: HttpRequest) -> None:
    if request.match.repository:
        raise UnsupportedError("'repository_name' specification is not supported")


async def _read_load(context: Context, request: HttpRequest) -> dict[str, str | Buffer]:
    """The parameters of a load request; none without a body. A large body is read on a thread."""
    body = memoryview(request.body)
    if len(body) <= ON_LOOP_BYTES:
        return _load_parameters(await read_json(context, request)) if body else {}
    most = min(context.options.max_json_values, MOST_PLAIN_VALUES)
    text = await context.server.offload(partial(LargeText, body, most, with_files=True))
    await request.hold(text.cost_bytes)
    return await context.server.offload(text.read, load_places, _load_parameters)


def _load_parameters(document: Any) -> dict[str, str | Buffer]:
    """``config`` as text, files as bytes.

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
        body = await _read_optional_json(context, request)
    except InternalError:
        return False
    parameters = body.get("parameters")
    return type(parameters) is dict and parameters.get("unload_dependents") is True


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
