"""The responses of models on their way to a client, while it reads them; and server-sent events.

The connection holds the models back: responses are taken from a reply when those before them have gone to the client,
and a model whose responses are not taken waits (`engine.instances.answer_window`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import trio

from ...actors.reply import Reply
from ...engine.errors import TriremeError
from ...engine.request import InferenceResponse
from ..unread import UnreadAnswers, answer_bytes

if TYPE_CHECKING:
    from ...actors.facade import Facade

EVENTS = b"text/event-stream; charset=utf-8"
NOT_READ = "the answers were not read, and too many wait to be; the rest of them is given up"


def event(data: bytes) -> bytes:
    """A server-sent event with one line of data."""
    return b"data: %b\n\n" % data


class IncomingResponses:
    """What comes of some replies, in one order.

    Args:
        replies: of requests that were admitted; they belong to this from here on.
        address: of the client.

    Attributes:
        complete: every response was taken before the rest was given up; known when there are no more.
        given_up: the client has read too little, while others needed the memory.
    """

    def __init__(self, replies: Sequence[Reply], server: Facade, address: str) -> None:
        self.complete = False
        self.given_up = False
        self._open = dict(enumerate(replies))
        self._taken: list[tuple[int, InferenceResponse | TriremeError]] = []
        self._news = trio.lowlevel.ParkingLot()
        self._unread = UnreadAnswers(server.client_accounts.unread, address, self._give_up)
        for reply in replies:
            reply.notify_each(self._hear)

    def close(self) -> None:
        """Nothing more is wanted: requests that are not over are cancelled."""
        self._unread.close()
        for number in list(self._open):
            self.stop(number)

    def stop(self, number: int) -> None:
        """Nothing more is wanted of one reply."""
        reply = self._open.pop(number, None)
        if reply is not None and not reply.final:
            reply.cancel()
            reply.take()

    def _hear(self, reply: Reply) -> None:
        if len(self._news):
            self._news.unpark_all()
        else:  # the client is being waited for
            self._unread.change(sum(map(answer_bytes, reply.newest())))

    def _give_up(self) -> None:
        self.given_up = True
        self.complete = self.complete and not self._taken
        self._taken.clear()
        for number in list(self._open):
            self.stop(number)

    async def each(self) -> AsyncGenerator[tuple[int, InferenceResponse | TriremeError]]:
        """The responses, each as soon as it is there, with the number of the reply. Those that wait for their turn are
        counted as unread."""
        while self._open:
            while not self._take():
                await self._news.park()
            self.complete = not self._open and not self.given_up
            self._taken.reverse()
            self._unread.change(sum(answer_bytes(outcome) for _, outcome in self._taken) - self._unread.nbytes)
            while self._taken:
                number, response = self._taken.pop()
                yield number, response
                self._unread.change(-answer_bytes(response))

    def _take(self) -> bool:
        """Take what is there; whether there was anything, if only an end."""
        before = len(self._open)
        for number, reply in list(self._open.items()):
            answers = reply.take()
            self._taken += [(number, outcome) for outcome, _ in answers if outcome is not None]
            if answers[-1][1] if answers else reply.final:
                del self._open[number]
        return bool(self._taken) or len(self._open) < before
