"""Reads ``ModelInferResponse`` and ``ModelStreamInferResponse`` messages, and remembers their heads: what stands before
the raw contents is the same for all answers of one kind, but for the id. Tensors are views on the message."""

from __future__ import annotations

from dataclasses import dataclass

from ....engine.datatypes import BY_NAME, DataType
from ....engine.errors import ErrorKind, InternalError, RefusalReason, TriremeError
from ....engine.memo import Memo
from ....engine.request import InferenceResponse, ParameterValue, ResponseForm
from ....engine.tensor import Buffer, Tensor
from ....engine.tensor_limits import DEFAULT_LIMITS, TensorLimits
from ..infer_messages import WireRequest, scan_infer_response
from ..infer_request import parse_version, unpack_infer_request
from ..infer_writer import ERROR_KIND, ERROR_REFUSAL, FINAL
from ..wire import LENGTH, MAX_SIZE_BYTES, UnreadableError, fields, read_varint, tag
from .status import error_of_kind, refusal_named

_HEADS = 2_048
_HEAD_BYTES = 2_048
_SMALL_BYTES = 4_096
_ID, _RAW = tag(3, LENGTH), tag(6, LENGTH)
_ERROR_MESSAGE, _INFER_RESPONSE = tag(1, LENGTH), tag(2, LENGTH)


@dataclass(slots=True)
class _Head:
    """What stands before the raw contents.

    Attributes:
        repeated: of the latest message with it, if that could be remembered.
    """

    model_name: str
    model_version: int
    outputs: tuple[tuple[str, DataType, tuple[int, ...]], ...]
    parameters: dict[str, ParameterValue]
    repeated: _Repeated | None = None


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A message with one output. Another one that says the same before its data, but for the id, and has as many bytes
    of it, is put together in the same way: most replicas send nothing else.

    Attributes:
        before, begins: what comes first, and its length: up to the id's length, or up to the data if there is no id.
        after: what stands between the id and the data; None if there is no id.
        nbytes: of data.
    """

    before: bytes
    begins: int
    after: bytes | None
    nbytes: int
    form: ResponseForm

    def read(self, message: bytes, head: _Head) -> InferenceResponse | None:
        """None if it is something else."""
        at, request_id, after = self.begins, "", self.after
        if after is not None:
            start = at + 1
            at = start + message[at] if start < len(message) else 0
            if start + 0x7F < at or not message.startswith(after, at):
                return None
            try:
                request_id = message[start:at].decode()
            except UnicodeDecodeError:
                return None
            at += len(after)
        if at + self.nbytes != len(message):
            return None
        ((name, kind, shape),) = head.outputs
        data = message[at:] if self.nbytes <= _SMALL_BYTES else memoryview(message)[at:]
        outputs, parameters = [Tensor(name, kind, shape, data)], head.parameters.copy()
        about = head.model_name, head.model_version, request_id
        return InferenceResponse(*about, outputs, parameters, self.form, message)


class UnreadableAnswerError(InternalError):
    """A replica's answer is no message of the type expected."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the replica's answer cannot be read: {why}")


class ReplicaResponses:
    """Reads answers, with a memory of bounded size."""

    def __init__(self, limits: TensorLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._heads: Memo[_Head] = Memo(_HEADS, _HEAD_BYTES)
        self._usual: tuple[_Head, _Repeated] | None = None  # the last one that could be remembered

    def read(self, message: Buffer) -> InferenceResponse:
        """The response that a message holds.

        Raises:
            UnreadableAnswerError: it holds none.
        """
        if len(message) <= _SMALL_BYTES and type(message) is not bytes:
            message = bytes(message)
        if self._usual is not None and type(message) is bytes:
            head, repeated = self._usual
            if message.startswith(repeated.before):
                response = repeated.read(message, head)
                if response is not None:
                    return response
        try:
            return self._read_known(message) or self._read_any(message)
        except UnreadableError as error:
            raise UnreadableAnswerError(error.reason) from None

    def read_stream(self, message: Buffer) -> tuple[InferenceResponse | TriremeError | None, bool]:
        """What a message of a stream says, and whether it is final; None for no more than that.

        Raises:
            UnreadableAnswerError: it is no such message.
        """
        text, response = None, None
        data = message if isinstance(message, bytes) else memoryview(message)
        try:
            for key, start, stop in fields(data, 0, len(data)):
                if key == _ERROR_MESSAGE:
                    text = str(data[start:stop], "utf-8", "replace")
                elif key == _INFER_RESPONSE:
                    response = self.read(data[start:stop])
        except UnreadableError as error:
            raise UnreadableAnswerError(error.reason) from None
        parameters = {} if response is None else response.parameters
        final = parameters.pop(FINAL, False) is True
        kind, refusal = parameters.pop(ERROR_KIND, None), parameters.pop(ERROR_REFUSAL, None)
        if text:
            return _error(text, kind, refusal), final
        if response is not None and final and not response.outputs:
            return None, True
        return response, final

    def _read_known(self, message: Buffer) -> InferenceResponse | None:
        """None if it has a head that is not known, or is not put together in the usual way."""
        end = len(message)
        at = id_at = id_end = 0
        request_id = ""
        try:
            while at < end and (key := message[at]) != _RAW:
                size = message[at + 1]
                start = at + 2
                if size > 0x7F:
                    size += (message[start] << 7) - 0x80
                    start += 1
                stop = start + size
                if key & 0x87 != LENGTH or stop > _HEAD_BYTES:
                    return None
                if key == _ID:
                    id_at, id_end = at, stop
                    request_id = str(message[start:stop], "utf-8")
                at = stop
            head = self._heads.get(bytes(message[:id_at]) + bytes(message[id_end:at]))
            if head is None:
                return None
            outputs: list[Tensor] = []
            start = at
            for name, kind, shape in head.outputs:
                if at >= end or message[at] != _RAW:
                    return None
                size, start = read_varint(message, at + 1, MAX_SIZE_BYTES)
                at = start + size
                if at > end:
                    return None
                data = message[start:at] if end <= _SMALL_BYTES else memoryview(message)[start:at]
                outputs.append(Tensor(name, kind, shape, data))
        except (IndexError, UnicodeDecodeError):
            return None
        if at != end:
            return None
        if len(outputs) == 1 and type(message) is bytes:
            before = message[: id_at + 1] if id_end else message[:start]
            after = message[id_end:start] if id_end else None
            known = head.repeated
            if known is None or (known.before, known.after, known.nbytes) != (before, after, end - start):
                known = head.repeated = _Repeated(before, len(before), after, end - start, ResponseForm())
            self._usual = head, known
        about = head.model_name, head.model_version, request_id
        return InferenceResponse(*about, outputs, head.parameters.copy(), None, message)

    def _read_any(self, message: Buffer) -> InferenceResponse:
        wire = scan_infer_response(message, self._limits)
        unpack_infer_request(wire)
        head = _Head(wire.model_name, _version(wire.model_version), tuple(_described(wire)), _parameters(wire))
        raw = wire.raw
        typed = [given for given in wire.inputs if given.contents is not None]
        if raw and typed:
            raise UnreadableError("it has both raw and typed contents")
        if raw and len(raw) != len(wire.inputs):
            raise UnreadableError(f"{len(raw)} raw contents for {len(wire.inputs)} outputs")
        outputs: list[Tensor] = []
        for index, (name, kind, shape) in enumerate(head.outputs):
            data = raw[index] if raw else wire.inputs[index].prepared
            if isinstance(data, TriremeError):
                raise UnreadableError(data.message)
            outputs.append(Tensor(name, kind, shape, b"" if data is None else data))
        if not typed:
            self._remember(message, wire, head)
        about, passed_on = (head.model_name, head.model_version, wire.id), None if typed else message
        return InferenceResponse(*about, outputs, dict(head.parameters), None, passed_on)

    def _remember(self, message: Buffer, wire: WireRequest, head: _Head) -> None:
        data = memoryview(message)
        key = b""
        for tag_of, start, stop in fields(data, 0, len(data)):
            if tag_of == _RAW:
                break
            if tag_of != _ID:
                before = 3 if stop - start > 0x7F else 2
                key += bytes(data[start - before : stop])
            if len(key) > _HEAD_BYTES:
                return
        self._heads.remember(key, head)


def _described(wire: WireRequest) -> list[tuple[str, DataType, tuple[int, ...]]]:
    described: list[tuple[str, DataType, tuple[int, ...]]] = []
    for given in wire.inputs:
        kind = BY_NAME.get(given.datatype)
        if kind is None:
            raise UnreadableError(f"output '{given.name}' has the unknown datatype '{given.datatype}'")
        described.append((given.name, kind, tuple(given.shape)))
    return described


def _parameters(wire: WireRequest) -> dict[str, ParameterValue]:
    return {name: value for name, value in wire.parameters.items() if value is not None}


def _version(text: str) -> int:
    try:
        return parse_version(text)
    except TriremeError as error:
        raise UnreadableError(error.message) from None


def _error(text: str, kind: object, refusal: object) -> TriremeError:
    try:
        known = ErrorKind[kind] if isinstance(kind, str) else ErrorKind.INTERNAL
    except KeyError:
        known = ErrorKind.INTERNAL
    reason: RefusalReason | None = refusal_named(refusal) if isinstance(refusal, str) else None
    return error_of_kind(known, text, reason)
