"""ModelStreamInfer: requests in, answers out, each as soon as its turn has come (docs/reference/grpc.md#streams).

A small request is issued in the turn in which it comes, and while nothing holds the stream up its only answer is sent
in the turn in which that comes; no task has a part in it. For everything else there are two tasks, which sleep until
then. The reader issues requests that have to wait, for room or for a thread, those that are large, and those that
nothing can be said about; the writer sends what `stream_order` says may be sent. The reader stops reading while too
much is under way, and then flow control holds the client back. The writer takes the answers of decoupled models only
when it can send them, and then the model is held back by its reply.

A request that came whole, and whose model is loaded on demand and not there, is set aside: those behind it that are
for other models are issued meanwhile, and those for the same model after it, in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import ClassVar

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...actors.reply import Reply
from ...engine.errors import RefusalReason, TriremeError, UnavailableError
from ...engine.job import Outcome
from ...engine.request import InferenceResponse
from ...engine.tensor import Buffer
from ..pipeline import may_take_long
from ..unread import UnreadAnswers, answer_bytes
from . import call_log
from .infer import GrpcContext, GrpcInfer, identify
from .infer_messages import WireRequest
from .infer_request import parse_version
from .infer_writer import (
    KINDS_WANTED,
    error_kind,
    takes_long,
    write_stream_error,
    write_stream_refusal,
    write_stream_response,
)
from .options import delay
from .stream_order import Place, PlaceState, StreamOrder
from .streaming import StreamingCall
from .wire import UnreadableError

_log = logging.getLogger(__name__)

MAX_OPEN_REQUESTS = 1_024
"""Requests of one stream that may be in flight or waiting for their answers to be sent."""

MAX_UNSENT_BYTES = 64 * 2**20
"""Bytes of answers waiting on one stream from which on no more requests are read from it."""

_STATUS_WANTED = "triton_grpc_error"
_CLOSED = PlaceState.CLOSED


class InferStream:
    """One call of ModelStreamInfer."""

    def __init__(self, context: GrpcContext, stream: StreamingCall) -> None:
        self.context = context
        self.stream = stream
        self.address = stream.address
        self._order: StreamOrder[_Request] = StreamOrder(MAX_OPEN_REQUESTS, MAX_UNSENT_BYTES)
        self._ready = trio.lowlevel.ParkingLot()  # where the writer waits
        self._room = trio.lowlevel.ParkingLot()  # where the reader waits
        self.tells_kinds = stream.head.metadata.get(KINDS_WANTED) == "1"
        self._aside: dict[str, deque[tuple[_Request, Buffer]]] = {}  # by the names of their models
        self._ends_with_error = stream.head.metadata.get(_STATUS_WANTED) == "true"
        self._failure: TriremeError | GRPCError | None = None
        self._writing = False
        self._broken = False
        self._told = call_log.enabled()
        self._unread = UnreadAnswers(context.server.client_accounts.unread, self.address, stream.give_up)

    async def serve(self) -> None:
        """Answer everything. Cancelling this, as when the client is gone, cancels all requests in flight.

        Raises:
            TriremeError, GRPCError: what the stream ends with, other than OK: a message that is no request; or, if the
                client wants that, the failure of one.
        """
        await identify(self.context, self.stream)
        self.stream.listen(self._hear)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, nursery)
                await self._write()
                nursery.cancel_scope.cancel()
        finally:
            self.stream.listen(None)
            self._unread.close()
            for request in self._order.open:
                if request.reply is not None:
                    request.reply.cancel()
                request.abandon()
                if request.waits_no_more is not None:
                    request.waits_no_more()
                if self._told:
                    call_log.stream_request_ends(cancelled=True)
            self._told = False
        if self._failure is not None:
            raise self._failure

    def answered(self, request: _Request, nbytes: int = 0) -> None:
        """A request has something to be sent."""
        self._order.news(request, nbytes)
        if self._writing:
            self._hold(request, sum(map(answer_bytes, request.newest())))
            return
        try:
            self._send_now()
            if not (request.decoupled or request.state is _CLOSED):
                self._hold(request, answer_bytes(request.outcome))
        except Exception:  # noqa: BLE001 - this runs in a turn of the server's: a defect must cost its own stream only
            self._break()

    def _break(self) -> None:
        """Something unexpected has been raised."""
        _log.exception("unexpected failure on a stream")
        self._failure = GRPCError(Status.UNKNOWN, "Internal Server Error")
        self._broken = True
        self._ready.unpark_all()

    def _send_now(self) -> None:
        """Send what can be sent without waiting; wake the writer for the rest."""
        order, stream = self._order, self.stream
        ready = order.ready
        while ready:
            request = ready[0]
            if (
                request.decoupled
                or request.takes_long
                or (self._ends_with_error and isinstance(request.outcome, TriremeError))
                or not stream.can_send_now
            ):
                break
            order.next()
            parts = request.encode(request.outcome, True)
            if parts is not None:
                if request.trace is None:
                    stream.send_now(parts)
                else:
                    request.trace.sending()
                    stream.send_now(parts)
                    request.trace.sent()
            self._close(request)
        if ready or order.over:
            self._ready.unpark_all()

    def _hold(self, request: _Request, more: int) -> None:
        """So many more bytes of a request's answers wait to be sent, or less."""
        request.held_bytes += more
        self._unread.change(more)

    def _admit(self, request: _Request) -> None:
        self._order.admit(request)
        if self._told:
            call_log.stream_request_begins()

    def _close(self, request: _Request) -> None:
        self._order.close(request)
        if request.held_bytes:
            self._hold(request, -request.held_bytes)
        if request.trace is not None:
            request.trace.finish()
        if self._room:
            self._room.unpark_all()
        if self._told:
            call_log.stream_request_ends()

    # What the client says.

    def _hear(self, message: Buffer) -> bool:
        """A small message has come: issue it, if it need not wait. Otherwise the reader does, who is asked for that by
        False."""
        if self._aside or not self._order.has_room:
            return False
        context = self.context
        try:
            request = _Request(self, context, self.stream.head, message, None)
            if context.access is not None:
                request.caller = context.access.known(request.head.identity)
                if request.caller is None:
                    return False
            try:
                reply = context.pipeline.begin(request)
            except UnreadableError:
                return False
            except TriremeError as error:
                self._refuse(context.reader.names(message), error)
                return True
            if reply is not None:
                self._issued(request, reply)
                return True
            if request.trace is not None:
                request.trace.forget()
            return False
        except UnreadableError:
            return False
        except Exception:  # noqa: BLE001 - as in `answered`
            self._break()
            return True

    async def _read(self, nursery: trio.Nursery) -> None:
        """Issue requests until the client says that there are no more, or something comes that is no request. In either
        case the earlier ones are answered."""
        order = self._order
        try:
            async for message in self.stream:
                while not order.has_room:
                    await self._room.park()
                await self._issue(message, nursery)
        except (TriremeError, GRPCError) as error:
            if isinstance(error, TriremeError):
                self.context.server.note_refusal(error)
            self._failure = error
        order.half_closed = True
        self._ready.unpark_all()

    async def _issue(self, message: Buffer, nursery: trio.Nursery) -> None:
        """Submit a request. Raises TriremeError: the message is no request at all."""
        pipeline, reader = self.context.pipeline, self.context.reader
        request = _Request(self, self.context, self.stream.head, message, self.stream.take_lease())
        named = await reader.read_names(message) if self._aside else None
        try:
            request.caller = await identify(self.context, self.stream)
            if named is not None and named.model_name in self._aside:
                self._set_aside(request, message, named.model_name, nursery)
                return
            reply = pipeline.begin(request)
            if reply is None and request.is_cold and request.lease is None:
                named = await reader.read_names(message)
                if named is not None:
                    self._set_aside(request, message, named.model_name, nursery)
                    return
            if reply is None:
                reply = await pipeline.go_on(request)
        except UnreadableError:
            raise
        except GRPCError as error:
            self._refuse(await reader.read_names(message), _no_room(error))
        except TriremeError as error:
            self._refuse(await reader.read_names(message), error)
        else:
            self._issued(request, reply)

    def _set_aside(self, request: _Request, message: Buffer, name: str, nursery: trio.Nursery) -> None:
        """Raises GRPCError: too much waits already."""
        request.waits_no_more = self.stream.set_aside(len(message))
        self._admit(request)
        aside = self._aside.get(name)
        if aside is None:
            aside = self._aside[name] = deque(maxlen=MAX_OPEN_REQUESTS)
            nursery.start_soon(self._issue_aside, name, aside)
        aside.append((request, message))

    async def _issue_aside(self, name: str, aside: deque[tuple[_Request, Buffer]]) -> None:
        """Submit the requests for a model that wait for it, one after the other."""
        pipeline, reader = self.context.pipeline, self.context.reader
        while aside:
            request, message = aside[0]
            try:
                reply = (None if request.is_cold else pipeline.begin(request)) or await pipeline.go_on(request)
            except GRPCError as error:
                self._refuse(await reader.read_names(message), _no_room(error), request)
            except TriremeError as error:
                self._refuse(await reader.read_names(message), error, request)
            else:
                self._issued(request, reply)
            aside.popleft()
        del self._aside[name]

    def _issued(self, request: _Request, reply: Reply) -> None:
        request.reply = reply
        decoded = request.decoded
        assert decoded is not None, "it has been admitted"
        request.id = decoded.request.id
        self._take_in(request, decoupled=decoded.model.config.decoupled)
        if request.decoupled:
            reply.notify_each(request.hear_each)
        else:
            reply.notify(request.hear)

    def _take_in(self, request: _Request, *, decoupled: bool) -> None:
        """It is known what it is; it has a place already if it was set aside."""
        if request.waits_no_more is None:
            request.decoupled = decoupled
            self._admit(request)
            return
        request.waits_no_more()
        request.waits_no_more = None
        if decoupled:
            self._order.decouple(request)
            self._ready.unpark_all()

    def _refuse(self, given: WireRequest | None, error: TriremeError, request: _Request | None = None) -> None:
        """Answer a request that has not come to be executed; not all of its parts could be read if `given` is None.

        Args:
            request: the one that has its place already.
        """
        request = request or _Request(self, self.context, self.stream.head, b"", None)
        request.outcome, request.decoded, request.trace = error, None, None
        decoupled = False
        if given is not None:
            request.id = given.id
            with suppress(TriremeError):  # there is no such model
                model = request.describe(given.model_name, parse_version(given.model_version))
                decoupled = model.config.decoupled
        request.note_refusal(error)
        self._take_in(request, decoupled=decoupled)
        self.answered(request)

    # The writer.

    async def _write(self) -> None:
        order, delays = self._order, self.context.options.delays
        while not (order.over or self._broken):
            request = order.next()
            if request is None:
                await self._ready.park()
                continue
            self._writing = True
            answers = request.take()
            counts = request.decoupled and (len(answers) > 1 or not self.stream.can_send_now)
            if request.decoupled and (counts or request.held_bytes):
                waiting = sum([answer_bytes(outcome) for outcome, _ in answers]) if counts else 0
                self._hold(request, waiting - request.held_bytes)
            for outcome, final in answers:
                if self._ends_with_error and isinstance(outcome, TriremeError) and request.decoded is not None:
                    self._failure = outcome
                    return
                if request.takes_long or (isinstance(outcome, InferenceResponse) and request.is_long(outcome)):
                    parts = await request.offload(request.encode, outcome, final)
                else:
                    parts = request.encode(outcome, final)
                if parts is not None:
                    if request.decoupled:
                        await delay(delays.response_s, "the write of the response")
                    if request.trace is not None:
                        request.trace.sending()
                    await self.stream.send_message(parts)
                    if request.trace is not None:
                        request.trace.sent()
                if request.decoupled:
                    await delay(delays.complete_s, "the completion of reporting response / flag")
                if final:
                    self._close(request)
                elif counts:
                    self._hold(request, -answer_bytes(outcome))
            self._writing = False


def _no_room(error: GRPCError) -> UnavailableError:
    return UnavailableError(error.message or "", refusal=RefusalReason.BUDGET)


class _Request(GrpcInfer, Place):
    """A request on a stream.

    Attributes:
        decoded: None if it was refused, by its model's queue at last.
        held_bytes: of its answers, that wait.
        reply: None if it was refused.
        waits_no_more: to be called when it does, if it was set aside.
        outcome: the only answer, of a request that gets one.
        takes_long: that answer is for the writer, who has it encoded on a thread.
    """

    protocol = "stream"
    prompt: ClassVar[bool] = True
    owner: InferStream
    held_bytes = 0
    id = ""
    outcome: InferenceResponse | TriremeError | None = None
    reply: Reply | None = None
    waits_no_more: Callable[[], None] | None = None
    takes_long = False

    def waiting(self) -> AbstractContextManager[None]:
        if self.waits_no_more is not None:
            return nullcontext()
        return self.owner.stream.waiting_for_room()

    def hear(self, reply: Reply) -> None:
        """The reply has the only answer. It may have to wait for earlier ones, but the request's data need not: the
        server-wide budget does not count it any more."""
        assert self.decoded is not None
        self.decoded.request.inputs, self.decoded.request.message = [], None
        nbytes = 0
        try:
            response = self.outcome = reply.answer()
            for tensor in response.outputs:
                nbytes += tensor.nbytes
            self.takes_long = may_take_long(response.outputs) and takes_long(response, self.decoded)
        except TriremeError as error:
            self.outcome = error
            error.__traceback__ = None  # leads here, and so to the reply that holds the error: a cycle
            self._note_refusal(reply)
        self.owner.answered(self, nbytes)

    def is_long(self, response: InferenceResponse) -> bool:
        decoded = self.decoded
        return decoded is not None and may_take_long(response.outputs) and takes_long(response, decoded)

    def hear_each(self, reply: Reply) -> None:
        self._note_refusal(reply)
        self.owner.answered(self)

    def _note_refusal(self, reply: Reply) -> None:
        """Its model may not have accepted it: then it is answered like one that was never admitted."""
        if reply.final and not reply.accepted:
            self.abandon()
            self.decoded = self.trace = None

    def newest(self) -> Sequence[Outcome]:
        """The answers that have come since this was last asked, and have not been taken."""
        return self.reply.newest() if self.decoupled and self.reply is not None else (self.outcome,)

    def take(self) -> list[tuple[Outcome, bool]]:
        """What is to be sent now: answers, and whether each is the last one."""
        if self.decoupled and self.reply is not None:
            return self.reply.take()
        return [(self.outcome, True)]

    def encode(self, outcome: Outcome, final: bool) -> list[Buffer] | None:
        """An answer as a ``ModelStreamInferResponse``; None if there is nothing to be told."""
        decoded = self.decoded
        kind = b""
        if isinstance(outcome, TriremeError) and self.owner.tells_kinds:
            kind = error_kind(outcome, refused=decoded is None)
        if decoded is None:
            assert isinstance(outcome, TriremeError), "a refused request has nothing but an error to tell"
            return write_stream_refusal(outcome.message, self.id, kind)
        if outcome is None and not decoded.enable_empty_final_response:
            return None
        try:
            return write_stream_response(outcome, decoded, final, kind)
        except TriremeError as error:
            return write_stream_error(error.message, decoded, final)
