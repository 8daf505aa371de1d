"""Opens calls, runs handlers, and makes of every way in which they can end a status for the client.

A call with one request message whose method is `immediate` has no task, no coroutine, nothing but an object
(`UnaryCall`). It begins when its message is complete, in the connection's task, and is answered from wherever its
answer comes. Every other call has a task (streaming.py).

States of a `UnaryCall`: collecting the message, begun, over. It is over when it has been answered, cancelled by its
client, or out of time; from then on `answer` and `fail` do nothing, so the handler need not know. A call that is over
holds nothing and is not referred to: what is left of it goes without the garbage collector.

A message that does not come in one piece, or comes packed, goes into an `Inbox` until it is complete:

Rule 1: What the message takes is taken of the server-wide budget before more of it is let come (*lease*): its announced
        size, then what it unpacks to, step by step.
Rule 2: A message that has room must come on (`deadlines.Patience`).
Rule 3: If there is no room, or it takes a thread to unpack the message, the call gets a task to wait in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from ...engine.errors import RefusalReason, TriremeError
from ...engine.tensor import Buffer
from ..http2.frames import RequestReceived
from . import blocks, call_log
from .blocks import grpc_error
from .call_head import CallHead
from .call_log import CallStory
from .compression import IDENTITY, LARGE_BYTES, CompressionLevel, packed, packed_small
from .deadlines import DEADLINE_EXCEEDED, TOO_SLOW, Entry
from .framing import PREFIX_BYTES, Framed, prefix
from .host import CallHost, Inbox, Method, ModelOf
from .options import GrpcServiceOptions, delay
from .streaming import StreamingCall
from .wire import UNPARSABLE

if TYPE_CHECKING:
    from ...actors.budget import Lease

log = logging.getLogger(__name__)

INTERNAL_SERVER_ERROR = "Internal Server Error"
_COPIED_BYTES = 4096
_OK = blocks.OK[IDENTITY]
_UNKNOWN_METHOD = blocks.trailers_only(Status.UNIMPLEMENTED)
_is_told = call_log.log.isEnabledFor
_TOO_LATE = blocks.trailers_only(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)


@dataclass(slots=True, eq=False, repr=False)
class UnaryCall:
    """One request message, and one answer at any later time on the event loop.

    Attributes:
        lease: what the message holds of the server-wide budget; None if it came without.
        message: the request message, unpacked; empty until it has come.
        deadline_entry: None if the call has no deadline, or is over.
        on_cancel: set by who takes the call over; called once if the client resets the call, vanishes, or its deadline
            passes.
    """

    _connection: GrpcConnection | None
    stream_id: int
    head: CallHead
    method: Method
    _inbox: Inbox | None = None
    begun: bool = False
    deadline_entry: Entry | None = None
    lease: Lease | None = None
    message: Buffer = b""
    on_cancel: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "over" if self._connection is None else "begun" if self.begun else "collecting"
        return f"<UnaryCall {self.head.path}: {state}>"

    # ---- for who takes the call over ----

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Answers OK with the message that the parts are when put together."""
        connection = self._connection
        if connection is None:
            return
        size = sum(map(len, parts))
        if self.method.compresses and (encoding := connection.response_encoding(self.head)) != IDENTITY:
            if size < LARGE_BYTES:
                self._answer(connection, packed_small(parts, encoding), encoding)
            else:
                connection.start(self._answer_later, parts, encoding)
            return
        self._end(connection)
        framed = [prefix(False, size), *parts]
        connection.core.respond(self.stream_id, _OK, framed, PREFIX_BYTES + size)
        connection.mark(0)

    def fail(self, status: Status, message: str, refused: RefusalReason | None = None) -> None:
        """Answers with an error.

        Args:
            refused: why, if nothing of the call was executed.
        """
        connection = self._connection
        if connection is not None:
            if self.stream_id in connection.stories:
                connection.stories[self.stream_id].fail(message)
            self._end(connection)
            connection.core.send_headers(self.stream_id, blocks.trailers_only(status, message, refused), True)
            connection.mark(0)

    async def _answer_later(self, parts: Sequence[Buffer], encoding: str) -> None:
        connection = self._connection
        if connection is not None:
            framed = await packed(parts, encoding, connection.surroundings.offload)
            if self._connection is not None:
                self._answer(connection, framed, encoding)

    # ---- for the connection ----

    @property
    def address(self) -> str:
        """See `CallHost.address`."""
        return "" if self._connection is None else self._connection.address

    @property
    def over(self) -> bool:
        """`answer` and `fail` do nothing any more."""
        return self._connection is None

    def _answer(self, connection: GrpcConnection, framed: Sequence[Buffer], encoding: str) -> None:
        """Answers with a packed message that has its prefix."""
        self._end(connection)
        connection.core.respond(self.stream_id, blocks.OK[encoding], framed, sum(map(len, framed)))
        connection.mark(0)

    def receive(self, data: bytes | memoryview, end_stream: bool) -> None:
        """The next part of the message. What comes after it is dropped, as by gRPC's own server."""
        connection = self._connection
        assert connection is not None
        inbox = self._inbox
        if self.begun or (inbox is None and self.begin_with(connection, data)):
            connection.core.consumed(self.stream_id, len(data))
            return
        if inbox is None:
            inbox = self._inbox = Inbox(connection, self.stream_id, self.method)
        inbox.feed(data, end_stream)
        try:
            self._collect(connection, inbox)
        except GRPCError as error:
            self.fail(error.status, error.message or "", connection.count_status(error))

    def begin_with(self, connection: GrpcConnection, data: bytes | memoryview) -> bool:
        """Begins if the data is the message, in one piece and not packed, as nearly all are. Says whether it is."""
        size = len(data) - PREFIX_BYTES
        if not 0 <= size <= self.method.max_message_bytes or data[:PREFIX_BYTES] != prefix(False, size):
            return False
        self.begun = True
        self.message = data[PREFIX_BYTES:] if size <= _COPIED_BYTES else memoryview(data)[PREFIX_BYTES:]
        connection.begin(self)
        return True

    def _collect(self, connection: GrpcConnection, inbox: Inbox) -> None:
        """Goes on as far as what has come, and the room that there is, allow. Raises GRPCError."""
        framed = inbox.next()
        nbytes = inbox.reader.announced_bytes
        if framed is None and nbytes:
            if inbox.cold_model(self.head.identity) is not None or not inbox.need_lease().grow_nowait(nbytes):
                connection.serve_as_task(self)
                return
            inbox.collect(self._too_slow)
        if framed is None and inbox.lease is None and not inbox.ended:
            return  # what is too small for a lease is consumed as a whole: until then the connection counts it
        inbox.release(inbox.held_bytes)
        if framed is None:
            if inbox.ended:
                connection.count_refusal(RefusalReason.INVALID)
                self.fail(Status.INTERNAL, UNPARSABLE)
            return
        self.message = framed.payload
        if framed.compressed:
            unpacking = inbox.unpacking(framed, self.head)
            if len(framed.payload) >= LARGE_BYTES or not unpacking.step_promptly():
                connection.serve_as_task(self, framed)
                return
            self.message = unpacking.message()
        self.begun = True
        self.lease = inbox.lease
        connection.begin(self)

    def _too_slow(self) -> None:
        if self._connection is not None:
            self._connection.count_refusal(RefusalReason.TOO_SLOW)
        self.fail(Status.DEADLINE_EXCEEDED, TOO_SLOW)

    def drained(self) -> None:
        """Nothing waits for that."""

    def cancel(self) -> None:
        self._cut_off(expired=False)

    def expire(self) -> None:
        self._cut_off(expired=True)

    def _cut_off(self, *, expired: bool) -> None:
        """Ends the call without its handler, which is told."""
        connection = self._connection
        if connection is None:
            return
        on_cancel = self.on_cancel
        if self.stream_id in connection.stories:
            connection.stories[self.stream_id].cancel()
        if expired:
            self.fail(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
        else:
            self._end(connection)
        if on_cancel is not None:
            connection.cancel_handler(on_cancel)

    def hand_over(self) -> tuple[Entry | None, Inbox | None]:
        """The call is served otherwise from here on; gives its deadline, and its message if that did not come in one
        piece."""
        self._connection = None
        inbox, self._inbox = self._inbox, None
        deadline, self.deadline_entry = self.deadline_entry, None
        return deadline, inbox

    def _end(self, connection: GrpcConnection) -> None:
        self._connection = None
        self.on_cancel = None
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        if self.deadline_entry is None and not connection.stories:
            connection.calls.pop(self.stream_id, None)
        else:
            connection.forget(self.stream_id, self.deadline_entry)
            self.deadline_entry = None


class Servable(Protocol):
    """A grpclib service. It may also have ``immediate``, a mapping of paths to functions that begin a `UnaryCall`:
    True says that the function has taken the call over, False that the method's `Handler` has to run. And it may have,
    one of them for all, ``lease``, which makes what a message takes of the server's budget, ``offload``, which does on
    a thread what takes long (`actors.offload`), ``client_accounts`` (`ClientAccounts`), ``knows``
    (`Surroundings.knows`), and ``delays``. With a lease it may have ``model_of``, for its methods of inference
    (`Method.model_of`), and with that ``is_cold`` and ``find_model`` (`Surroundings`)."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


def methods_of(services: Iterable[Servable], options: GrpcServiceOptions) -> dict[str, Method]:
    methods: dict[str, Method] = {}
    packs = options.compression_level is not CompressionLevel.NONE
    for service in services:
        immediate: Mapping[str, Callable[[UnaryCall], bool]] = getattr(service, "immediate", {})
        model_of: ModelOf | None = getattr(service, "model_of", None)
        for path, handler in service.__mapping__().items():
            cardinality: Cardinality = handler.cardinality
            methods[path] = Method(
                path,
                handler.func,
                cardinality.client_streaming,
                cardinality.server_streaming,
                handler.request_type,
                handler.reply_type,
                immediate.get(path),
                model_of if path in options.infer_paths else None,
                options.message_limit(path),
                packs and path in options.infer_paths,
            )
    return methods


class GrpcConnection(CallHost):
    def _open(self, event: RequestReceived[CallHead]) -> None:
        head = event.head
        stream_id = event.stream_id
        refusal = head.refusal
        if refusal is not None:
            self.count_refusal(RefusalReason.INVALID)
            status, message, http_status = refusal
            packed = status is Status.UNIMPLEMENTED
            block = blocks.trailers_only(status, message, http_status=http_status, tell_encodings=packed)
            self.core.send_headers(stream_id, block, True)
            return
        if _is_told(logging.DEBUG):
            self.stories[stream_id] = CallStory(head.path)
        surroundings = self.surroundings
        method = surroundings.methods.get(head.path)
        if method is None:
            self.count_refusal(RefusalReason.INVALID)
            self._refuse(stream_id, _UNKNOWN_METHOD)
            return
        if surroundings.guards:
            try:
                for guard in surroundings.guards:
                    guard(head)
            except GRPCError as error:
                self.count_refusal(RefusalReason.RESTRICTED)
                self._refuse(stream_id, blocks.trailers_only(error.status, error.message))
                return
        self._roster.requests += 1
        timeout_s = head.timeout_s
        if timeout_s is not None and timeout_s <= 0:
            self._refuse(stream_id, _TOO_LATE)
            return
        call: UnaryCall | StreamingCall
        with_task = method.client_streaming or (
            surroundings.knows is not None and surroundings.knows(head.identity) is None
        )
        call = (StreamingCall if with_task else UnaryCall)(self, stream_id, head, method)
        self.calls[stream_id] = call
        if timeout_s is not None:
            call.deadline_entry = surroundings.deadlines.add(trio.current_time() + timeout_s, call)
        if with_task:
            self.start(self._run, call)
        if event.end_stream and not (isinstance(call, UnaryCall) and call.begin_with(self, event.data)):
            call.receive(event.data, True)

    def _refuse(self, stream_id: int, block: bytes) -> None:
        self.core.send_headers(stream_id, block, True)
        self.forget(stream_id, None)

    def begin(self, call: UnaryCall) -> None:
        """Its message is complete."""
        begin = call.method.begin
        try:
            if begin is not None and begin(call):
                return
        except Exception as error:  # noqa: BLE001 - the boundary to handlers, see `_outcome_of`
            call.fail(*_outcome_of(error, call.method))
            return
        self.serve_as_task(call, Framed(False, call.message))

    def serve_as_task(self, call: UnaryCall, left: Framed | None = None) -> None:
        """It has to wait, for its message or with it.

        Args:
            left: the message, as it was sent; None if it has not come.
        """
        # What came without a lease, of a method that has nothing against none, waits for room.
        waits = left is not None and not left.compressed and call.method.begin is not None and call.lease is None
        waiting_bytes = len(call.message) if waits else 0
        try:
            self.surroundings.waiting.enter(waiting_bytes)
        except GRPCError as error:
            call.fail(error.status, error.message or "", self.count_status(error))
            return
        deadline, inbox = call.hand_over()
        served = StreamingCall(self, call.stream_id, call.head, call.method, inbox, left, deadline)
        served.waiting_bytes = waiting_bytes
        self.calls[call.stream_id] = served
        self.start(self._run, served)

    def cancel_handler(self, on_cancel: Callable[[], None]) -> None:
        """A call is over: tells who has taken it over."""
        try:
            on_cancel()
        except Exception:
            # The boundary to handlers, see `_outcome_of`: this is called by the task of all deadlines, too.
            log.exception("error while cancelling a call")

    # ---- calls with a task ----

    async def _run(self, call: StreamingCall) -> None:
        """Serves a call from the first message to the status."""
        delays = self.surroundings.delays
        infers = call.method.path in self.surroundings.options.infer_paths
        try:
            with call.scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                status, message = Status.OK, ""
                try:
                    await call.method.function(call)
                except Exception as error:  # noqa: BLE001 - the boundary to handlers, see `_outcome_of`
                    if isinstance(error, GRPCError):
                        refused = self.count_status(error)
                        call.refused = refused if infers and not call.method.client_streaming else None
                    status, message = _outcome_of(error, call.method)
                if delays.answer_s and not infers:
                    await delay(delays.answer_s, "the write of the response")
                call.end(status, message)
            if delays.enqueue_s and call.scope.cancelled_caught and infers:
                await delay(delays.enqueue_s, "PutTaskBackToQueue")
        finally:
            call.finish()


def _outcome_of(error: Exception, method: Method) -> tuple[Status, str]:
    """How a call ends whose handler has raised that. A defect in one costs its call, never the connection."""
    if isinstance(error, GRPCError):
        return error.status, error.message or ""
    if isinstance(error, TriremeError):
        return grpc_error(error)
    log.error("error in %s", method.path, exc_info=error)
    return Status.UNKNOWN, INTERNAL_SERVER_ERROR
