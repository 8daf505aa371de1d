"""What a model asks of the server, and waits for: one answer, or the responses of a request to another model (BLS).

Rules:
 1. At most `MOST_OPEN` requests that are answered once are open; a caller that makes another one waits, which ends,
    since their answers are taken in whether or not anybody asks for them. Of requests that are answered any number of
    times as many may be open, too; another one is refused, since room for it may depend on who makes it.
 2. Of a request's responses, `protocol.WINDOW` come before any was asked for.
 3. Responses to a request whose `OutgoingCall` is gone are received and dropped.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from . import protocol
from .channel import ChannelClosedError, Link
from .codec import Message, Payload
from .utils.errors import HostError
from .utils.event_loop import CoroutineWaiter
from .utils.response import InferenceResponse
from .wire import read_response

MOST_OPEN = 1024

_TAKEN_AT_ONCE = protocol.WINDOW // 2
ANY_NUMBER = 1 << 40
_BARE_END: tuple[Any, ...] = (None, {}, ())
_GONE = Message((protocol.REFUSAL, -1, "the server is gone"), memoryview(b""))

Taker = Callable[[Message], bool]
"""Takes an answer to a call; whether it is the last. Called under the link's lock."""


class OutgoingCalls:
    """The calls that are not over. `left_behind` takes what destructors want to have done."""

    def __init__(
        self,
        link: Link,
        left_behind: SimpleQueue[Callable[[], None] | None],
        make_waiter: Callable[[], CoroutineWaiter],
    ) -> None:
        self.link = link
        self.make_waiter = make_waiter
        self._left_behind = left_behind
        self._numbers = itertools.count()
        self._takers: dict[int, Taker] = {}
        self._open = {False: 0, True: 0}
        self._pump: threading.Thread | None = None

    def ask(self, method: str, arguments: tuple[Any, ...], payload: Payload) -> Any:
        """Ask for one answer, and wait for it. HostError if the server refuses, ChannelClosedError if it is gone."""
        inbox = AnswerInbox(next(self._numbers), many=False)
        self._takers[inbox.number] = inbox.take
        try:
            self.link.send((protocol.CALL, inbox.number, method, arguments, None), payload)
            self.link.wait(lambda: inbox.over)
        finally:
            self._takers.pop(inbox.number, None)
        if inbox.refusal is not None:
            raise HostError(inbox.refusal)
        return inbox.responses[0][0] if inbox.responses else None

    def infer(
        self, request: tuple[Any, ...], many: bool, payload: Payload, batch: int | None, waits: bool = False
    ) -> OutgoingCall:
        """Make a request to another model, to which `many` responses are welcome; for a batch, if that is known. The
        calling thread may say that it `waits` for the answer, with nothing else to say before (`protocol.LONE_CALL`).
        HostError if too many are open (rule 1), ChannelClosedError if the server is gone."""
        if self._open[many] >= MOST_OPEN:
            if many:
                raise HostError(f"{MOST_OPEN} requests to decoupled models are open, and no more can be")
            self.link.wait(lambda: self._open[many] < MOST_OPEN)
        inbox = AnswerInbox(next(self._numbers), many)
        self.link.change(lambda: self._add(inbox))
        try:
            kind = protocol.LONE_CALL if waits else protocol.CALL
            self.link.send((kind, inbox.number, "infer", (request, many), batch), payload)
        except (ChannelClosedError, OSError, ValueError):
            self.link.change(lambda: self._remove(inbox))
            raise
        return OutgoingCall(self, inbox)

    def handle(self, message: Message) -> None:
        """The server has answered; under the link's lock."""
        number = message.head[1]
        taker = self._takers.get(number)
        if taker is not None and taker(message):
            self._takers.pop(number, None)

    def adopt(self, taker: Taker) -> int:
        """A number for a call that another process makes, whose answers `taker` takes."""
        number = next(self._numbers)
        self.link.change(lambda: self._takers.update({number: taker}))
        return number

    def keep_reading(self) -> None:
        """Start a reader where no thread waits and reads: an event loop does not."""
        if self._pump is None:
            self._pump = threading.Thread(target=self._read_on, name="trireme reader", daemon=True)
            self._pump.start()

    def drop(self, inbox: AnswerInbox) -> None:
        """Rule 3; called by a destructor."""
        inbox.unwanted = True
        self._left_behind.put(lambda: self.link.send((protocol.CALL_TAKEN, inbox.number, ANY_NUMBER)))

    def _read_on(self) -> None:
        try:
            self.link.wait(lambda: False)
        except ChannelClosedError:
            for taker in list(self._takers.values()):
                taker(_GONE)

    def _add(self, inbox: AnswerInbox) -> None:
        self._open[inbox.many] += 1

        def take(message: Message) -> bool:
            if inbox.take(message):
                self._open[inbox.many] -= 1
            return inbox.over

        self._takers[inbox.number] = take

    def _remove(self, inbox: AnswerInbox) -> None:
        if self._takers.pop(inbox.number, None) is not None:
            self._open[inbox.many] -= 1


@dataclass(eq=False)
class AnswerInbox:
    """What has come of the answers to one call. Written under the link's lock."""

    number: int
    many: bool
    over: bool = False
    unwanted: bool = False
    refusal: str | None = None
    responses: deque[tuple[Any, memoryview]] = field(default_factory=lambda: deque())
    wake: list[Callable[[], object]] = field(default_factory=list)

    @property
    def has_news(self) -> bool:
        return bool(self.responses) or self.over

    def take(self, message: Message) -> bool:
        """A `Taker`."""
        kind, _, *rest = message.head
        if kind == protocol.CALL_RESPONSE:
            self._came(rest[1], message.payload, rest[0])
        elif kind == protocol.RESULT:
            self._came(rest[0], message.payload, True)
        else:
            self.refused(rest[0])
        return self.over

    def _came(self, response: Any, payload: memoryview, final: bool) -> None:
        """A response, or (None) the bare end, which is an empty one among any number
        (docs/reference/python-backend.md#requests-to-other-models)."""
        if response is None and self.many:
            response = _BARE_END
        if response is not None and not self.unwanted:
            self.responses.append((response, payload))
        self.over = self.over or final
        self._wake_all()

    def refused(self, text: str) -> None:
        """The server does not accept the request."""
        self.refusal = text
        self.over = True
        self._wake_all()

    def tell(self, wake: Callable[[], object]) -> None:
        """Call this when a message has come; at once if one is there."""
        if self.has_news:
            wake()
        else:
            self.wake.append(wake)

    def _wake_all(self) -> None:
        while self.wake:
            self.wake.pop()()


class OutgoingCall:
    """A request to another model, as its maker sees it: see `utils.response.Responses`."""

    def __init__(self, calls: OutgoingCalls, inbox: AnswerInbox) -> None:
        self._calls = calls
        self._inbox = inbox
        self._taken = 0

    def __next__(self) -> InferenceResponse:
        inbox = self._inbox
        try:
            self._calls.link.wait(lambda: inbox.responses or inbox.over)
        except ChannelClosedError as error:
            raise HostError(str(error)) from None
        return self._take(StopIteration)

    async def __anext__(self) -> InferenceResponse:
        inbox = self._inbox
        self._calls.keep_reading()
        while not inbox.has_news:
            wait, wake = self._calls.make_waiter()
            self._calls.link.change(lambda wake=wake: inbox.tell(wake))
            await wait()
        return self._take(StopAsyncIteration)

    def cancel(self) -> None:
        if not self._inbox.over:
            try:
                self._calls.link.send((protocol.CANCEL_CALL, self._inbox.number))
            except ChannelClosedError:
                self._inbox.refused("the server is gone")

    def _take(self, end: type[Exception]) -> InferenceResponse:
        inbox = self._inbox
        if inbox.responses:
            wire, payload = inbox.responses.popleft()
            self._taken += 1
            if self._taken >= _TAKEN_AT_ONCE and not inbox.over:
                try:
                    self._calls.link.send((protocol.CALL_TAKEN, inbox.number, self._taken))
                except ChannelClosedError as error:
                    raise HostError(str(error)) from None
                self._taken = 0
            return read_response(wire, payload)
        if inbox.refusal is not None:
            refusal, inbox.refusal = inbox.refusal, None
            raise HostError(refusal)
        raise end

    def __del__(self) -> None:
        if not self._inbox.over:
            self._calls.drop(self._inbox)
