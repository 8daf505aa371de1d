"""Reads infer requests, and remembers their heads, so that a client that repeats itself is decoded once.

Clients send raw contents last. What stands in front of them, the head, says the same every time but for the ids of
the request and of its sequence: which slices of the bytes behind it are which tensors, and which outputs are wanted in
which form. Everything else goes the long way (`infer_request.py`), which also words all errors. In a large message
it can take seconds, and goes to a thread, in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...actors.offload import Offload
from ...engine.datatypes import DataType
from ...engine.errors import InvalidArgumentError
from ...engine.memo import Memo
from ...engine.memory.regions import Regions, RegionSlice
from ...engine.request import InferenceRequest, RequestForm
from ...engine.tensor import Buffer, Tensor
from ...engine.tensor_limits import DEFAULT_LIMITS, TensorLimits
from .infer_messages import WireInput, WireRequest, scan_infer_request
from .infer_request import (
    REGION,
    DecodedGrpcInfer,
    Describe,
    decode_infer,
    read_infer_request,
    unpack_infer_request,
)
from .wire import LENGTH, MAX_SIZE_BYTES, VARINT, UnreadableError, read_varint, tag

if TYPE_CHECKING:
    from ...actors.budget import Lease

_HEADS = 2_048
_HEAD_BYTES = 2_048
_SMALL_BYTES = 4_096
"""A message up to this size is copied, if it is a view: bytes are faster to look at."""

_PROMPT_BYTES = 16_384
"""Of a message whose data is not all raw, or not last: a larger one may have so many parts that it takes a thread."""
_MAX_RAW = 256
"""Raw contents of a message that goes the short way."""

_ID = tag(3, LENGTH)
_PARAMETER = tag(4, LENGTH)
_RAW = tag(7, LENGTH)

_Spans = list[tuple[int, int]]
_NOWHERE: Mapping[str, RegionSlice] = MappingProxyType({})

_SEQUENCE_ID = b"sequence_id"
_ID_ENTRY = bytes([tag(1, LENGTH), len(_SEQUENCE_ID)]) + _SEQUENCE_ID + bytes([tag(2, LENGTH)])
"""How the parameter begins that says a sequence's id. The length of its value follows."""

_INTEGER, _TEXT = tag(2, VARINT), tag(3, LENGTH)
_MOST_STEPS = 128
"""Ways to put requests of a sequence together that are remembered at a time: parameters have no order."""


@dataclass(frozen=True, slots=True)
class _Head:
    """What a head says. The request has no ids and no inputs; those, all of them raw, are in `inputs`. Requests share
    the form."""

    request: InferenceRequest
    inputs: tuple[tuple[str, DataType, tuple[int, ...]], ...]
    version_text: str
    class_counts: dict[str, int]
    enable_empty_final_response: bool
    form: RequestForm

    def decode(
        self, data: Buffer, raw: _Spans, request_id: str, describe: Describe, correlation_id: int | str = 0
    ) -> DecodedGrpcInfer:
        if len(data) > _SMALL_BYTES:
            data = memoryview(data)
        inputs = [
            Tensor(name, kind, shape, data[start:stop])
            for (name, kind, shape), (start, stop) in zip(self.inputs, raw, strict=False)
        ]
        return self.with_inputs(inputs, request_id, describe, correlation_id)

    def with_inputs(
        self, inputs: list[Tensor], request_id: str, describe: Describe, correlation_id: int | str = 0
    ) -> DecodedGrpcInfer:
        said = self.request
        model = describe(said.model_name, said.model_version)
        request = InferenceRequest(
            said.model_name,
            said.model_version,
            request_id,
            inputs,
            said.requested_outputs,
            said.parameters.copy(),
            said.priority,
            said.timeout_us,
            correlation_id,
            said.sequence_start,
            said.sequence_end,
            self.form,
        )
        counts, wants_empty = self.class_counts, self.enable_empty_final_response
        return DecodedGrpcInfer(request, model, self.version_text, counts, wants_empty, _NOWHERE)


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A message with one input, which is raw. Another one that says the same before its data, but for the id, and has
    as many bytes of it, is put together in the same way: many clients send nothing else.

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
        if at + self.nbytes != len(message):
            return None
        head = self.head
        name, kind, shape = head.inputs[0]
        data = message[at:] if self.nbytes <= _SMALL_BYTES else memoryview(message)[at:]
        return head.with_inputs([Tensor(name, kind, shape, data)], request_id, describe)


@dataclass(frozen=True, slots=True)
class _RepeatedSteps:
    """Requests of sequences with one input, which is raw: `_Repeated` for messages that differ in the sequence's id,
    too. Those that begin and end a sequence are put together in other ways than those in between.

    Attributes:
        before: what comes first, up to the request's id; nothing if there is none.
        nbytes: of data.
        heads: by what stands between the ids, and between the sequence's id and the data.
    """

    before: bytes
    nbytes: int
    heads: dict[tuple[bytes, bytes], _Head]

    def decode(self, message: bytes, describe: Describe) -> DecodedGrpcInfer | None:
        """None if it is something else."""
        start = len(self.before)
        request_id = ""
        if start:
            size = message[start] if start < len(message) else 0x80
            if size > 0x7F:
                return None
            start += 1 + size
            try:
                request_id = message[start - size : start].decode()
            except UnicodeDecodeError:
                return None
        at = message.find(_ID_ENTRY, start, _HEAD_BYTES) - 1
        if at <= start:
            return None
        stop, data_at = at + 1 + message[at], len(message) - self.nbytes
        if data_at < stop:  # it is cut off
            return None
        head = self.heads.get((message[start:at], message[stop:data_at]))
        correlation_id = None if head is None else _read_sequence_id(message[at + 1 : stop])
        if head is None or correlation_id is None:
            return None
        name, kind, shape = head.inputs[0]
        data = message[data_at:] if self.nbytes <= _SMALL_BYTES else memoryview(message)[data_at:]
        return head.with_inputs([Tensor(name, kind, shape, data)], request_id, describe, correlation_id)


class InferReader:
    """Decodes ``ModelInferRequest`` messages, with a memory of bounded size."""

    def __init__(self, regions: Regions, limits: TensorLimits = DEFAULT_LIMITS, offload: Offload | None = None) -> None:
        self._regions = regions
        self._limits = limits
        self._offload = offload or Offload()
        self._heads: Memo[_Head] = Memo(_HEADS, _HEAD_BYTES)
        self._usual = b""  # the last head without an id: most messages have the one before's
        self._repeated: _Repeated | None = None  # the last one that could be remembered
        self._steps: _RepeatedSteps | None = None

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
        steps = self._steps
        if steps is not None and type(message) is bytes and message.startswith(steps.before):
            decoded = steps.decode(message, describe)
            if decoded is not None:
                return decoded
        split = _split(message, self._usual)
        if split is None:
            if len(message) > _PROMPT_BYTES:
                return None
            return decode_infer(read_infer_request(message, self._limits), describe, self._regions)
        key, request_id, raw = split.key, split.request_id, split.raw
        if not split.kept:
            self._usual = key
        head = self._heads.get(key)
        if head is not None and len(raw) >= len(head.inputs):
            if len(raw) == len(head.inputs) == 1:
                self._repeat(message, split, head)
            return head.decode(message, raw, request_id, describe, split.correlation_id)
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

    def _repeat(self, message: Buffer, split: _Split, head: _Head) -> None:
        """The next message may be put together like this one, which has one raw content."""
        ((data_at, end),) = split.raw
        text, nbytes = bytes(message[:data_at]), end - data_at
        id_at, id_end = split.id_at, split.id_end
        if not split.sequence_end:
            before, after = (text[: id_at + 1], text[id_end:]) if id_end else (text, None)
            self._repeated = _Repeated(before, after, nbytes, head)
        elif split.sequence_at >= id_end:
            before = text[: id_at + 1] if id_end else b""
            steps = self._steps
            if steps is None or (steps.before, steps.nbytes) != (before, nbytes) or len(steps.heads) == _MOST_STEPS:
                steps = self._steps = _RepeatedSteps(before, nbytes, {})
            steps.heads[text[id_end : split.sequence_at + 1], text[split.sequence_end :]] = head

    def _remember(self, key: bytes, decoded: DecodedGrpcInfer) -> None:
        said = decoded.request
        head = _Head(
            # Copies, so as not to keep the message alive, nor to see what a model does to its parameters.
            replace(said, id="", inputs=[], parameters=dict(said.parameters), correlation_id=0),
            tuple((tensor.name, tensor.datatype, tensor.shape) for tensor in said.inputs),
            decoded.version_text,
            dict(decoded.class_counts),
            decoded.enable_empty_final_response,
            RequestForm(),
        )
        self._heads.remember(key, head)


def _is_raw(given: WireInput) -> bool:
    return given.contents is None and REGION not in given.parameters


@dataclass(slots=True)
class _Split:
    """How a message is put together.

    Attributes:
        key: its head, without the fields of its ids.
        kept: where the part of the head begins that stands behind those fields; 0 if it has none.
        id_at, id_end: where the field of the request's id begins and ends; 0 and 0 if there is none.
        sequence_at, sequence_end: the same of the parameter that is the sequence's id.
        raw: where the raw contents are.
    """

    key: bytes = b""
    kept: int = 0
    request_id: str = ""
    id_at: int = 0
    id_end: int = 0
    correlation_id: int | str = 0
    sequence_at: int = 0
    sequence_end: int = 0
    raw: _Spans = field(default_factory=list)

    def take_id(self, data: Buffer, at: int, start: int, stop: int) -> bool:
        """Take the field of the request's id out. Whether it is the only one."""
        if self.id_end:
            return False
        self.id_at, self.id_end = at, stop
        self.request_id = str(data[start:stop], "utf-8")
        self._cut(data, at, stop)
        return True

    def take_parameter(self, data: Buffer, at: int, start: int, stop: int) -> bool:
        """Take a parameter out if it is the sequence's id. Whether it is something else, or the only one."""
        entry = bytes(data[start:stop])
        if _SEQUENCE_ID not in entry:
            return True
        found = _read_sequence_id(entry)
        if found is None or self.sequence_end or stop - at != 2 + len(entry):
            return False
        self.correlation_id = found
        self.sequence_at, self.sequence_end = at, stop
        self._cut(data, at, stop)
        return True

    def _cut(self, data: Buffer, at: int, stop: int) -> None:
        self.key += data[self.kept : at]
        self.kept = stop


def _split(data: Buffer, usual: bytes) -> _Split | None:
    """Take a message apart. `usual` is a head that is likely; what begins with its fields is not walked through.

    None if it is not put together in the usual way: fields in front whose payload is short and has a length, each id at
    most once, raw contents up to the end, and not many of those.
    """
    if data[: len(usual)] != usual:
        usual = b""
    end = len(data)
    at = len(usual)
    split = _Split()
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
                if not split.take_id(data, at, start, stop):
                    return None
            elif key == _PARAMETER and not split.take_parameter(data, at, start, stop):
                return None
            at = stop
        if split.kept:
            split.key += data[split.kept : at]
        else:
            split.key = usual if at == len(usual) else bytes(data[:at])
        while at < end:
            if data[at] != _RAW:
                return None
            size = data[at + 1]
            start = at + 2
            if size > 0x7F:
                size, start = read_varint(data, at + 1, MAX_SIZE_BYTES)
            at = start + size
            split.raw.append((start, at))
            if len(split.raw) > _MAX_RAW:
                return None
    except (IndexError, UnicodeDecodeError, UnreadableError):
        return None
    return split if at == end else None


def _read_sequence_id(entry: bytes) -> int | str | None:
    """The sequence's id that a parameter says; None if it says something else, or is not written in the usual way: a
    short entry, its name first, its value a number of 64 bits or a text."""
    at = len(_ID_ENTRY)
    if not entry.startswith(_ID_ENTRY) or len(entry) > 0x7F:
        return None
    try:
        if at + 1 + entry[at] != len(entry):
            return None
        if entry[at + 1] == _INTEGER:
            number, end = read_varint(entry, at + 2)
            return number if end == len(entry) else None
        if entry[at + 1] == _TEXT and at + 3 + entry[at + 2] == len(entry):
            return entry[at + 3 :].decode()
    except (IndexError, UnicodeDecodeError, UnreadableError):
        pass
    return None
