"""What a host's own work costs: the event loop's, and that of front ends."""

from __future__ import annotations

import math

from ...engine.logs.request_log import LoggedRequest
from .planned import PlannedModel


class HostCosts:
    """Seconds that things take beside the batches themselves: none, unless a subclass says otherwise.

    `wake`, `admit`, `begin`, `over`, `answer` and `settle` are work of the event loop, which does nothing else then.
    `front_turn`, `front_in` and `front_out` are work of front ends (`front_ends`). `rouse`, `crowded`, `start`,
    `notice`, `timer_late`, `way_in` and `way_out` pass beside all that.

    Attributes:
        cores: which the event loop, front ends, threads and processes share, possibly with a fraction: when more are
            wanted, all that compute are slowed down alike.
        loop_first: while the event loop works it has a core to itself, as who has just woken up has, and so has each
            front end; the others share the rest. False: they are slowed down as the others are.
        front_ends: processes that read and write for the event loop; 0 if it does so itself.
        clients_here: clients share the cores, so that they wait for one as the event loop does (`crowded`).
    """

    cores: float = math.inf
    loop_first: bool = True
    front_ends: int = 0
    clients_here: bool = False

    def rouse(self, rested_s: float) -> float:
        """From when a request could be heard until a loop is awake that has slept for so long. Asked before `wake`."""
        return 0.0

    def crowded(self) -> float:
        """How late a thread gets a core that wakes up when others compute (`Cores.crowded`)."""
        return 0.0

    def wake(self, events: int, rested_s: float) -> float:
        """The loop wakes up, for so many events, and has slept for so long."""
        return 0.0

    def settle(self) -> float:
        """All that was heard is done: the loop looks what is next, and goes to sleep. Asked once after each `wake`."""
        return 0.0

    def admit(self, request: LoggedRequest) -> float:
        """A request is read, decoded, checked and handed in."""
        return 0.0

    def begin(self, model: PlannedModel, requests: int, rows: int) -> float:
        """A batch is formed and handed to its executor."""
        return 0.0

    def start(self, model: PlannedModel, requests: int, rows: int) -> float:
        """From then until the computing begins, on a thread, in a process or on a device."""
        return 0.0

    def notice(self, model: PlannedModel, requests: int, rows: int) -> float:
        """From the end of the computing until the loop can hear of it."""
        return 0.0

    def over(self, model: PlannedModel, requests: int, rows: int) -> float:
        """The loop takes the end of a batch in."""
        return 0.0

    def answer(self, model: PlannedModel, rows: int, well: bool) -> float:
        """An answer, or an error, of the model that was asked is encoded and written."""
        return 0.0

    def token(self, model: str, texts: int) -> float:
        """A generated token is written to the clients of so many texts."""
        return 0.0

    def timer_late(self) -> float:
        """How late the loop wakes up for a timer, if nothing else wakes it meanwhile."""
        return 0.0

    def front_turn(self) -> float:
        """A front end wakes up, and goes to sleep when all that was there is done."""
        return 0.0

    def front_in(self, request: LoggedRequest) -> float:
        """A request is read, decoded and handed to the event loop by a front end."""
        return 0.0

    def front_out(self, model: PlannedModel, rows: int, well: bool) -> float:
        """An answer of the event loop's, or an error, is encoded and written by a front end."""
        return 0.0

    def way_in(self, request: LoggedRequest) -> float:
        """From a client's call until the socket can be read."""
        return 0.0

    def way_out(self, model: PlannedModel, well: bool) -> float:
        """From the write until the client has its answer."""
        return 0.0
