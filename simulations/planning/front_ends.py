"""Front ends in processes of their own, in a planned run: they stand between clients and the event loop.

Rules:
 1. A request comes by one of them, at random, as the system spreads connections; a sequence stays with the one by
    which it began. Its answer goes back the same way.
 2. A front end works in turns. All that has come by its beginning, but no more than `MOST_OF_A_TURN`, is done in one
    turn, and passed on together at the end of it: requests to the event loop, answers to clients. What comes meanwhile
    waits for the next one.
 3. A turn wants a core, and has it as the event loop has its own (`Cores`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ...engine.logs.request_log import LoggedRequest
from .cores import Cores, Ended
from .event_loop import PlannedLoop
from .host import HostCosts

MOST_OF_A_TURN = 256
"""Requests and answers: as many as a front end takes from the event loop at a time."""

Come = Callable[[LoggedRequest], int]
Heard = Callable[[int], None]


class PlannedFrontEnd:
    """One process.

    Attributes:
        busy_s: seconds for which it worked, or waited for a core to work on.
    """

    def __init__(self, costs: HostCosts, cores: Cores) -> None:
        self.busy_s = 0.0
        self._costs = costs
        self._cores = cores
        self._waiting: list[tuple[float, Ended, Any]] = []
        self._turn: list[tuple[float, Ended, Any]] = []
        self._begun_s = 0.0

    def take(self, now: float, seconds: float, done: Ended, what: Any) -> None:
        """Something has come that is so much work.

        Args:
            done: called at the end of the turn.
        """
        self._waiting.append((seconds, done, what))
        if not self._turn:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._turn, self._waiting = self._waiting[:MOST_OF_A_TURN], self._waiting[MOST_OF_A_TURN:]
        self._begun_s = now
        seconds = self._costs.front_turn() + sum(each[0] for each in self._turn)
        self._cores.begin(seconds, 1.0, self._over, None, first=True)

    def _over(self, now: float, _nothing: object) -> None:
        turn, self._turn = self._turn, []
        self.busy_s += now - self._begun_s
        if self._waiting:
            self._begin(now)
        for _, done, what in turn:
            done(now, what)


class PlannedFrontEnds:
    """All of them.

    Args:
        costs: which say how many there are.
        seed: of the chance by which requests come to one.
    """

    def __init__(self, costs: HostCosts, loop: PlannedLoop, seed: int) -> None:
        assert loop.cores is not None, "front ends compete for cores"
        self._costs = costs
        self._loop = loop
        self._chance = Random(f"{seed} front ends")
        self._all = [PlannedFrontEnd(costs, loop.cores) for _ in range(costs.front_ends)]
        self._of_sequences: dict[tuple[str, int | str], PlannedFrontEnd] = {}
        self._of_requests: dict[int, PlannedFrontEnd] = {}  # of those that are not answered, by number

    @property
    def busy_s(self) -> float:
        """See `PlannedFrontEnd`; the mean of all."""
        return sum(each.busy_s for each in self._all) / len(self._all)

    def bring(self, when_s: float, logged: LoggedRequest, come: Come, heard: Heard) -> None:
        """A request is at a front end's socket from then on.

        Args:
            come: called when it is; gives it a number.
            heard: called by the event loop when it hears of the request, with its number.
        """

        def read(now: float, logged: LoggedRequest) -> None:
            number, front_end = come(logged), self._chosen(logged)
            self._of_requests[number] = front_end
            front_end.take(now, self._costs.front_in(logged), handed_over, number)

        def handed_over(now: float, number: int) -> None:
            self._loop.at(now, heard, number, rouses=True)

        self._loop.beside(when_s, read, logged)

    def send(self, when_s: float, number: int, seconds: float, written: Ended, what: Any) -> None:
        """The event loop has given a request's final answer to its front end by then.

        Args:
            seconds: of work that the answer is.
            written: called when it is at the socket.
        """
        front_end = self._of_requests.pop(number)

        def take(now: float, what: Any) -> None:
            front_end.take(now, seconds, written, what)

        self._loop.beside(when_s, take, what)

    def _chosen(self, logged: LoggedRequest) -> PlannedFrontEnd:
        """Rule 1."""
        key = (logged.model, logged.sequence) if logged.sequence else None
        found = self._of_sequences.get(key) if key is not None else None
        if found is None:
            found = self._chance.choice(self._all)
        if key is not None:
            self._of_sequences[key] = found
            if logged.end:
                del self._of_sequences[key]
        return found
