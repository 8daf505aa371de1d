"""Reads infer requests, and remembers their heads, so that a client that repeats itself is decoded once.

Clients send raw contents last. What stands in front of them, the head, says the same every time but for the request's
id: which slices of the bytes behind it are which tensors, and which outputs are wanted in which form. Everything else
goes the long way (`infer_request.py`), which also words all errors. In a large message it can take seconds, and goes to
a thread, in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ...actors.offload import Offload
from ...engine.datatypes import DataType
from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import Regions, RegionSlice
from ...engine.request import InferenceRequest, RequestForm
from ...engine.tensor import Buffer, Tensor
from ...engine.tensor_limits import DEFAULT_LIMITS, TensorLimits
from ..memo import Memo
from .infer_messages import WireInput, WireRequest, scan_infer_request
from .infer_request import (
    REGION,
    DecodedGrpcInfer,
    Describe,
    decode_infer,
    read_infer_request,
    unpack_infer_request,
)
from .wire import LENGTH, MAX_SIZE_BYTES, UnreadableError, read_varint, tag

if TYPE_CHECKING:
    from ...actors.budget import Lease

_HEADS = 512
_HEAD_BYTES = 2_048
_SMALL_BYTES = 4_096
"""A message up to this size is copied, if it is a view: bytes are faster to look at."""

_PROMPT_BYTES = 16_384
"""Of a message whose data is not all raw, or not last: a larger one may have so many parts that it takes a thread."""
_MAX_RAW = 256
"""Raw contents of a message that goes the short way."""

_ID = tag(3, LENGTH)
_RAW = tag(7, LENGTH)

_Spans = list[tuple[int, int]]
_NOWHERE: Mapping[str, RegionSlice] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Head:
    """What a head says. The request has neither id nor inputs; those, all of them raw, are in `inputs`. Requests share
    the form."""

    request: InferenceRequest
    inputs: tuple[tuple[str, DataType, tuple[int, ...]], ...]
    version_text: str
    class_counts: dict[str, int]
    enable_empty_final_response: bool
    form: RequestForm

    def decode(self, data: Buffer, raw: _Spans, request_id: str, describe: Describe) -> DecodedGrpcInfer:
        said = self.request
        model = describe(said.model_name, said.model_version)
        if len(data) > _SMALL_BYTES:
            data = memoryview(data)
        inputs = [
            Tensor(name, kind, shape, data[start:stop])
            for (name, kind, shape), (start, stop) in zip(self.inputs, raw, strict=False)
        ]
        request = InferenceRequest(
            said.model_name,
            said.model_version,
            request_id,
            inputs,
            said.requested_outputs,
            said.parameters.copy(),
            said.priority,
            said.timeout_us,
            said.correlation_id,
            said.sequence_start,
            said.sequence_end,
            self.form,
        )
        counts, wants_empty = self.class_counts, self.enable_empty_final_response
        return DecodedGrpcInfer(request, model, self.version_text, counts, wants_empty, _NOWHERE)


class _Repeated(NamedTuple):
    """A message with one raw content. Another one that says the same before its data, but for the id, and has as many
    bytes of it, is put together in the same way: many clients send nothing else.

    Attributes:
        before: what comes first: up to the id's length, or up to the data if there is no id.
        after: what stands between the id and the data; None if there is no id.
        nbytes: of data.
    """

    before: bytes
    after: bytes | None
    nbytes: int
    head: _Head

    def decode(self, message: bytes, describe: Describe) -> DecodedGrpcInfer | None:
        """None if it is something else."""
        at = len(self.before)
        request_id = ""
        if self.after is not None:
            start = at + 1
            at = start + message[at] if start < len(message) else 0
            if start + 0x7F < at or not message.startswith(self.after, at):
                return None
            try:
                request_id = message[start:at].decode()
            except UnicodeDecodeError:
                return None
            at += len(self.after)
        end = len(message)
        return self.head.decode(message, [(at, end)], request_id, describe) if at + self.nbytes == end else None


class InferReader:
    """Decodes ``ModelInferRequest`` messages, with a memory of bounded size."""

    def __init__(self, regions: Regions, limits: TensorLimits = DEFAULT_LIMITS, offload: Offload | None = None) -> None:
        self._regions = regions
        self._limits = limits
        self._offload = offload or Offload()
        self._heads: Memo[_Head] = Memo(_HEADS, _HEAD_BYTES)
        self._usual = b""  # the last head without an id: most messages have the one before's
        self._repeated: _Repeated | None = None  # the last one that could be remembered

    def decode(self, message: Buffer, describe: Describe) -> DecodedGrpcInfer | None:
        """The request that `message` holds; None if that may take long, and is for `decode_slowly`. Raw contents become
        views on the message.

        Args:
            describe: finds the model; called once a request, as soon as its name and version are known.

        Raises:
            UnreadableError: the message is no ``ModelInferRequest``.
            TriremeError: see `decode_infer`.
        """
        if len(message) <= _SMALL_BYTES and type(message) is not bytes:
            message = bytes(message)
        repeated = self._repeated
        if repeated is not None and type(message) is bytes and message.startswith(repeated.before):
            decoded = repeated.decode(message, describe)
            if decoded is not None:
                return decoded
        split = _split(message, self._usual)
        if split is None:
            if len(message) > _PROMPT_BYTES:
                return None
            return decode_infer(read_infer_request(message, self._limits), describe, self._regions)
        key, request_id, id_at, id_end, raw = split
        if not request_id:
            self._usual = key
        head = self._heads.get(key)
        if head is not None and len(raw) >= len(head.inputs):
            if len(raw) == 1:
                ((data_at, end),) = raw
                text = bytes(message[:data_at])
                before, after = (text[: id_at + 1], text[id_end:]) if id_end else (text, None)
                self._repeated = _Repeated(before, after, end - data_at, head)
            return head.decode(message, raw, request_id, describe)
        wire = read_infer_request(message, self._limits)
        decoded = decode_infer(wire, describe, self._regions)
        if not decoded.places and all(map(_is_raw, wire.inputs)):
            self._remember(key, decoded)
        return decoded

    async def decode_slowly(self, message: Buffer, describe: Describe, lease: Lease) -> DecodedGrpcInfer:
        """`decode`, for a message that may take long.

        Args:
            lease: takes, before it is needed, what the message becomes.

        Raises:
            TriremeError: see `decode`.
        """
        # Strings and numbers that do not come packed are put one behind the other: at most twice the message, where it
        # is nothing but empty strings, each of which gets a length.
        await lease.grow(max(0, 3 * len(message) - lease.nbytes))
        wire = await self._offload(scan_infer_request, message, self._limits)
        await lease.grow(await self._offload(wire.unpacked_bytes))
        await self._offload(unpack_infer_request, wire)
        return decode_infer(wire, describe, self._regions)

    def names(self, message: Buffer) -> WireRequest | None:
        """What a request that was refused calls itself and its model; None if it has more of something than there may
        be. Its typed contents are not unpacked. Raises UnreadableError as `decode`."""
        try:
            return scan_infer_request(message, self._limits)
        except InvalidArgumentError:
            return None

    async def read_names(self, message: Buffer) -> WireRequest | None:
        """`names`, of a large message on a thread."""
        if len(message) <= _PROMPT_BYTES:
            return self.names(message)
        return await self._offload(self.names, message)

    def __repr__(self) -> str:
        return f"<InferReader remembers {len(self._heads)} heads>"

    def _remember(self, key: bytes, decoded: DecodedGrpcInfer) -> None:
        said = decoded.request
        head = _Head(
            # Copies, so as not to keep the message alive, nor to see what a model does to its parameters.
            replace(said, id="", inputs=[], parameters=dict(said.parameters)),
            tuple((tensor.name, tensor.datatype, tensor.shape) for tensor in said.inputs),
            decoded.version_text,
            dict(decoded.class_counts),
            decoded.enable_empty_final_response,
            RequestForm(),
        )
        self._heads.remember(key, head)


def _is_raw(given: WireInput) -> bool:
    return given.contents is None and REGION not in given.parameters


def _split(data: Buffer, usual: bytes) -> tuple[bytes, str, int, int, _Spans] | None:
    """A message's head without the id, the id, where its field begins and ends (0 and 0 if there is none), and where
    the raw contents are. `usual` is a head that is likely; what
    begins with its fields is not walked through.

    None if it is not put together in the usual way: fields in front whose payload is short and has a length, the id at
    most once, raw contents up to the end, and not many of those.
    """
    if data[: len(usual)] != usual:
        usual = b""
    end = len(data)
    at = len(usual)
    id_at = id_end = 0
    request_id = ""
    raw: _Spans = []
    try:
        while at < end:
            key = data[at]
            if key == _RAW:
                break
            size = data[at + 1]
            start = at + 2
            if size > 0x7F:
                size += (data[start] << 7) - 0x80
                start += 1
            stop = start + size
            if key & 0x87 != LENGTH or stop > _HEAD_BYTES:
                return None
            if key == _ID:
                if id_end:
                    return None
                id_at, id_end = at, stop
                request_id = str(data[start:stop], "utf-8")
            at = stop
        key = bytes(data[:id_at]) + data[id_end:at] if id_end else usual if at == len(usual) else bytes(data[:at])
        while at < end:
            if data[at] != _RAW:
                return None
            size = data[at + 1]
            start = at + 2
            if size > 0x7F:
                size, start = read_varint(data, at + 1, MAX_SIZE_BYTES)
            at = start + size
            raw.append((start, at))
            if len(raw) > _MAX_RAW:
                return None
    except (IndexError, UnicodeDecodeError, UnreadableError):
        return None
    return (key, request_id, id_at, id_end, raw) if at == end else None
