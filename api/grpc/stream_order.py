"""In which order the answers on a stream go out, and how much may wait on it: a pure state machine
(docs/reference/grpc.md#streams).

Rules:
 1. Requests that are answered once go in order: such an answer goes out when those of all earlier such requests have
    gone. A request that was refused before it reached its model is one of them, unless its model is decoupled.
 2. The answers to a request to a decoupled model go out as they come. They wait for no other request, and no other
    request waits for them.
 3. A request is open from its admission until its last answer has been sent.
 4. There is room for one more request while fewer than `max_open` are open, and the answers that were given and not
    yet sent hold fewer than `max_bytes`.
 5. Of a request that waits for its model it may not be known whether that is decoupled. Until it turns out to be
    (`decouple`), it is one that is answered once.
 6. The stream is over when the client has said all it has to say, and no request is open.

States of a request, and what moves it on:

    in order:   WAITING --news--> ANSWERED --earlier ones gone--> READY --next--> SENDING --close--> CLOSED
    decoupled:  WAITING --news--> READY --next--> SENDING --news--> READY
                                                          --close--> CLOSED
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar


class PlaceState(enum.Enum):
    WAITING = "waiting for its model"
    ANSWERED = "waiting for earlier requests"
    READY = "may be sent"
    SENDING = "being sent"
    CLOSED = "closed"


# A member of an enumeration takes longer to look up than a name.
_WAITING, _ANSWERED, _READY = PlaceState.WAITING, PlaceState.ANSWERED, PlaceState.READY
_SENDING, _CLOSED = PlaceState.SENDING, PlaceState.CLOSED


class Place:
    """One request's place in the order.

    Attributes:
        decoupled: it may be answered any number of times.
        state: see above.
        nbytes: bytes of the answer that waits.
    """

    decoupled = False
    nbytes = 0
    state = PlaceState.WAITING


T = TypeVar("T", bound=Place)


class StreamOrder(Generic[T]):
    """The places of the requests of one stream.

    Args:
        max_open: requests that may be open.
        max_bytes: bytes of unsent answers from which on no request is admitted.

    Attributes:
        half_closed: no request follows. Set by the stream's reader.
        ready: the places that may be sent, in order; for reading only.
    """

    def __init__(self, max_open: int, max_bytes: int) -> None:
        self.half_closed = False
        self._max_open = max_open
        self._max_bytes = max_bytes
        self._unsent_bytes = 0
        self._open: dict[T, None] = {}
        # Both hold open places only, each once.
        self._in_order: deque[T] = deque(maxlen=max_open)
        self.ready: deque[T] = deque(maxlen=max_open)

    @property
    def has_room(self) -> bool:
        """Rule 4."""
        return len(self._open) < self._max_open and self._unsent_bytes < self._max_bytes

    @property
    def over(self) -> bool:
        """Rule 6."""
        return self.half_closed and not self._open

    @property
    def open(self) -> Iterable[T]:
        """The open places, oldest first."""
        return tuple(self._open)

    def admit(self, place: T) -> None:
        assert not self.half_closed, "a request behind the last one"
        assert len(self._open) < self._max_open, "a request without room for it"
        self._open[place] = None
        if not place.decoupled:
            self._in_order.append(place)

    def news(self, place: T, nbytes: int = 0) -> None:
        """A request's only answer is there; or, of a decoupled model, there are answers to take.

        Args:
            nbytes: what the answer holds.
        """
        if place.decoupled:
            assert place.state is not _CLOSED, "an answer behind the last one"
            if place.state is not _READY:
                place.state = _READY
                self.ready.append(place)
            return
        assert place.state is _WAITING, "a second answer to a request that gets one"
        place.state = _ANSWERED
        place.nbytes = nbytes
        self._unsent_bytes += nbytes
        self._go_on()

    def decouple(self, place: T) -> None:
        """Rule 5: its model is decoupled."""
        assert place.state is _WAITING, "it has been answered"
        assert not place.decoupled, "it was admitted as such"
        place.decoupled = True
        self._in_order.remove(place)
        self._go_on()

    def _go_on(self) -> None:
        in_order = self._in_order
        while in_order and (first := in_order[0]).state is _ANSWERED:  # rule 1
            in_order.popleft()
            first.state = _READY
            self.ready.append(first)

    def next(self) -> T | None:
        """The request whose turn it is to be answered; None if nothing may be sent yet."""
        if not self.ready:
            return None
        place = self.ready.popleft()
        place.state = _SENDING
        return place

    def close(self, place: T) -> None:
        assert place.state is _SENDING, "only what is being sent can have been sent"
        place.state = _CLOSED
        self._unsent_bytes -= place.nbytes
        del self._open[place]

    def __repr__(self) -> str:
        return (
            f"<StreamOrder {len(self._open)} open, {len(self.ready)} ready, {self._unsent_bytes} bytes unsent"
            f"{', half-closed' if self.half_closed else ''}>"
        )
