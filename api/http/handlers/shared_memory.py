"""Shared-memory regions: status, register, unregister (docs/reference/shared-memory.md#regions).
`engine.memory.regions` says what they are."""

from __future__ import annotations

import binascii
from typing import Any

from ....engine.errors import InvalidArgumentError
from ....engine.memory.cuda import HANDLE_BYTES
from ....engine.memory.regions import RegionKind
from ... import about
from ...restrictions import refuse_region_changes
from ..bodies import read_json
from ..exchange import JSON, Answer, Context, HttpRequest
from ..json import reader as json_reader
from ..json import writer as json_writer
from ..json.reader import members_of


async def status(context: Context, request: HttpRequest) -> Answer:
    """``GET …/status``: one region, or all of a kind."""
    entries = about.region_status(context.server, RegionKind(request.match.kind), request.match.name)
    return Answer(200, JSON, json_writer.dumps(entries))


async def register(context: Context, request: HttpRequest) -> Answer:
    """``POST …/region/R/register``."""
    refuse_region_changes(context.options.allow_client_shm)
    match = request.match
    if not match.name:
        raise InvalidArgumentError(f"'region name' is necessary to register {match.kind} shared memory region")
    document = await read_json(context, request)
    if RegionKind(match.kind) is RegionKind.CUDA:
        context.server.shared_memory.register_cuda(match.name, *_read_cuda_document(document))
    else:
        context.server.shared_memory.register_system(match.name, *_read_system_document(document))
    return Answer(200, JSON)


async def unregister(context: Context, request: HttpRequest) -> Answer:
    """``POST …/unregister``: one region, or all of a kind. The body does not matter."""
    refuse_region_changes(context.options.allow_client_shm)
    match = request.match
    context.server.shared_memory.unregister(RegionKind(match.kind), match.name)
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
