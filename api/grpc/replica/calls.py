"""The calls that a link makes: what each comes to, as messages and an end.

Rule 1: A call ends once: with the status in its trailers, a reset, or the end of its connection. Nothing is told after
        that, nor after `give_up`.
Rule 2: A message that comes in one piece is a view of it. A larger one is received where it stays (`core.land`), and
        the replica may send all of it at once; but no further one is, before who reads has taken what came (rule 3).
Rule 3: What an answer on a stream took is reported as consumed when it has been taken. So a reader that is slow has the
        stream's window, and one message, in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import trio
from grpclib.exceptions import GRPCError

from ....engine.errors import CancelledError, InternalError, TriremeError, UnavailableError
from ....engine.fleet.types import ReplicaLostError
from ....engine.request import InferenceResponse
from ....engine.tensor import Buffer
from ....gateway.links import ReplicaCall
from ...http2.frames import AnswerReceived, ErrorCode, RequestBlock
from ..framing import PREFIX_BYTES, MessageReader, prefix
from ..wire import LENGTH, UnreadableError, fields, tag
from .responses import ReplicaResponses, UnreadableAnswerError
from .status import ReplyHead

if TYPE_CHECKING:
    from ...http2.client import Http2Client

_COPIED_BYTES = 4096
_REPORT = tag(1, LENGTH)
_RESETS = {
    ErrorCode.CANCEL: CancelledError("the replica has cancelled the request"),
    ErrorCode.REFUSED_STREAM: UnavailableError("the replica takes no more requests on this connection"),
    ErrorCode.ENHANCE_YOUR_CALM: UnavailableError("the replica has reset the request: too much of it was pending"),
}


class CallOwner(Protocol):
    """The connection, as its calls see it."""

    core: Http2Client[ReplyHead]
    calls: dict[int, Any]
    max_message_bytes: int
    memory: Callable[[int], memoryview]

    def may_reset(self) -> bool:
        """Whether a call may be given up by a reset, rather than by dropping its answer."""
        ...

    def mark_output(self) -> None:
        """The core has something to say."""
        ...


class ReplicaRequest(ABC):
    """One call.

    Args:
        block, parts, size: what is sent.

    Attributes:
        owner: the connection that it is made on; None before that, and after its end.
    """

    __slots__ = ("_head", "_reader", "block", "owner", "parts", "size", "stream_id")
    streams = False

    def __init__(self, block: RequestBlock, parts: list[Buffer], size: int) -> None:
        self.block = block
        self.parts = parts
        self.size = size
        self.owner: CallOwner | None = None
        self.stream_id = 0
        self._head: ReplyHead | None = None
        self._reader: MessageReader | None = None

    # ---- what a kind of call makes of it ----

    @abstractmethod
    def _message(self, message: Buffer) -> None:
        """A message has come."""

    @abstractmethod
    def _over(self) -> None:
        """The call has ended well."""

    @abstractmethod
    def fail(self, error: TriremeError, executed: bool) -> None:
        """The call has failed. See `ReplicaCall.failed`."""

    # ---- for the connection ----

    def answer(self, event: AnswerReceived[ReplyHead]) -> None:
        """All of a small answer."""
        data, size = event.data, len(event.data) - PREFIX_BYTES
        if event.trailers.status != 0 or data[:PREFIX_BYTES] != prefix(False, max(size, 0)):
            self.head(event.head, False)
            self.receive(data, False)
            self.head(event.trailers, True)
            return
        self.owner = None
        try:
            self._message(data[PREFIX_BYTES:] if size <= _COPIED_BYTES else memoryview(data)[PREFIX_BYTES:])
        except UnreadableAnswerError as error:
            error.__traceback__ = None
            self.fail(error, True)
            return
        self._over()

    def head(self, head: ReplyHead, end_stream: bool) -> None:
        if self.owner is None:
            return
        if not end_stream:
            self._head = head
            if not head.is_grpc or head.http_status != 200:
                self._break(head.error())
            return
        self._end()
        if head.status == 0 and (self._reader is None or self._reader.is_empty):
            self._over()
        elif head.status == 0:
            self.fail(InternalError("the replica's answer ends within a message"), True)
        else:
            self.fail(head.error(), head.refused is None)

    def receive(self, data: bytes | memoryview, end_stream: bool) -> None:
        """The next part of the answer."""
        owner = self.owner
        if owner is None:
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = MessageReader(owner.max_message_bytes, owner.memory)
        reader.feed(data)
        if not self.streams:
            owner.core.consumed(self.stream_id, len(data))
        self._read(owner, reader, isinstance(data, memoryview))
        if end_stream and self.owner is not None:
            self._end()
            self.fail(InternalError("the replica's answer ends without a status"), True)

    def reset(self, code: ErrorCode) -> None:
        """The replica has given the call up."""
        if self.owner is not None:
            self._end()
            error = _RESETS.get(code) or InternalError(f"the replica has reset the request: {code.name}")
            self.fail(error, code is not ErrorCode.REFUSED_STREAM)

    def lost(self, why: str, executed: bool) -> None:
        """The connection is gone."""
        if self.owner is not None:
            self._end()
            self.fail(ReplicaLostError(why), executed)

    def give_up(self) -> None:
        """The answer is not wanted any more."""
        owner = self.owner
        if owner is None:
            return
        self._end()
        if self.streams or owner.may_reset():
            owner.core.reset(self.stream_id, ErrorCode.CANCEL)
            owner.mark_output()
        else:
            owner.calls[self.stream_id] = _DroppedCall(owner, self)

    # ---- messages ----

    def _may_collect(self) -> bool:
        return True

    def _took(self, nbytes: int) -> None:
        """A message of so many bytes, with its prefix, was told."""

    def _read(self, owner: CallOwner, reader: MessageReader, landed: bool) -> None:
        try:
            while self.owner is not None and (framed := reader.next()) is not None:
                if framed.compressed:
                    self._break(InternalError("the replica has sent a compressed message, and was not asked to"))
                    return
                self._took(PREFIX_BYTES + len(framed.payload))
                self._tell(framed.payload)
        except GRPCError as error:
            self._break(InternalError(f"the replica's answer cannot be read: {error.message}"))
            return
        if self.owner is None:
            return
        if reader.announced_bytes and self._may_collect():
            reader.collect()
            landed = False
        if not landed and (landing := reader.landing) is not None:
            owner.core.land(self.stream_id, landing)
            owner.mark_output()

    def _tell(self, message: Buffer) -> None:
        try:
            self._message(message)
        except UnreadableAnswerError as error:
            error.__traceback__ = None
            self._break(error)

    def _break(self, error: TriremeError) -> None:
        """What has come is not to be understood."""
        owner = self.owner
        self._end()
        if owner is not None:
            owner.core.reset(self.stream_id, ErrorCode.CANCEL)
            owner.mark_output()
        self.fail(error, True)

    def _end(self) -> None:
        if self.owner is not None:
            self.owner.calls.pop(self.stream_id, None)
            self.owner = None


class _DroppedCall(ReplicaRequest):
    """What is left of a call that was given up, and not reset."""

    __slots__ = ()

    def __init__(self, owner: CallOwner, call: ReplicaRequest) -> None:
        super().__init__(call.block, [], 0)
        self.owner = owner
        self.stream_id = call.stream_id
        self._head, self._reader = call._head, call._reader

    def _message(self, message: Buffer) -> None:
        pass

    def _over(self) -> None:
        pass

    def fail(self, error: TriremeError, executed: bool) -> None:
        pass


class InferCall(ReplicaRequest):
    """One request with one answer."""

    __slots__ = ("_call", "_response", "_responses")

    def __init__(
        self, block: RequestBlock, parts: list[Buffer], size: int, call: ReplicaCall, responses: ReplicaResponses
    ) -> None:
        self.block = block  # all of `ReplicaRequest`: a constructor that calls another takes longer
        self.parts = parts
        self.size = size
        self.owner = None
        self.stream_id = 0
        self._head = self._reader = None
        self._call = call
        self._responses = responses
        self._response: InferenceResponse | None = None

    def answer(self, event: AnswerReceived[ReplyHead]) -> None:
        data, size = event.data, len(event.data) - PREFIX_BYTES
        if event.trailers.status != 0 or not 0 <= size <= _COPIED_BYTES or data[:PREFIX_BYTES] != prefix(False, size):
            super().answer(event)
            return
        self.owner = None  # the way of nearly all answers
        try:
            response = self._responses.read(data[PREFIX_BYTES:])
        except UnreadableAnswerError as error:
            error.__traceback__ = None
            self._call.failed(error, True)
            return
        self._call.answered(response, True)

    def _message(self, message: Buffer) -> None:
        if self._response is not None:
            raise UnreadableAnswerError("it has two messages, expected one")
        self._response = self._responses.read(message)

    def _over(self) -> None:
        response, self._response = self._response, None
        if response is None:
            self.fail(InternalError("the replica's answer has no message"), True)
        else:
            self._call.answered(response, True)

    def fail(self, error: TriremeError, executed: bool) -> None:
        self._call.failed(error, executed)


class StreamCall(ReplicaRequest):
    """One request with any number of answers. Arguments as for `InferCall`."""

    __slots__ = ("_call", "_final", "_responses", "_untaken")
    streams = True

    def __init__(
        self, block: RequestBlock, parts: list[Buffer], size: int, call: ReplicaCall, responses: ReplicaResponses
    ) -> None:
        super().__init__(block, parts, size)
        self._call = call
        self._responses = responses
        self._final = False
        self._untaken: deque[int] = deque()  # bytes of each; as many as the window lets in

    def taken(self, count: int) -> None:
        owner = self.owner
        nbytes = 0
        while count and self._untaken:
            nbytes += self._untaken.popleft()
            count -= 1
        if owner is not None and nbytes:
            owner.core.consumed(self.stream_id, nbytes)
            if self._reader is not None:
                self._read(owner, self._reader, False)
            owner.mark_output()

    def _may_collect(self) -> bool:
        return not self._untaken

    def _took(self, nbytes: int) -> None:
        self._untaken.append(nbytes)

    def _message(self, message: Buffer) -> None:
        outcome, final = self._responses.read_stream(message)
        if self._final:
            raise UnreadableAnswerError("it goes on after the final response")
        if outcome is None and not final:
            return
        if final and isinstance(outcome, TriremeError):
            self.fail(outcome, outcome.refusal is None)
            return
        self._final = final
        self._call.answered(outcome, final)

    def _over(self) -> None:
        if not self._final:
            self._final = True
            self._call.answered(None, True)

    def fail(self, error: TriremeError, executed: bool) -> None:
        if not self._final:
            self._final = True
            self._call.failed(error, executed)


class AskCall(ReplicaRequest):
    """A unary call that a task waits for."""

    __slots__ = ("_done", "_error", "_message_bytes")

    def __init__(self, block: RequestBlock, message: bytes) -> None:
        super().__init__(block, [prefix(False, len(message)), message], PREFIX_BYTES + len(message))
        self._done = trio.Event()
        self._error: TriremeError | None = None
        self._message_bytes: bytes | None = None

    async def result(self) -> bytes:
        """Raises TriremeError: what the call has failed with."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._message_bytes is not None, "it has ended well"
        return self._message_bytes

    def _message(self, message: Buffer) -> None:
        if self._message_bytes is not None:
            raise UnreadableAnswerError("it has two messages, expected one")
        self._message_bytes = bytes(message)

    def _over(self) -> None:
        if self._message_bytes is None:
            self._error = InternalError("the replica's answer has no message")
        self._done.set()

    def fail(self, error: TriremeError, executed: bool) -> None:
        self._error = error
        self._done.set()


class WatchCall(ReplicaRequest):
    """The replica's reports of itself.

    Args:
        report: takes each.
        ended: called at the end, with what it has failed with, if it has.
    """

    __slots__ = ("_ended", "_report")

    def __init__(
        self,
        block: RequestBlock,
        message: bytes,
        report: Callable[[Any], None],
        ended: Callable[[TriremeError | None], None],
    ) -> None:
        super().__init__(block, [prefix(False, len(message)), message], PREFIX_BYTES + len(message))
        self._report = report
        self._ended = ended

    def _message(self, message: Buffer) -> None:
        data = memoryview(message)
        document: Any = None
        try:
            for key, start, stop in fields(data, 0, len(data)):
                if key == _REPORT:
                    document = orjson.loads(data[start:stop])
        except (UnreadableError, orjson.JSONDecodeError) as error:
            raise UnreadableAnswerError(f"a report is unreadable ({type(error).__name__})") from None
        if not isinstance(document, dict):
            raise UnreadableAnswerError("a report is no JSON object")
        self._report(document)

    def _over(self) -> None:
        self._ended(None)

    def fail(self, error: TriremeError, executed: bool) -> None:
        self._ended(error)
