"""The server, as a model in a process of its own sees it: implements `utils.response.Host` over a `Link`."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from . import protocol
from .calls import ANY_NUMBER, OutgoingCall, OutgoingCalls
from .channel import Channel, ChannelClosedError, Link, socket_pair
from .codec import Message, MessageError, Payload
from .utils.errors import HostError, TritonModelException
from .utils.event_loop import EventLoop
from .utils.request import InferenceRequest
from .utils.response import LOST, InferenceResponse
from .wire import write_error, write_request, write_response

_DELETIONS = ("delete_family", "delete_metric")
"""By destructors, which say nothing in a forked process (`Forks`, rule 3)."""


@dataclass(eq=False)
class _Open:
    """A request that has no final response yet, and how many responses may be sent now."""

    cancelled: bool = False
    room: int = protocol.WINDOW
    wake: list[Callable[[], object]] = field(default_factory=list)

    @property
    def may_send(self) -> bool:
        return self.room > 0 or self.cancelled

    def tell(self, wake: Callable[[], object]) -> None:
        """Call this when a response may be sent. Under the link's lock, as what follows."""
        self.wake.append(wake)
        self.changed()

    def changed(self) -> None:
        while self.may_send and self.wake:
            self.wake.pop()()


class ProcessHost:
    """The server, at the other end of a blocking channel. Name and policy are known once started; `batch` is the one
    that the running code belongs to, which threads that user code starts do not know."""

    def __init__(self, channel: Channel, loop: EventLoop) -> None:
        self.instance_name = ""
        self.decoupled = False
        self.link = Link(channel, self._handle)
        self.tasks: deque[Message] = deque()
        self.batch: ContextVar[int | None] = ContextVar("batch", default=None)
        self._left_behind: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.loop = loop
        self.calls = OutgoingCalls(self.link, self._left_behind, loop.waiter)
        self._forked = False
        self._log_sent = 0
        self._log_taken = 0
        self._logging = threading.RLock()  # a destructor of user code may log, whatever it interrupts
        self._open: dict[int, _Open] = {}

    # For the main thread.

    def next_task(self) -> Message:
        """Wait for something to do. ChannelClosedError if the server is gone."""
        self.link.wait(self.tasks.__len__)
        return self.tasks.popleft()

    def opened(self, key: int) -> None:
        self._open[key] = _Open()

    def over(self, key: int) -> None:
        """A request has its final response."""
        self._open.pop(key, None)

    def keep_tidy(self) -> None:
        """See to what destructors have noted, which must not do it themselves; for a thread of its own."""
        with contextlib.suppress(ChannelClosedError):
            while (left_behind := self._left_behind.get()) is not None:
                left_behind()

    def move(self, channel: Channel) -> None:
        """In a forked process: be connected by this channel from now on (see `Forks`)."""
        self.link.channel.leave()
        self._forked = True
        self.link = Link(channel, self._handle)
        self._left_behind = SimpleQueue()
        self.calls = OutgoingCalls(self.link, self._left_behind, self.loop.waiter)
        threading.Thread(target=self.keep_tidy, name="trireme tidy", daemon=True).start()

    def close(self) -> None:
        """The model is not served any more: end the threads, and give everything back."""
        self._left_behind.put(None)
        self.link.close()

    # See `utils.response.Host`.

    def send(self, key: int, response: InferenceResponse | None, flags: int) -> None:
        final = bool(flags & protocol.FINAL)
        payload = Payload()
        try:
            wire = None if response is None else write_response(response, payload)
            if response is not None:
                self._enter(key)
            self.link.send((protocol.ANSWER, key, final, wire), payload)
        except (ValueError, ChannelClosedError, OSError) as error:
            raise HostError(str(error)) from None
        if final:
            self.over(key)

    async def room(self, key: int) -> None:
        request = self._open.get(key)
        while request is not None and not request.may_send:
            self.calls.keep_reading()
            wait, wake = self.loop.waiter()
            self.link.change(partial(request.tell, wake))
            await wait()

    def abandon(self, key: int) -> None:
        if not self._forked:
            self._left_behind.put(lambda: self._answer_for(key))

    def is_cancelled(self, key: int) -> bool:
        request = self._open.get(key)
        if request is not None and not request.cancelled:
            self.link.poll()
        return request is not None and request.cancelled

    def infer(self, request: InferenceRequest, decoupled: bool, waits: bool = False) -> OutgoingCall:
        payload = Payload()
        try:
            wire = write_request(request, payload)
            return self.calls.infer(wire, decoupled, payload, self.batch.get(), waits)
        except (ValueError, ChannelClosedError, OSError) as error:
            raise HostError(str(error)) from None

    def ask(self, method: str, *arguments: Any) -> Any:
        if self._forked and method in _DELETIONS:
            return None
        payload = Payload()
        if method == "load_model":
            name, config, files = arguments
            arguments = (name, config, {path: (payload.add(each), len(each)) for path, each in files.items()})
        try:
            return self.calls.ask(method, arguments, payload)
        except (ValueError, ChannelClosedError, OSError) as error:
            raise HostError(str(error)) from None

    def log(self, level: str, filename: str, line: int, message: str) -> None:
        try:
            for at in range(0, len(message) or 1, protocol.LOG_PIECE):
                self._log_piece(level, filename, line, message[at : at + protocol.LOG_PIECE])
        except ChannelClosedError as error:
            raise TritonModelException(str(error)) from None

    def _log_piece(self, level: str, filename: str, line: int, text: str) -> None:
        """Send a log line, waiting while the server has to take many others. Who relays for a forked process waits."""
        if not self._forked:
            with self._logging:
                if self._log_sent - self._log_taken >= protocol.LOG_WINDOW:
                    self.link.wait(lambda: self._log_sent - self._log_taken < protocol.LOG_WINDOW)
                self._log_sent += protocol.log_cost(text)
        self.link.send((protocol.LOG, level, filename, line, text))

    def free_memory(self) -> int:
        return self.link.channel.lender.free_bytes

    def _answer_for(self, key: int) -> None:
        self.over(key)
        self.link.send((protocol.ANSWER, key, True, write_error(LOST)))

    # Under the link's lock.

    def _handle(self, message: Message) -> None:
        head = message.head
        kind = head[0]
        if kind in (protocol.EXECUTE, protocol.START, protocol.FINALIZE):
            self.tasks.append(message)
        elif kind in (protocol.TAKEN, protocol.CANCEL):
            request = self._open.get(head[1])
            if request is not None and kind == protocol.TAKEN:
                request.room += head[2]
            elif request is not None:
                request.cancelled = True
            if request is not None:
                request.changed()
        elif kind == protocol.LOGGED:
            self._log_taken += head[1]
        else:
            self.calls.handle(message)

    def _enter(self, key: int) -> None:
        """Take a place for a response, waiting for one while the client is slow, but not for one that has gone."""
        request = self._open.get(key)
        if request is None:
            return
        if not request.may_send:
            self.link.wait(lambda: request.may_send)
        request.room -= 1


# Processes that a model forks, as ``multiprocessing`` does, and that ask the server as the model itself does.
#
# The model's connection cannot be shared with them: what two processes write into it, and read from it, would be
# anybody's. So each gets one to the model's process, which hands everything on.
#
# Rules:
#  1. What a forked process says goes to the server as if the model had said it. The numbers of calls are replaced,
#     since both count from the same one on; what the server answers goes back under the number that was asked.
#  2. When a forked process has ended, its requests are given up.
#  3. It is a copy, so its destructors say nothing to the server: what they would give back is the model's.


class Forks:
    """Sees to it that forked processes are connected. Until the first of them, nothing is there."""

    def __init__(self, host: ProcessHost) -> None:
        self._host = host
        self._door: tuple[socket.socket, socket.socket] | None = None
        os.register_at_fork(before=self._open_door, after_in_child=self._leave)

    def _open_door(self) -> None:
        if self._door is None:
            self._door = socket_pair()
            threading.Thread(target=self._welcome, args=self._door[:1], name="trireme forks", daemon=True).start()

    def _leave(self) -> None:
        """In a forked process: connect to the parent. If that is gone, nothing is at the connection's other end."""
        assert self._door is not None, "it is opened before"
        inside, outside = self._door
        ours, theirs = socket_pair()
        with theirs, inside, outside, contextlib.suppress(OSError):
            socket.send_fds(outside, [b"f"], [theirs.fileno()])
        self._host.move(Channel(ours))
        self._door = None  # a process that is forked from here has its own

    def _welcome(self, inside: socket.socket) -> None:
        """In the parent."""
        while True:
            _, descriptors, _, _ = socket.recv_fds(inside, 1, 1)
            for descriptor in descriptors:
                _Relay(Channel(socket.socket(fileno=descriptor)), self._host)


class _Relay:
    """Between a forked process and the server (rule 1)."""

    def __init__(self, channel: Channel, host: ProcessHost) -> None:
        self._channel = channel
        self._calls = calls = host.calls
        self._send = calls.link.send
        self._log = host.log
        self._ours: dict[int, int] = {}
        self._back: SimpleQueue[tuple[int, Message] | None] = SimpleQueue()
        calls.keep_reading()
        for work in (self._hand_on, self._bring_back):
            threading.Thread(target=work, name="trireme fork", daemon=True).start()

    def _hand_on(self) -> None:
        with contextlib.suppress(ChannelClosedError, MessageError, OSError):
            while (message := self._channel.receive()) is not None:
                self._say(message)
                del message
                self._channel.give_back(1)
        self._back.put(None)
        with contextlib.suppress(ChannelClosedError):
            for number in list(self._ours.values()):  # rule 2
                self._send((protocol.CANCEL_CALL, number))
                self._send((protocol.CALL_TAKEN, number, ANY_NUMBER))

    def _say(self, message: Message) -> None:
        kind, *rest = message.head
        if kind in (protocol.CALL, protocol.LONE_CALL):
            number, *what = rest
            ours = self._ours[number] = self._calls.adopt(self._answered(number))
            self._send((kind, ours, *what), _carried(message))
        elif kind == protocol.LOG:
            self._log(*rest)
        elif kind not in (protocol.CANCEL_CALL, protocol.CALL_TAKEN):
            self._send(message.head, _carried(message))
        elif rest[0] in self._ours:
            self._send((kind, self._ours[rest[0]], *rest[1:]))

    def _answered(self, number: int) -> Callable[[Message], bool]:
        def answered(message: Message) -> bool:
            """Take an answer; whether it is the last. Called under the link's lock."""
            kind, _, *rest = message.head
            over = kind != protocol.CALL_RESPONSE or bool(rest[0])
            if over:
                self._ours.pop(number, None)
            self._back.put((number, message))
            return over

        return answered

    def _bring_back(self) -> None:
        with contextlib.suppress(ChannelClosedError, OSError):
            while (answer := self._back.get()) is not None:
                number, message = answer
                kind, _, *rest = message.head
                self._channel.send((kind, number, *rest), _carried(message))
        self._channel.close()


def _carried(message: Message) -> Payload:
    payload = Payload()
    if len(message.payload):
        payload.add(message.payload)
    return payload
