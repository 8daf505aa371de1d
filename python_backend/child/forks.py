"""Processes that a model forks, as ``multiprocessing`` does, and that ask the server as the model itself does.

The model's connection cannot be shared with them: what two processes write into it, and read from it, would be
anybody's. So each gets one to the model's process, which hands everything on.

Rules:
 1. What a forked process says goes to the server as if the model had said it. The numbers of calls are replaced, since
    both count from the same one on; what the server answers goes back under the number that was asked.
 2. When a forked process has ended, its requests are given up.
 3. It is a copy, so its destructors say nothing to the server: what they would give back is the model's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from . import protocol
from .calls import ANY_NUMBER
from .channel import Channel, ChannelClosedError, Door
from .codec import Message, MessageError, Payload

if TYPE_CHECKING:
    from .process_host import ProcessHost


class Forks:
    """Sees to it that forked processes are connected. Until the first of them, nothing is there."""

    def __init__(self, host: ProcessHost) -> None:
        self._host = host
        self._door: Door | None = None
        os.register_at_fork(before=self._open_door, after_in_child=self._leave)

    def _open_door(self) -> None:
        if self._door is None:
            self._door = Door()
            threading.Thread(target=self._welcome, args=(self._door,), name="trireme forks", daemon=True).start()

    def _leave(self) -> None:
        """In a forked process: connect to the parent."""
        assert self._door is not None, "it is opened before"
        self._host.move(self._door.knock())
        self._door = None  # a process that is forked from here has its own

    def _welcome(self, door: Door) -> None:
        """In the parent."""
        while True:
            for channel in door.open():
                _Relay(channel, self._host).start()


class _Relay:
    """Between a forked process and the server (rule 1)."""

    def __init__(self, channel: Channel, host: ProcessHost) -> None:
        self._channel = channel
        self._calls = calls = host.calls
        self._send = calls.link.send
        self._log = host.log
        self._ours: dict[int, int] = {}
        self._back: SimpleQueue[tuple[int, Message] | None] = SimpleQueue()

    def start(self) -> None:
        self._calls.keep_reading()
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
        if kind == protocol.CALL:
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
    content: Any = message.payload
    if len(content):
        payload.add(content)
    return payload
