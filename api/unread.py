"""Answers that wait for their client before they are given to a connection, which counts them from then on: of a
stream of requests, or of one request with many answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..engine.admission.client_bytes import ClientBytes
from ..engine.job import Outcome
from ..engine.request import InferenceResponse

_ANSWER_BYTES = 512
"""What an answer takes in memory besides its tensors."""

_STEP_BYTES = 16_384


def answer_bytes(outcome: Outcome) -> int:
    """About how much memory an answer takes."""
    nbytes = _ANSWER_BYTES
    if isinstance(outcome, InferenceResponse):
        for tensor in outcome.outputs:
            nbytes += tensor.nbytes
    return nbytes


@dataclass(slots=True, eq=False)
class UnreadAnswers:
    """An entry in the account of unread answers. Less than `_STEP_BYTES`, or a change by less, is not worth telling.

    Args:
        address: of the client (`limits.shared_address`).
        stop: gives the answers up; called once at most, from wherever something is held.

    Attributes:
        nbytes: that wait now.
    """

    account: ClientBytes
    address: str
    stop: Callable[[], None] | None
    nbytes: int = field(default=0, init=False)
    _told_bytes: int = field(default=0, init=False)

    def change(self, more: int) -> None:
        """So much more waits, or, if it is negative, less."""
        nbytes = self.nbytes = self.nbytes + more
        if abs(nbytes - self._told_bytes) < _STEP_BYTES or self.stop is None:
            return
        self._told_bytes = nbytes
        if nbytes < _STEP_BYTES:
            self._told_bytes = 0
            self.account.drop(self)
        else:
            self.account.hold(self, self.address, nbytes)

    def make_way(self, account: ClientBytes) -> bool:
        """See `client_bytes.Holder`."""
        stop, self.stop = self.stop, None
        if stop is not None:
            stop()
        return True

    def close(self) -> None:
        """Nothing waits any more. May be called again."""
        self.stop = None  # which leads back to who waits: a cycle
        if self._told_bytes:
            self._told_bytes = 0
            self.account.drop(self)
