"""Workloads: when requests come. Each is a function from chance and numbers to arrivals; swarm runs dress them, and
say how they come (`WayIn`).

An arrival either has its own time, or comes some time after the answer to an earlier one: that is how a closed loop,
and a sequence whose client thinks, depend on the server.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import islice
from random import Random

from ..engine.logs.generators import poisson_offsets
from ..engine.logs.request_log import LoggedRequest
from .records import record


class WayIn(enum.Enum):
    """How a request gets in.

    WHOLE: it is there in one piece.
    DESCRIBED: the same, with what the server said of its model earlier, which may not be true any more.
    ASKED: the same, after the question whether its model can take one more.
    NAMED: its body arrives in two parts; its model is known from the beginning.
    UNNAMED: the same, and its model is known when all of it is there.
    INNER: a model asks it while it serves.
    """

    __hash__ = object.__hash__  # asked for at every request, and nothing depends on its value

    WHOLE = "whole"
    DESCRIBED = "described"
    ASKED = "asked"
    NAMED = "named"
    UNNAMED = "unnamed"
    INNER = "inner"


@record
class Arrival:
    """A request's time.

    Attributes:
        at_ns: from the beginning, or from the answer to `after`.
        after: index of an earlier arrival of the same workload; -1 for none.
        sequence, start, end: see `RequestPlan`.
    """

    at_ns: int
    after: int = -1
    sequence: int | str = 0
    start: bool = False
    end: bool = False


def poisson(chance: Random, count: int, rate_hz: float) -> list[Arrival]:
    """Clients who know nothing of each other: `rate_hz` a second on average."""
    return [Arrival(_ns(at_s)) for at_s in islice(poisson_offsets(chance, rate_hz), count)]


def bursty(chance: Random, count: int, rate_hz: float, burst: int) -> list[Arrival]:
    """The same on average, but in bursts of up to `burst` requests at one instant."""
    arrivals: list[Arrival] = []
    at_s = 0.0
    while len(arrivals) < count:
        size = chance.randint(1, burst)
        at_s += chance.expovariate(rate_hz / ((1 + burst) / 2))
        arrivals += [Arrival(_ns(at_s))] * size
    return arrivals[:count]


def closed_loop(chance: Random, count: int, clients: int, think_s: float) -> list[Arrival]:
    """Clients who send a request, wait for its answer, think, and send the next."""
    arrivals: list[Arrival] = []
    for index in range(count):
        if index < clients:
            arrivals.append(Arrival(_ns(chance.uniform(0, think_s))))
        else:
            arrivals.append(Arrival(_ns(chance.expovariate(1 / think_s)), after=index - clients))
    return arrivals


def sequences(
    chance: Random, count: int, rate_hz: float, longest: int, think_s: float, *, pipelined: bool = False
) -> list[Arrival]:
    """Sequences that begin at `rate_hz` a second, of 1 to `longest` requests, with time to think before each.

    Args:
        pipelined: clients do not wait for the answer before they think.
    """
    arrivals: list[Arrival] = []
    begin_s, number = 0.0, 0
    while len(arrivals) < count:
        number += 1
        begin_s += chance.expovariate(rate_hz)
        at_ns = _ns(begin_s)
        length = min(chance.randint(1, longest), count - len(arrivals))
        for turn in range(length):
            think_ns = _ns(chance.expovariate(1 / think_s)) if turn else 0
            at_ns += think_ns
            waits = turn > 0 and not pipelined
            arrivals.append(
                Arrival(
                    think_ns if waits else at_ns,
                    len(arrivals) - 1 if waits else -1,
                    number,
                    turn == 0,
                    turn == length - 1,
                )
            )
    return arrivals


def replayed(log: Iterable[LoggedRequest]) -> list[Arrival]:
    """The arrivals of a request log, at their own times."""
    return [Arrival(_ns(logged.offset_s), -1, logged.sequence, logged.start, logged.end) for logged in log]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
