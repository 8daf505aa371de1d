"""The engine's end of one front end: its requests go to the server as if they had come here, and answers go back.

Rules:
 1. Messages are read, and sent, in turns; the doorbell is rung at the end of one. In a turn no more than `_MOST_READ`
    are read: others want theirs, too.
 2. Each request (`ADMIT`) gets exactly one final answer, refusals included, unless the front end is gone.
 3. What has no room in the ring stays where it is: answers in their replies, which hold the model back, and of anything
    else there is one message at most of each request, lease or call. Once there is room, all of it is tried again.
 4. A front end that breaks a rule of the protocol is not listened to any more: `run` raises a `LinkError`. So it does
    when the process has ended. What the front end had is given back then: requests are cancelled, leases closed.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from ..actors.budget import Lease
from ..actors.offload import copied_in_pieces
from ..actors.reply import Reply
from ..actors.server import InferenceServer
from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.description import ModelDescription
from ..engine.errors import CancelledError, InternalError, TriremeError, UnavailableError
from ..engine.request import InferenceRequest
from ..engine.tracing.record import RefusalNote, Trace
from ..python_backend.child.codec import Payload
from . import kinds
from .access import hear_denied
from .borrower import NO_DESCRIPTOR
from .link import NOTHING, FrontEndLink, LinkError, LinkHead
from .pending import PendingRequest
from .port_answers import AnsweringPort
from .port_calls import PortCalls
from .port_leases import PortLeases
from .refusals import read_refusals
from .requests import RequestReader, SentRequest
from .ring import RingReader, RingWriter
from .traces import read_notes
from .values import broken, read_integer, read_list, write_error

logger = logging.getLogger("trireme.front_ends")

_MOST_READ = 256
_MOST_HELD = 65_536
"""Traces, and requests that wait for room, of one front end. An honest one has far fewer."""
_MOST_NEWS = 4_096


class Port(AnsweringPort):
    """One front end, as the engine sees it.

    Args:
        sock, rings: of this end.
        describe: finds a model's description by its number.
        prepare: see `Calls.prepare`.
        hear: takes in messages that are not about requests, leases and calls.

    Attributes:
        pid: of the front end's process.
    """

    def __init__(
        self,
        server: InferenceServer,
        sock: socket.socket,
        rings: tuple[RingWriter, RingReader],
        describe: Callable[[int], ModelDescription | None],
        prepare: Callable[[Any, Any, memoryview], Callable[[], Awaitable[Any]]],
        hear: Callable[[list[Any]], object],
        pid: int = 0,
    ) -> None:
        super().__init__(FrontEndLink(sock, rings, self._returned, self._refuse_lost), server.turn, server.offload)
        self.pid = pid
        self._server = server
        self._access = access = server.access
        find_caller = None if access is None else access.control.caller_of
        self._requests = RequestReader(describe, server.shared_memory, find_caller)
        self._hear_other = hear
        self._leases = PortLeases(server, self._say)
        self._calls = PortCalls(prepare, self._turn, self._say)
        self._traces: dict[int, Trace] = {}
        self._held = 0
        self._news: deque[tuple[LinkHead, Payload]] = deque(maxlen=_MOST_NEWS)
        self._unsent: dict[tuple[int, int], tuple[LinkHead, Payload]] = {}
        self._error: LinkError | None = None
        self._handlers: dict[int, Callable[[list[Any], memoryview], None]] = {
            kinds.ADMIT: self._admit,
            kinds.CANCEL: self._cancel,
            kinds.TAKEN: self._taken,
            kinds.FOLLOW: self._follow,
            kinds.GROW: self._leases.grow,
            kinds.ARRIVED: self._leases.arrived,
            kinds.CLOSE: self._leases.close,
            kinds.CALL: self._calls.begin,
            kinds.GIVE_UP: self._calls.give_up,
            kinds.NOTES: self._note,
            kinds.REFUSED: self._count_refusals,
            kinds.DENIED: self._note_denied,
        }

    # The task.

    async def run(self) -> None:
        """Serve the front end until cancelled.

        Raises:
            LinkError: rule 4.
        """
        try:
            async with trio.open_nursery() as self._nursery:
                self._calls.start_soon = self._nursery.start_soon
                self._nursery.start_soon(self._tidying.run)
                await self._server.readiness.keep_hearing(self._link.fileno(), self._hear)
        finally:
            self._close()
        if self._error is not None:
            raise self._error

    def _break(self, error: LinkError) -> None:
        self._error = self._error or error
        self._nursery.cancel_scope.cancel()

    def _close(self) -> None:
        """Give back what the front end had."""
        self._closed = True
        with self._turn:
            for pending in list(self._pending.values()):
                if pending.reply is not None:
                    pending.reply.cancel()
            self._leases.close_all()
            for trace in self._traces.values():
                trace.leave()
        for each in (self._traces, self._pending, self._blocked, self._unsent, self._news):
            each.clear()
        self._link.close()

    # In.

    def _hear(self) -> bool:
        """The doorbell has rung."""
        try:
            if self._link.hear():
                self._retry()
            self._read()
        except LinkError as error:
            self._break(error)
        return True  # until it is cancelled

    def take_turn(self) -> None:
        """Read what the last turn has left (rule 1)."""
        if not self._closed:
            self._read()

    def fail(self, error: Exception) -> None:
        self._break(error if isinstance(error, LinkError) else LinkError(f"unexpected failure: {error!r}"))

    def _read(self) -> None:
        link, handlers = self._link, self._handlers
        for _ in range(_MOST_READ):
            message = link.receive()
            if message is None:
                break
            head, payload = message
            kind = head[0]
            handler = handlers.get(kind) if kind.__class__ is int else None
            if handler is None:
                self._hear_other(head)
            else:
                handler(head, payload)
        else:
            self._turn.defer(self)
        if link.release():
            self._retry()

    # Requests.

    def _admit(self, head: list[Any], payload: memoryview) -> None:
        plain = self._requests.read_plain(head, payload)
        if plain is not None:
            self._admit_plain(head[1], *plain)
        else:
            self._admit_read(self._requests.read(head, payload))

    def _admit_read(self, sent: SentRequest) -> None:
        """The same for any request."""
        number = sent.number
        if number in self._pending:
            raise LinkError(f"request {number} is there already")
        pending = self._pending[number] = PendingRequest(self, number, sent.request.id)
        self._begin_trace(sent)
        lease = self._leases.take(sent.lease) if sent.lease else None
        try:
            if self._access is not None:
                self._access.check_sent(sent.request)
            if sent.refusal is not None:
                raise sent.refusal
            if sent.shared:
                if sent.shared_bytes > LARGE_BYTES:
                    self._wait(pending, sent, lease)
                    return
                sent.copy_shared(bytes)
            reply = self._server.admit_nowait(sent.request, lease=lease, model=sent.description)
        except (TriremeError, MemoryError) as error:
            if lease is not None:
                lease.close()
            self._refuse(pending, sent.request, _refusal(error))
            return
        if reply is None:
            self._wait(pending, sent, lease)
        else:
            self._listen(pending, sent, reply)

    def _admit_plain(self, number: int, request: InferenceRequest, description: ModelDescription | None) -> None:
        """The same for a request with nothing but tensors, as most are."""
        if number in self._pending:
            raise LinkError(f"request {number} is there already")
        pending = self._pending[number] = PendingRequest(self, number, request.id)
        try:
            if self._access is not None:
                self._access.check_sent(request)
            reply = self._server.admit_nowait(request, model=description)
        except TriremeError as error:
            self._refuse(pending, request, error)
            return
        if reply is None:
            self._wait(pending, SentRequest(number, request, description), None)
        else:
            self._follow_reply(pending, reply)

    def _listen(self, pending: PendingRequest, sent: SentRequest, reply: Reply) -> None:
        if sent.places:
            pending.places = sent.places
        self._follow_reply(pending, reply)

    def _follow_reply(self, pending: PendingRequest, reply: Reply) -> None:
        pending.reply = reply
        if reply.window is None:
            reply.notify(pending.answered)
        else:
            reply.notify_each(pending.answered)

    def _wait(self, pending: PendingRequest, sent: SentRequest, lease: Lease | None) -> None:
        """Admit a request in a task."""
        if self._held >= _MOST_HELD:
            if lease is not None:
                lease.close()
            raise LinkError("too many requests")
        pending.scope = trio.CancelScope()
        self._held += 1
        self._say((kinds.HELD, self._held))
        self._nursery.start_soon(self._admit_later, pending, pending.scope, sent, lease)

    async def _admit_later(
        self, pending: PendingRequest, scope: trio.CancelScope, sent: SentRequest, lease: Lease | None
    ) -> None:
        reply: Reply | None = None
        refusal: TriremeError = CancelledError("Request cancelled")
        try:
            with scope:
                if sent.shared:
                    await self._server.offload(sent.copy_shared, copied_in_pieces)
                reply = await self._server.admit(sent.request, lease, sent.description)
        except Exception as error:  # noqa: BLE001 - what it is must not cost others
            refusal = _refusal(error)
        finally:
            if reply is None and lease is not None:
                lease.close()
        with self._turn:
            self._held -= 1
            self._say((kinds.HELD, self._held))
            pending.scope = None
            if reply is None:
                self._refuse(pending, sent.request, refusal)
            else:
                self._listen(pending, sent, reply)
                if pending.follows:
                    self._follow_acceptance(pending, reply)

    def _refuse(self, pending: PendingRequest, request: InferenceRequest, error: TriremeError) -> None:
        """Answer what was not admitted, and count it: the front end takes it for what a model's door has counted."""
        self._server.note_refusal(error, request.model_name, request.model_version)
        if request.trace is not None and error.refusal_reason is not None:
            request.trace.note_refusal(error.refusal_reason.value)
        error.__traceback__ = None  # leads here, and so to the request
        pending.unsent = [*pending.unsent, (error, True)]
        self.answer(pending)

    def _refuse_lost(self, head: list[Any], payload: memoryview) -> None:
        """A message has come without its payload (`FrontEndLink`), of which nothing is to be looked at."""
        error = UnavailableError(NO_DESCRIPTOR)
        if head[0] == kinds.ADMIT:
            sent = self._requests.read(head, payload)
            sent.refusal = sent.refusal or error
            self._admit_read(sent)
        elif head[0] == kinds.CALL:
            self._calls.refuse(head, error)
        else:
            raise LinkError(NO_DESCRIPTOR)

    def _known(self, head: list[Any], items: int) -> PendingRequest | None:
        """The request that a message is about; None if it is over."""
        read_list(head, items, items)
        return self._pending.get(read_integer(head[1]))

    def _cancel(self, head: list[Any], _payload: memoryview) -> None:
        pending = self._known(head, 2)
        if pending is not None:
            if pending.scope is not None:
                pending.scope.cancel()
            if pending.reply is not None:
                pending.reply.cancel()

    def _taken(self, head: list[Any], _payload: memoryview) -> None:
        pending = self._known(head, 3)
        count = read_integer(head[2])
        if pending is None or pending.reply is None:
            return
        if count > pending.owed:
            raise broken(f"no more than the {pending.owed} answers that were sent", count)
        pending.owed -= count
        pending.reply.taken(count)

    def _follow(self, head: list[Any], _payload: memoryview) -> None:
        pending = self._known(head, 2)
        if pending is None:
            return
        if pending.reply is None:  # it waits for room
            pending.follows = True
        else:
            self._follow_acceptance(pending, pending.reply)

    def _follow_acceptance(self, pending: PendingRequest, reply: Reply) -> None:
        reply.when_accepted(partial(self._say, (kinds.ACCEPTED, pending.number)))

    def _begin_trace(self, sent: SentRequest) -> None:
        """The front end notes the request: whether it is traced is decided here."""
        wish = sent.wish
        if wish is not None:
            trace = self._server.tracer.begin(wish.model, wish.context)
            if trace is not None:
                before = self._traces.get(sent.number)
                if before is not None:
                    before.leave()
                self._traces[sent.number] = sent.request.trace = trace
                if len(self._traces) > _MOST_HELD:  # it may be that clients do not read their answers
                    self._traces.pop(next(iter(self._traces))).leave()

    def _note(self, head: list[Any], _payload: memoryview) -> None:
        """What the front end has noted of a request, which is over."""
        number, notes, wish = read_notes(head)
        trace = self._traces.pop(number, None)
        if wish is not None:  # it was refused there
            trace = self._server.tracer.begin(wish.model, wish.context)
        if trace is not None:
            for each in notes:
                if isinstance(each, RefusalNote):
                    trace.note_refusal(each.reason)
                else:
                    trace.note(each.name, each.ns)
            trace.leave()

    def _count_refusals(self, head: list[Any], _payload: memoryview) -> None:
        """The front end has refused requests, or connections."""
        self._server.note_refusal(*read_refusals(head))

    def _note_denied(self, head: list[Any], _payload: memoryview) -> None:
        if self._access is None:
            raise LinkError("it speaks of callers, where there are no access rules")
        hear_denied(self._access, head)

    # Out.

    def say(self, head: LinkHead, payload: Payload = NOTHING) -> None:
        """Send a message about the server, after all those before it."""
        if len(self._news) >= _MOST_NEWS:
            self._break(LinkError("the front end does not read what it is sent"))
            return
        self._news.append((head, payload))
        with self._turn:
            self._send_news()

    def _send_news(self) -> None:
        news = self._news
        try:
            while news and self._link.send_plainly(*news[0]):
                news.popleft()
        except (LinkError, ValueError, OSError) as error:
            self._break(LinkError(str(error)))
        self._flush_later()

    def _say(self, head: LinkHead, payload: Payload = NOTHING) -> None:
        """Send a message of which there is one at most of its kind and number, or later (rule 3)."""
        if self._closed:
            return
        key = head[0], head[1] if head[0] in _NUMBERED else 0
        self._unsent.pop(key, None)
        try:
            if not self._link.send(head, payload):
                self._unsent[key] = head, payload
        except (ValueError, OSError) as error:
            if head[0] == kinds.RESULT:
                failure = write_error(InternalError(f"the result cannot be passed on: {error}"))
                self._say((kinds.RESULT, head[1], 0, failure))
            else:
                self._break(LinkError(str(error)))
        except LinkError as error:
            self._break(error)
        self._flush_later()

    def _retry(self) -> None:
        """There may be room."""
        self._send_news()
        unsent, self._unsent = self._unsent, {}
        for head, payload in unsent.values():
            self._say(head, payload)
        self._retry_answers()

    def _returned(self) -> None:
        """The front end may wait for segments that it has lent; from any thread."""
        self._turn.call_from_thread(self._flush_later)

    def __repr__(self) -> str:
        return f"<Port: {len(self._pending)} requests, {len(self._leases)} leases>"


def _refusal(error: Exception) -> TriremeError:
    """What a request is told that is not admitted."""
    if isinstance(error, TriremeError):
        return error
    if isinstance(error, MemoryError):
        return UnavailableError("there is no memory for the request; try again later")
    logger.error("unexpected failure of a request of a front end", exc_info=error)
    return InternalError(f"unexpected failure: {error}")


_NUMBERED = frozenset((kinds.ACCEPTED, kinds.GRANTED, kinds.WANTED, kinds.RESULT))
