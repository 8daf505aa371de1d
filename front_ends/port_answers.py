"""The answers of a front end's requests, on their way out of its port.

Rules:
 1. An answer that has no room in the ring stays with its request, and those behind it, until there is some.
 2. What takes long is done by a thread first: texts that are to be packed, outputs that are to be copied into a segment
    (`arena.stage`), or to where the client wants them (`pending.placed`).
 3. An answer that cannot be passed on, for want of memory or by a defect, costs its request: that gets an error.
"""

from __future__ import annotations

import logging
from abc import abstractmethod

import trio

from ..actors.actor import Recipient, Turn
from ..actors.offload import Offload
from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.errors import InternalError, TriremeError, UnavailableError
from ..engine.job import Outcome
from ..engine.request import InferenceResponse
from .arena import ArenaLender, is_to_stage, stage
from .link import FrontEndLink, LinkError
from .pending import PendingRequest, bytes_to_place, placed
from .responses import ResponseWriter
from .slots import packing_takes_long
from .tidying import Tidying

logger = logging.getLogger("trireme.front_ends")


class AnsweringPort(Recipient):
    """A port, as far as it answers (`Answerer`).

    Args:
        link: of the port.
        offload: runs a function on a thread.
    """

    _nursery: trio.Nursery

    def __init__(self, link: FrontEndLink, turn: Turn, offload: Offload) -> None:
        super().__init__()
        self._link = link
        self._turn = turn
        self._offload = offload
        self._responses = ResponseWriter(link.lender)
        self._pending: dict[int, PendingRequest] = {}
        self._blocked: dict[PendingRequest, None] = {}
        self._tidying = Tidying(link, turn, self._flush_later)
        self._flushes = False
        self._closed = False

    @abstractmethod
    def _break(self, error: LinkError) -> None:
        """The front end cannot be served any more."""

    def _flush_later(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._turn.flush_later(self)

    def flush(self) -> None:
        """What was sent is seen now."""
        self._flushes = False
        if not self._closed:
            try:
                self._link.flush()
            except LinkError as error:
                self._break(error)
            if self._link.uses_segments:
                self._tidying.begin()

    def answer_at_once(self, pending: PendingRequest, accepted: bool, outcome: Outcome, final: bool) -> bool:
        """Send an answer if it is a usual one (`ResponseWriter.write_usual`), and there is room. Whether it was."""
        if not (final and accepted) or self._closed or pending.places is not None:
            return False
        try:
            message = self._responses.write_usual(pending.number, pending.name, outcome)
            if message is None or not self._link.send(*message):
                return False
        except LinkError as error:
            self._break(error)
            return False
        except MemoryError:
            return False  # `answer` words it
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

    def _retry_answers(self) -> None:
        """There may be room."""
        blocked, self._blocked = self._blocked, {}
        for pending in blocked:
            self.answer(pending)

    def _packs_first(self, pending: PendingRequest, outcome: Outcome) -> bool:
        """Whether a thread has something to do first; it begins."""
        if not isinstance(outcome, InferenceResponse) or outcome is pending.packed:
            return False
        places = pending.places
        places_much = places is not None and bytes_to_place(outcome, places) >= LARGE_BYTES
        if places_much or packing_takes_long(outcome.outputs) or is_to_stage(outcome):
            pending.packed, pending.packs = outcome, True
            self._nursery.start_soon(self._pack, pending, outcome)
        return pending.packs

    async def _pack(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Send the next answer when a thread has done its part."""
        staged: Outcome
        try:
            staged = pending.packed = await self._offload(_prepared, self._link.lender, pending, response)
        except Exception as error:  # noqa: BLE001 - rule 3
            staged = _failure(error)
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
        except LinkError:
            raise
        except Exception as error:  # noqa: BLE001 - rule 3
            responses.unsent()
            head, payload = responses.write(
                pending.number, pending.name, _failure(error), final=final, accepted=accepted
            )
            sent = self._link.send(head, payload)
        if not sent:
            responses.unsent()
        return sent


def _prepared(lender: ArenaLender, pending: PendingRequest, response: InferenceResponse) -> InferenceResponse:
    """An answer that is soon sent; on a thread."""
    return stage(lender, response if pending.places is None else placed(response, pending.places))


def _failure(error: Exception) -> TriremeError:
    """What a request is told whose answer cannot be passed on."""
    if isinstance(error, TriremeError):
        return error
    if isinstance(error, MemoryError):
        return UnavailableError("the answer cannot be passed on: there is no memory for it; try again later")
    if isinstance(error, OSError):  # of a segment
        return UnavailableError(f"the answer cannot be passed on: {error.strerror}; try again later")
    if not isinstance(error, ValueError):  # too long for a head
        logger.error("unexpected failure of an answer to a front end", exc_info=error)
    return InternalError(f"the answer cannot be passed on: {error}")
