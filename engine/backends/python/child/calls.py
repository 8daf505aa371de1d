"""What a model asks of the server, and waits for: one answer, or the responses of a request to another model (BLS)."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from . import protocol
from .channel import ChannelClosedError
from .codec import Message, Payload
from .link import Link
from .utils.errors import HostError
from .utils.response import InferenceResponse
from .wire import read_response

_TAKEN_AT_ONCE = protocol.WINDOW // 2


class Calls:
    """The calls that are not over.

    Args:
        link: to the server.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._numbers = itertools.count()
        self._open: dict[int, Call | _Question] = {}
        self._pump: threading.Thread | None = None

    def ask(self, method: str, arguments: tuple[Any, ...], payload: Payload | None = None) -> Any:
        """Ask for one answer, and wait for it.

        Raises:
            HostError: the server refuses.
            ChannelClosedError: the server is gone.
        """
        number = next(self._numbers)
        question = self._open[number] = _Question()
        try:
            self.link.send((protocol.CALL, number, method, arguments), payload)
            self.link.wait(lambda: question.answered)
        finally:
            del self._open[number]
        if question.refusal is not None:
            raise HostError(question.refusal)
        return question.value

    def infer(self, arguments: tuple[Any, ...], payload: Payload) -> Call:
        """Make a request to another model."""
        number = next(self._numbers)
        call = self._open[number] = Call(self, number)
        sent = False
        try:
            self.link.send((protocol.CALL, number, "infer", arguments), payload)
            sent = True
        finally:
            if not sent:
                del self._open[number]
        return call

    def handle(self, message: Message) -> None:
        """The server has answered; under the link's lock."""
        kind, number, *rest = message.head
        call = self._open.get(number)
        if call is None:
            return
        if kind == protocol.CALL_RESPONSE and isinstance(call, Call):
            final, response = rest
            if final:
                del self._open[number]
            call.came(response, message.payload, final)
        elif kind == protocol.REFUSAL and isinstance(call, Call):
            del self._open[number]
            call.refused(rest[0])
        elif isinstance(call, _Question):
            call.answered = True
            call.value, call.refusal = (rest[0], None) if kind == protocol.RESULT else (None, rest[0])

    def keep_reading(self) -> None:
        """See to it that somebody reads although nobody waits in a thread: an event loop does not."""
        if self._pump is None:
            self._pump = threading.Thread(target=self._read_on, name="trireme reader", daemon=True)
            self._pump.start()

    def _read_on(self) -> None:
        try:
            self.link.wait(lambda: False)
        except ChannelClosedError:
            for call in list(self._open.values()):
                if isinstance(call, Call):
                    call.refused("the server is gone")


class _Question:
    """A call that has one answer."""

    __slots__ = ("answered", "refusal", "value")

    def __init__(self) -> None:
        self.answered = False
        self.value: Any = None
        self.refusal: str | None = None


class Call:
    """A request to another model: see `utils.host.Responses`."""

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self._number = number
        self._came: deque[tuple[Any, memoryview]] = deque()
        self._refusal: str | None = None
        self._over = False
        self._taken = 0
        self._wake: list[Callable[[], object]] = []

    def __iter__(self) -> Call:
        return self

    def __aiter__(self) -> Call:
        return self

    def __next__(self) -> InferenceResponse:
        try:
            self._calls.link.wait(self._has_news)
        except ChannelClosedError as error:
            raise HostError(str(error)) from None
        response = self._take()
        if response is None:
            raise StopIteration
        return response

    async def __anext__(self) -> InferenceResponse:
        self._calls.keep_reading()
        loop = asyncio.get_running_loop()
        while not self._has_news():
            came: asyncio.Future[None] = loop.create_future()
            self._calls.link.change(lambda came=came: self._tell(loop, came))
            await came
        response = self._take()
        if response is None:
            raise StopAsyncIteration
        return response

    def cancel(self) -> None:
        if not self._over:
            try:
                self._calls.link.send((protocol.CANCEL_CALL, self._number))
            except ChannelClosedError:
                self.refused("the server is gone")

    # Under the link's lock.

    def came(self, response: Any, payload: memoryview, final: bool) -> None:
        """A response, or (None) the bare end."""
        if response is not None:
            self._came.append((response, payload))
        self._over = self._over or final
        self._wake_all()

    def refused(self, text: str) -> None:
        """The server does not accept the request."""
        self._refusal = text
        self._over = True
        self._wake_all()

    def _has_news(self) -> bool:
        return bool(self._came) or self._over

    def _tell(self, loop: asyncio.AbstractEventLoop, came: asyncio.Future[None]) -> None:
        def wake() -> None:
            if not came.done():
                came.set_result(None)

        if self._has_news():
            wake()
        else:
            self._wake.append(lambda: loop.call_soon_threadsafe(wake))

    def _wake_all(self) -> None:
        while self._wake:
            self._wake.pop()()

    # In the thread or task that wants the responses.

    def _take(self) -> InferenceResponse | None:
        if self._came:
            wire, payload = self._came.popleft()
            self._taken += 1
            if self._taken >= _TAKEN_AT_ONCE and not self._over:
                self._calls.link.send((protocol.CALL_TAKEN, self._number, self._taken))
                self._taken = 0
            return read_response(wire, payload)
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise HostError(refusal)
        return None

    def __repr__(self) -> str:
        return f"<Call {self._number}: {len(self._came)} responses{', over' if self._over else ''}>"
