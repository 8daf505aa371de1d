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

import socket
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from ..actors.actor import Recipient
from ..actors.budget import Lease
from ..actors.offload import copied_in_pieces
from ..actors.reply import Reply
from ..actors.server import InferenceServer
from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.description import ModelDescription
from ..engine.errors import CancelledError, InternalError, TriremeError
from ..engine.job import Outcome
from ..engine.request import InferenceRequest, InferenceResponse
from ..engine.tracing.record import Trace
from ..python_backend.child.codec import Payload
from . import kinds
from .arena import is_to_stage, stage
from .link import NOTHING, FrontEndLink, LinkError, LinkHead
from .pending import PendingRequest, placed
from .port_calls import PortCalls
from .port_leases import PortLeases
from .refusals import read_refusals
from .requests import RequestReader, SentRequest
from .responses import ResponseWriter
from .ring import RingReader, RingWriter
from .slots import packing_takes_long
from .traces import read_notes
from .values import broken, read_integer, read_list, write_error

_MOST_READ = 256
_MOST_HELD = 65_536
"""Traces, and requests that wait for room, of one front end. An honest one has far fewer."""
_MOST_NEWS = 4_096


class Port(Recipient):
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
        super().__init__()
        self.pid = pid
        self._server = server
        self._turn = server.turn
        self._link = FrontEndLink(sock, rings, self._returned)
        self._requests = RequestReader(describe, server.shared_memory)
        self._responses = ResponseWriter(self._link.lender)
        self._hear_other = hear
        self._pending: dict[int, PendingRequest] = {}
        self._leases = PortLeases(server, self._say)
        self._calls = PortCalls(prepare, self._turn, self._say)
        self._traces: dict[int, Trace] = {}
        self._held = 0
        self._blocked: dict[PendingRequest, None] = {}
        self._news: deque[tuple[LinkHead, Payload]] = deque(maxlen=_MOST_NEWS)
        self._unsent: dict[tuple[int, int], tuple[LinkHead, Payload]] = {}
        self._flushes = False
        self._error: LinkError | None = None
        self._closed = False
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
            return
        sent = self._requests.read(head, payload)
        number = sent.number
        if number in self._pending:
            raise LinkError(f"request {number} is there already")
        pending = self._pending[number] = PendingRequest(self, number, sent.request.id)
        self._begin_trace(sent)
        lease = self._leases.take(sent.lease) if sent.lease else None
        try:
            if sent.refusal is not None:
                raise sent.refusal
            if sent.shared:
                if sent.shared_bytes > LARGE_BYTES:
                    self._wait(pending, sent, lease)
                    return
                sent.copy_shared(bytes)
            reply = self._server.admit_nowait(sent.request, lease=lease, model=sent.description)
        except TriremeError as error:
            if lease is not None:
                lease.close()
            self._refuse(pending, sent.request, error)
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
        except TriremeError as error:
            refusal = error
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

    def _refuse(self, pending: PendingRequest, request: InferenceRequest, error: TriremeError) -> None:
        """Answer what was not admitted, and count it: the front end takes it for what a model's door has counted."""
        self._server.note_refusal(error, request.model_name, request.model_version)
        error.__traceback__ = None  # leads here, and so to the request
        pending.unsent = [*pending.unsent, (error, True)]
        self.answer(pending)

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
        if pending is not None and pending.reply is not None:
            pending.reply.when_accepted(partial(self._say, (kinds.ACCEPTED, pending.number)))

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
                trace.note(each.name, each.ns)
            trace.leave()

    def _count_refusals(self, head: list[Any], _payload: memoryview) -> None:
        """The front end has refused requests, or connections."""
        self._server.note_refusal(*read_refusals(head))

    # Answers.

    def answer_at_once(self, pending: PendingRequest, accepted: bool, outcome: Outcome, final: bool) -> bool:
        """Send an answer if it is a usual one (`ResponseWriter.write_usual`), and there is room. Whether it was."""
        if not (final and accepted) or self._closed or pending.places is not None:
            return False
        message = self._responses.write_usual(pending.number, pending.name, outcome)
        try:
            if message is None or not self._link.send(*message):
                return False
        except LinkError as error:
            self._break(error)
            return False
        self._pending.pop(pending.number, None)
        if not self._flushes:
            self._flush_later()
        return True

    def answer(self, pending: PendingRequest) -> None:
        """Send the answers of a request, as far as there is room."""
        if self._closed or pending.packs:
            return
        unsent = pending.unsent
        done = 0
        try:
            for outcome, final in unsent:
                if self._packs_first(pending, outcome):
                    break
                if not self._send_answer(pending, outcome, final):
                    self._blocked[pending] = None
                    break
                done += 1
                if final:
                    self._pending.pop(pending.number, None)
                else:
                    pending.owed += outcome is not None
        except LinkError as error:
            self._break(error)
        pending.unsent = unsent[done:]
        self._flush_later()

    def _packs_first(self, pending: PendingRequest, outcome: Outcome) -> bool:
        """Whether a thread has to pack the texts of an answer, or to copy it; it begins."""
        if not isinstance(outcome, InferenceResponse) or outcome is pending.packed:
            return False
        if packing_takes_long(outcome.outputs) or is_to_stage(outcome):
            pending.packed, pending.packs = outcome, True
            self._nursery.start_soon(self._pack, pending, outcome)
        return pending.packs

    async def _pack(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Send the next answer when it lies in a segment, its texts packed."""
        staged: Outcome
        try:
            staged = pending.packed = await self._server.offload(stage, self._link.lender, response)
        except TriremeError as error:
            staged = error
        pending.unsent = [(staged, pending.unsent[0][1]), *pending.unsent[1:]]
        with self._turn:
            pending.packs = False
            self.answer(pending)

    def _send_answer(self, pending: PendingRequest, outcome: Outcome, final: bool) -> bool:
        reply, responses = pending.reply, self._responses
        accepted = reply is not None and (reply.accepted or not final)
        try:
            if pending.places is not None and isinstance(outcome, InferenceResponse):
                outcome = placed(outcome, pending.places)
            head, payload = responses.write(pending.number, pending.name, outcome, final=final, accepted=accepted)
            sent = self._link.send(head, payload)
        except TriremeError as error:
            sent = self._send_failure(pending, error, final, accepted)
        except (ValueError, OSError) as error:  # too long for a head; no memory, or no descriptor
            responses.unsent()
            failure = InternalError(f"the answer cannot be passed on: {error}")
            sent = self._send_failure(pending, failure, final, accepted)
        if not sent:
            responses.unsent()
        return sent

    def _send_failure(self, pending: PendingRequest, error: TriremeError, final: bool, accepted: bool) -> bool:
        head, payload = self._responses.write(pending.number, pending.name, error, final=final, accepted=accepted)
        return self._link.send(head, payload)

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
            while news and self._link.send(*news[0]):
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
        blocked, self._blocked = self._blocked, {}
        for pending in blocked:
            self.answer(pending)

    def _returned(self) -> None:
        """The front end may wait for segments that it has lent; from any thread."""
        self._turn.call_from_thread(self._flush_later)

    def _flush_later(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._turn.flush_later(self)

    def flush(self) -> None:
        self._flushes = False
        if not self._closed:
            try:
                self._link.flush()
            except LinkError as error:
                self._break(error)

    def __repr__(self) -> str:
        return f"<Port: {len(self._pending)} requests, {len(self._leases)} leases>"


_NUMBERED = frozenset((kinds.ACCEPTED, kinds.GRANTED, kinds.WANTED, kinds.RESULT))
