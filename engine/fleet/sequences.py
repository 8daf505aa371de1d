"""Where sequences are, as far as one gateway knows.

A sequence is known from the first of its requests that this gateway sees. It is forgotten when its last one has been
answered, `sequence_idle_s` after the latest, or when there are more than `most_sequences`.

States: a sequence is PLACED at a replica; LOOKED_FOR, while its replica is not known yet and one after the other is
asked; or LOST, with its replica: then only a request that starts it anew is taken.

A replica that is lost only counts its losses. Which of its sequences are lost with it is found when each is looked up
next, so a loss takes the same few steps however many there are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from .members import FleetMember
from .types import RequestToPlace

SequenceKey = tuple[str, int | str]


@dataclass(slots=True, eq=False)
class KnownSequence:
    """Attributes:
    member: where it is; None if it is lost, or is looked for.
    losses: of the member, when the sequence came there; with more of them it is lost.
    lost: its replica is.
    current: the request of it that is at a replica; there is one at most.
    line: those behind it, in order.
    heard_s: when the latest one came.
    """

    key: SequenceKey
    member: FleetMember | None = None
    losses: int = 0
    lost: bool = False
    current: RequestToPlace | None = None
    line: deque[RequestToPlace] = field(default_factory=deque)
    heard_s: float = 0.0

    def move(self, member: FleetMember | None) -> None:
        """It is there from now on."""
        if self.member is not None and self.losses == self.member.losses:
            self.member.sequences -= 1
        self.member = member
        if member is not None:
            member.sequences += 1
            self.losses = member.losses
            self.lost = False

    def lose(self) -> None:
        """Its replica is lost, and with it the sequence."""
        self.move(None)
        self.lost = True


class KnownSequences:
    """All that one gateway knows, the one heard of least recently first."""

    def __init__(self, idle_s: float, most: int) -> None:
        self._idle_s = idle_s
        self._most = most
        self._known: OrderedDict[SequenceKey, KnownSequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, request: RequestToPlace, now_s: float) -> KnownSequence:
        """The request's, which from now on is known."""
        known = self.find(request)
        if known is None:
            self._make_room(now_s)
            key = (request.name, request.sequence)
            known = self._known[key] = KnownSequence(key)
        known.heard_s = now_s
        self._known.move_to_end(known.key)
        return known

    def find(self, request: RequestToPlace) -> KnownSequence | None:
        """The request's, if it is known."""
        known = self._known.get((request.name, request.sequence))
        if known is not None and known.member is not None and known.losses != known.member.losses:
            known.lose()
        return known

    def forget(self, known: KnownSequence) -> None:
        known.move(None)
        del self._known[known.key]

    def lose(self, member: FleetMember) -> None:
        """All that are at a replica are lost."""
        member.losses += 1
        member.sequences = 0

    def _make_room(self, now_s: float) -> None:
        """Forget the two that were heard of least recently if their time is over, or there is no room."""
        for known in [each for each, _ in zip(self._known.values(), range(2), strict=False)]:
            idle = now_s - known.heard_s > self._idle_s or len(self._known) >= self._most
            if idle and known.current is None and not known.line:
                self.forget(known)
