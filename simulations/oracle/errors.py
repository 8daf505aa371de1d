"""Why requests are answered with errors: each error has a cause that was seen
(docs/reference/errors.md)."""

from __future__ import annotations

import re

from ...front_ends.borrower import NO_DESCRIPTOR
from ..events import BatchSealed, FaultStruck, RegionRead, ReplyDelivered, RequestAbandoned, RequestAnswered
from ..graphs import is_step
from ..history import Handlers
from ..inner import NOT_READY
from ..invariants.base import Complain, Invariant
from ..invariants.queueing import EXPIRED, FULL, TOO_LATE
from ..invariants.serving import STOPPING, UNKNOWN
from ..invariants.state import WorldState
from ..plan import Fault
from ..regions import LOST
from .decisions import CANCELLED

_OF_ENSEMBLES = re.compile(r"^(in ensemble '[^']*', )+")
_CULPRIT = re.compile(
    r"\brequest (\d+) (?:made|was made|raised|crashed|ended)|no memory for request (\d+)"
    r"|exit status (\d+)|called exit \((\d+)\)"
)
_START = re.compile(r"^start \d+ of '([^']*)' fails$")
_INSTANCE = re.compile(r"instance '([^']*)' (?:gave no answer|died: )")

QUEUED = (FULL, EXPIRED, TOO_LATE, STOPPING, "timeout of the corresponding sequence has been expired")
"""How errors end that a queue, or a door, gives; when they are right, the rules for queues say."""

SEQUENCE = ("must specify the START flag on the first request of the sequence", "start the sequence again")
LEFT = "Request cancelled"
"""How a request is refused whose client has gone while it waited to be admitted for a front end."""

NO_ROOM = "too many requests in flight"
UNANSWERED = "finished the batch without answering this request"
GIVEN_UP = "the thread was given up"
SICK = ("has no room for", "is ill")
ENDED = "ended the process of"
OF_ALL = ("in a row", "fall ill")
"""What a fault does to other batches than that of its request."""

INVALID = ("inference request batch-size must be <=", "unexpected shape for input", LOST)


class ErrorsHaveCauses(Invariant):
    """A request that was accepted is answered with an error only if it was refused a place in a queue, its time was
    over, its client, its sequence or its shared memory was gone, its server stopped, or a fault struck its batch; the
    error names that very fault. A request that was not accepted was no valid one, or there was no model or no room
    for it.

    Args:
        little_room: the server's budget may be used up.
        executes_again: no limiter and no change of the model keeps it from that.
        runs_short: of descriptors for segments of front ends.
    """

    name = "errors have causes"

    def __init__(
        self,
        complain: Complain,
        state: WorldState,
        little_room: bool,
        executes_again: bool = False,
        runs_short: bool = False,
    ) -> None:
        super().__init__(complain)
        self._runs_short = runs_short
        self._state = state
        self._little_room = little_room
        self._executes_again = executes_again
        self._batches: dict[int, BatchSealed] = {}  # by request, the last one
        self._struck: dict[int, str] = {}  # by request, the fault
        self._abandoned: set[int] = set()
        self._lost: set[int] = set()  # whose regions an instance could not read

    def handlers(self) -> Handlers:
        return {
            BatchSealed: self._sealed,
            FaultStruck: self._strike,
            RegionRead: self._read,
            RequestAbandoned: self._abandon,
            ReplyDelivered: self._delivered,
            RequestAnswered: self._answered,
        }

    def _sealed(self, event: BatchSealed) -> None:
        for request in event.requests:
            self._batches[request] = event

    def _strike(self, event: FaultStruck) -> None:
        self._struck[event.request] = event.fault

    def _read(self, event: RegionRead) -> None:
        if event.lost:
            self._lost.add(event.request)

    def _abandon(self, event: RequestAbandoned) -> None:
        self._abandoned.add(event.request)

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.error and not event.late and not self._is_caused(event.request, event.error):
            self.broken(f"request {event.request} was answered {event.error!r}; nothing that was seen explains that")

    def _is_caused(self, request: int, error: str) -> bool:
        text = _OF_ENSEMBLES.sub("", error)
        if text.endswith(QUEUED) or text in ("", CANCELLED) or any(each in text for each in (*SEQUENCE, *SICK)):
            return True
        if LOST in text:
            return request in self._lost
        own = text == error  # else one of its steps has had it
        batch = self._batches.get(request)
        culprit = _CULPRIT.search(text)
        if culprit is not None:
            number = int(next(filter(None, culprit.groups())))
            if own and ENDED in text and batch is not None and number != request and self._isolates(batch):
                return False  # it is executed again, and has an answer of its own then
            anywhere = not own or any(each in text for each in OF_ALL)
            return number in self._struck and (anywhere or (batch is not None and number in batch.requests))
        if UNANSWERED in text:
            return not own or self._struck.get(request) == Fault.SILENCE.value
        if _START.match(text):
            return not own
        instance, of_all = _INSTANCE.search(text), any(each in text for each in OF_ALL)
        if instance is not None and own and batch is not None:
            mine = _place_of(batch)
            return mine == instance[1] or (of_all and mine.rpartition("_")[0] == instance[1].rpartition("_")[0])
        return instance is not None or of_all or UNKNOWN in text or GIVEN_UP in text

    def _isolates(self, batch: BatchSealed) -> bool:
        """Whether requests are executed again that were together in this batch when its process ended."""
        view = self._state.models[batch.model]
        return self._executes_again and view.sequences is None and view.ready and batch.instance in view.instances

    def _answered(self, event: RequestAnswered) -> None:
        asked = self._state.asked.get(event.request)
        if asked is None or not event.error or is_step(event.request):
            return
        error = event.error
        if error.endswith(QUEUED) or UNKNOWN in error or SEQUENCE[0] in error or error == CANCELLED:
            return
        view = self._state.serving.get(asked.model)
        if error == LEFT:
            wrong = event.request not in self._abandoned
        elif NO_ROOM in error:
            wrong = not self._little_room
        elif error == NO_DESCRIPTOR:
            wrong = not self._runs_short
        elif INVALID[0] in error:
            wrong = view is not None and asked.rows <= max(1, view.config.max_batch_size)
        elif error.startswith(NOT_READY):
            wrong = view is not None and view.ready
        else:
            wrong = not any(each in error for each in INVALID[1:])
        if wrong:
            self.broken(f"request {event.request} was refused with {error!r}, which is not true")


def _place_of(batch: BatchSealed) -> str:
    """What the instance of a batch is called in messages."""
    return batch.instance.partition("~")[0].rstrip("'")
