"""Measures what requests cost a server's host beside their execution: on `trireme serve` in a process of its own, with
the player of request logs as its client.

Rules:
 1. One client, who asks again as soon as it has its answer, tells what a request costs the event loop together with
    all that it does not share (`A` processor seconds of the loop's thread), and `_CROWD` clients at once what it costs
    in company (`C`). All are on connections that were there before: a new one costs as much as several requests. Of
    what is shared, n requests of a batch pay one part each: request + shared = A, request + shared / n = C.
 2. What is executed on the event loop is taken off before: its time is in the service times.
 3. What is outside of the loop is the rest of the median latency of one request alone: without the loop, its execution
    then, and the two ways to its thread. Its spread is that of the latencies, about their median. Medians, since a few
    requests that other programs held up would be most of what is left.
 4. Then the client waits for each of `_RESTS_S` before it asks again: what that costs more is what a rested loop costs.
    It grows about as the square root of the rest, by which `_grows_by` is fitted. So it is known what the loop's rests
    cost in rule 1 (while a client had its answer, and while a batch was executed elsewhere); that is taken off before.
 5. One client asks for as many rows as there may be, too: what that costs the loop and outside more, is by the byte.
 6. Batches that are executed elsewhere take longer while a server reads and writes, since caches, memory and the lock
    of the interpreter are shared, or than they took when they were measured alone, in another minute. By how much,
    those of the crowd and of the load at random times tell, each beside those of its own size. They take turns, of
    which the one in the middle counts: other programs hold up whole turns.
 7. Who sleeps has to wait for a core when it wakes up, if other programs have them. How long, requests that came after
    the shortest rest tell by what they took longer than nine of ten of their kind. After longer rests all takes longer,
    and differs more.
 8. All of that is measured once more on a server with one front end in a process of its own, which does not poll. The
    processor time of that process is split as in rule 1: a request alone takes two of its turns, one in and one out.
 9. What all of that is on a server that has more to do tells a load at random times (`busy_server`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..clients.player import LoadClient
from ..engine.errors import UnavailableError
from ..engine.logs.generators import PoissonArrivals, RequestKind, generate
from ..engine.logs.request_log import LoggedLoop, LoggedRequest, RequestTraffic
from ..engine.options import ServerOptions
from ..engine.profiles import NEVER_LATE, HostPoint, RestedLoop, ServicePoint, TimeDistribution, Way
from ..engine.profiles.profile import runs_on_loop
from .busy_server import LEAST_SLOWED, MOST_HZ, SHARE, BusyServer, MeasuredWay
from .served_models import ServedModels
from .service_times import MeasuredModel

_CROWD = 8
_ROUNDS = 5
"""In which lone client and crowd take turns."""
_PART = 0.3
"""Of what a point may take: one request at a time, and the crowd, each for so long."""
_WARM_UP = 100
_LEAST, _MOST = 60, 6_000
_SEQUENCE = 50
_RESTS_S = (0.001, 0.003, 0.01, 0.05)
_LEAST_RESTED, _MOST_RESTED = 30, 1_500
_IDLE_S = 0.3
_OPEN_PART, _MOST_OPEN_S, _LEAST_OPEN = 4.0, 3.0, 12
"""Of the same, what all parts of the load at random times take, at most so long, and at least for so many requests of
each part."""
_OPEN_SEQUENCE, _LEAST_SEQUENCES, _THINK_S = 10.0, 3, 0.01
"""The same of sequences: how long they are, how many there are at least, and how long clients think."""
_BETWEEN_S = 0.05
"""Of two parts, where they are played as one."""
_USUAL = 0.9
"""So many of all requests are not late."""
_HIDES_S = 0.001
"""The spread of batches that take longer hides that of what is outside of them."""
_MOST_SLOWED = 1.5
_MOST_OF_IT = 0.8
"""So much of what a request costs may come of rests: a fit of a few measurements is not to say that nothing is left."""

_NO_POLLS = ("--poll-us", "0")


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What clients saw, and what it cost.

    Attributes:
        clients: how many there were at most.
        latencies_s: from when each request was sent, which may be later than it was due.
        loop_s: of the event loop, a request.
        batch_s: that a batch took.
        requests: of a batch.
        sizes: how many batches had so many rows.
        front_s: of front ends, a request.
        answered: how many well.
    """

    clients: int
    latencies_s: np.ndarray
    loop_s: float
    batch_s: float
    requests: float
    sizes: Mapping[int, int]
    front_s: float = 0.0
    answered: int = 0


def measure_host(
    measured: MeasuredModel,
    options: ServerOptions,
    ways: Sequence[Way],
    nbytes: int,
    most_s: float,
    front_ends: Sequence[int] = (0,),
) -> list[MeasuredWay]:
    """What a request costs, by each way: one of one row, and, of a model with batches, one of as many as there may be
    (rule 5).

    Args:
        nbytes: of the inputs of one row.
        most_s: seconds that each way may take, about.
        front_ends: for servers with so many, one after the other.

    Raises:
        UnavailableError: the server does not start, or the kernel does not tell what a thread uses.
        TriremeError: a request fails.
    """
    name = measured.config.name
    if measured.config.decoupled:
        return []  # which the player does not ask
    flags = ("--model-control-mode", "explicit", "--load-model", name)
    found: list[MeasuredWay] = []
    for count in front_ends:
        with ServedModels(options, (*flags, *(_NO_POLLS if count else ())), count) as server:
            for way in ways:
                with LoadClient(server.target(way), _CROWD) as client:
                    found.append(_way(_Loads(server, client, measured), way, nbytes, _PART * most_s))
    return found


def _way(loads: _Loads, way: Way, nbytes: int, seconds: float) -> MeasuredWay:
    small, busy = _point(loads, way, nbytes, seconds)
    points = [small]
    largest = loads.measured.service[-1]
    if largest.rows > 1 and not loads.measured.config.has_sequence_batching:
        points.append(_large_point(loads, small, busy, largest, seconds))
    return MeasuredWay(points, busy)


def _point(loads: _Loads, way: Way, nbytes: int, seconds: float) -> tuple[HostPoint, BusyServer]:
    measured = loads.measured
    service_s = measured.service[0].time.mean_s
    one = max(service_s + 0.0005, 0.0005)
    loads.closed(_CROWD, _WARM_UP)
    counts = [round(min(max(seconds / one, least), _MOST) / _ROUNDS) for least in (_LEAST, 4 * _LEAST)]
    logs = random_logs(measured, _OPEN_PART * seconds)
    rounds = [(loads.closed(1, counts[0]), loads.closed(_CROWD, counts[1]), loads.open(log)) for log in logs]
    alone, crowd = (joined([each[at] for each in rounds]) for at in (0, 1))
    opened = [each[2] for each in rounds]
    on_loop = runs_on_loop(measured.executor, service_s)
    usual_s = float(np.median(alone.latencies_s))
    ways_s = measured.start.quantile(0.5) + measured.notice.quantile(0.5)
    aside_s = 0.0 if on_loop else alone.batch_s + ways_s
    outside_s = max(0.0, usual_s - alone.loop_s - alone.front_s - aside_s)
    after_rests = list(_rested_loads(loads, usual_s, seconds))
    idle = _idle(loads.server)
    rested = list(_rested(alone, after_rests, idle))
    grows_by = _grows_by(rested, outside_s)
    alone_s = alone.loop_s - (alone.batch_s if on_loop else 0.0)
    a = _without_rests(alone_s, grows_by * (outside_s**0.5 + aside_s**0.5))
    c = crowd.loop_s - (crowd.batch_s / crowd.requests if on_loop else 0.0)
    c = _without_rests(c, 0.0 if on_loop else grows_by * crowd.batch_s**0.5 / crowd.requests)
    company = max(crowd.requests, 2.0)
    shared, front_shared = shared_part(a, c, company), shared_part(alone.front_s, crowd.front_s, company)
    spread = np.maximum(0.0, outside_s + (_calm(alone.latencies_s, service_s) - usual_s))
    outside = TimeDistribution.of([float(each) for each in spread])
    slowed = 1.0 if on_loop else float(np.median([slowed_by(each[1:], measured) for each in rounds]))
    late = late_by([load for _, load in after_rests[:1]], service_s)
    point = HostPoint(
        *(way, nbytes, loads.server.front_ends, a - shared, shared, outside),
        slowed=slowed,
        late=late,
        front_request_s=alone.front_s - front_shared,
        front_turn_s=front_shared / 2,
    )
    done = sum([load.answered for load in opened])
    log = _one_after_the_other(logs) if done == sum(map(len, logs)) else ()
    loop_s = sum([load.loop_s * load.answered for load in opened])
    loop_s -= idle * sum([each[-1].offset_s for each in logs])
    front_s = sum([load.front_s * load.answered for load in opened])
    sizes = sum((Counter(load.sizes) for load in opened), Counter[int]())
    executed_s = sum([load.batch_s * sum(load.sizes.values()) for load in opened])
    return point, BusyServer(log, max(0.0, loop_s), front_s, alone_s, aside_s, rested, sizes, executed_s)


def random_logs(measured: MeasuredModel, seconds: float) -> list[list[LoggedRequest]]:
    """The load of `busy_server`, in parts that take turns with others.

    Args:
        seconds: that all of them take, about.
    """
    config, count = measured.config, max(point.side_by_side for point in measured.service)
    largest = max(measured.service, key=lambda point: (point.side_by_side, point.rows))
    rate_hz = min(SHARE * count * largest.rows / max(largest.time.mean_s, 1e-6), MOST_HZ)
    kind, least = RequestKind(config.name), _LEAST_OPEN
    if config.has_sequence_batching:
        kind = RequestKind(config.name, sequence_length=_OPEN_SEQUENCE, think_s=_THINK_S)
        rate_hz, least = rate_hz / _OPEN_SEQUENCE, _LEAST_SEQUENCES
    part_s = max(min(seconds, _MOST_OPEN_S) / _ROUNDS, least / rate_hz)
    logs = [list(generate(PoissonArrivals(rate_hz), [kind], part_s, seed).requests) for seed in range(_ROUNDS)]
    return [log for log in logs if log]


def _one_after_the_other(logs: Sequence[Sequence[LoggedRequest]]) -> list[LoggedRequest]:
    joined: list[LoggedRequest] = []
    for log in logs:
        began_s = joined[-1].offset_s + _BETWEEN_S if joined else 0.0
        joined += [replace(each, offset_s=began_s + each.offset_s) for each in log]
    return joined


def shared_part(alone_s: float, together_s: float, company: float) -> float:
    """Of what a request alone costs, the part that several pay one part each of (rule 1).

    Args:
        together_s: what one of several costs.
        company: how many these are, at least 2.
    """
    return min(max(0.0, (alone_s - together_s) / (1 - 1 / company)), alone_s)


def _large_point(loads: _Loads, small: HostPoint, busy: BusyServer, largest: ServicePoint, seconds: float) -> HostPoint:
    """Rule 5."""
    measured, rows = loads.measured, largest.rows
    on_loop = runs_on_loop(measured.executor, largest.time.mean_s)
    ways_s = measured.start.quantile(0.5) + measured.notice.quantile(0.5)
    loads.closed(1, _WARM_UP, rows)
    count = round(min(max(seconds / max(largest.time.mean_s + 0.0005, 0.0005), _LEAST), _MOST))
    alone = loads.closed(1, count, rows)
    aside_s = 0.0 if on_loop else alone.batch_s + ways_s
    usual_s = float(np.median(alone.latencies_s))
    outside_s = max(0.0, usual_s - alone.loop_s - alone.front_s - aside_s)
    grows_by = _grows_by(busy.rested, outside_s)
    loop_s = alone.loop_s - (alone.batch_s if on_loop else 0.0)
    request_s = _without_rests(loop_s, grows_by * (outside_s**0.5 + aside_s**0.5)) - small.batch_s
    outside = TimeDistribution.constant(max(outside_s, small.outside.quantile(0.5)))
    return replace(
        small,
        nbytes=rows * small.nbytes,
        request_s=max(request_s, small.request_s),
        outside=outside,
        front_request_s=max(alone.front_s - 2 * small.front_turn_s, small.front_request_s),
    )


def joined(loads: Sequence[ServedLoad]) -> ServedLoad:
    """Loads of as many clients, one after the other, as one."""
    batches = [max(1, sum(load.sizes.values())) for load in loads]
    requests = [load.requests * count for load, count in zip(loads, batches, strict=True)]
    return ServedLoad(
        loads[0].clients,
        np.concatenate([load.latencies_s for load in loads]),
        float(np.average([load.loop_s for load in loads], weights=requests)),
        float(np.average([load.batch_s for load in loads], weights=batches)),
        sum(requests) / sum(batches),
        sum((Counter(load.sizes) for load in loads), Counter()),
        float(np.average([load.front_s for load in loads], weights=requests)),
    )


def slowed_by(loads: Sequence[ServedLoad], measured: MeasuredModel) -> float:
    """Rule 6."""
    most = max(point.side_by_side for point in measured.service)
    alone, together = (
        {point.rows: point.time.mean_s for point in measured.service if point.side_by_side == count}
        for count in (1, most)
    )
    shared = {rows: took_s / alone[rows] for rows, took_s in together.items() if alone.get(rows)}

    def expected(load: ServedLoad) -> float:
        sizes, counts = list(load.sizes), list(load.sizes.values())
        took_s = np.interp(sizes, list(alone), list(alone.values()))
        if load.clients > 1 and shared:
            took_s = took_s * np.interp(sizes, list(shared), list(shared.values()))
        return float(took_s @ np.array(counts))

    expected_s = sum(expected(load) for load in loads)
    took_s = sum(load.batch_s * sum(load.sizes.values()) for load in loads)
    return min(max(LEAST_SLOWED, took_s / expected_s), _MOST_SLOWED) if expected_s > 0 else 1.0


def _rested_loads(loads: _Loads, usual_s: float, seconds: float) -> Iterator[tuple[float, ServedLoad]]:
    """Rule 4: rests, and what came of requests after each."""
    for rest_s in _RESTS_S:
        if rest_s < usual_s / 2:
            continue  # a request that takes a little longer would hold up the next one
        apart_s = rest_s + usual_s
        count = round(min(max(2 * seconds / apart_s, _LEAST_RESTED), _MOST_RESTED))
        yield rest_s, loads.apart(count, apart_s)


def _idle(server: ServedModels) -> float:
    """Processor seconds a second of an event loop without requests."""
    before_s, began_s = server.loop_s(), time.monotonic()
    time.sleep(_IDLE_S)
    return (server.loop_s() - before_s) / (time.monotonic() - began_s)


def _rested(alone: ServedLoad, loads: Sequence[tuple[float, ServedLoad]], idle: float) -> Iterator[RestedLoop]:
    """Rule 4: by rest, what a request costs more than one that came after none."""
    usual_s = float(np.median(alone.latencies_s))
    for rest_s, load in loads:
        loop_s = max(0.0, load.loop_s - idle * (rest_s + usual_s) - alone.loop_s)
        outside_s = max(0.0, float(np.median(load.latencies_s)) - usual_s - loop_s)
        yield RestedLoop(rest_s, loop_s, outside_s)


def late_by(loads: Sequence[ServedLoad], service_s: float) -> TimeDistribution:
    """Rule 7."""
    if not loads or service_s >= _HIDES_S:
        return NEVER_LATE
    late = [np.maximum(0.0, load.latencies_s - np.quantile(load.latencies_s, _USUAL)) for load in loads]
    return TimeDistribution.of([float(each) for each in np.concatenate(late)])


def _grows_by(rested: Sequence[RestedLoop], usual_s: float) -> float:
    """What a rest costs the loop, by the square root of it, if it costs so much more than the usual one (rule 4); least
    squares."""
    roots = [each.rest_s**0.5 - usual_s**0.5 for each in rested]
    square = sum(root * root for root in roots)
    return sum(root * each.loop_s for root, each in zip(roots, rested, strict=True)) / square if square else 0.0


def _without_rests(loop_s: float, rests_s: float) -> float:
    """What is left of what a request costs the loop."""
    return max(0.0, loop_s - min(rests_s, _MOST_OF_IT * loop_s))


def _calm(latencies: np.ndarray, service_s: float) -> np.ndarray:
    """Latencies whose spread is that of what is outside. Where batches take long their own spread hides that: then only
    the median counts."""
    return latencies if service_s < _HIDES_S else np.full(len(latencies), np.median(latencies))


@dataclass(frozen=True, slots=True)
class _Loads:
    """Clients of one model of a server, and what that notes of them.

    Attributes:
        client: with connections that stay open from one load to the next (rule 1).
    """

    server: ServedModels
    client: LoadClient
    measured: MeasuredModel

    def closed(self, clients: int, count: int, rows: int = 1) -> ServedLoad:
        """So many clients ask, each one request after the other."""
        traffic = RequestTraffic(self._requests(clients, count, rows), LoggedLoop(clients))
        return self._play(traffic, clients, rows)

    def apart(self, count: int, apart_s: float) -> ServedLoad:
        """Requests come at times that are so far apart."""
        requests = enumerate(self._requests(1, count))
        return self._play(RequestTraffic([replace(each, offset_s=at * apart_s) for at, each in requests]), 1)

    def open(self, log: Sequence[LoggedRequest]) -> ServedLoad:
        """Requests come when a log says; some may be refused."""
        return self._play(RequestTraffic(log), _CROWD, may_refuse=True)

    def _requests(self, clients: int, count: int, rows: int = 1) -> list[LoggedRequest]:
        config = self.measured.config
        return list(_requests(config.name, count, config.has_sequence_batching, clients, rows))

    def _play(self, traffic: RequestTraffic, clients: int, rows: int = 1, may_refuse: bool = False) -> ServedLoad:
        server, name = self.server, self.measured.config.name
        before, loop_s, front_s = server.statistics(name), server.loop_s(), server.front_ends_s()
        played = self.client.play(traffic)
        loop_s, front_s = server.loop_s() - loop_s, server.front_ends_s() - front_s
        after = server.statistics(name)
        wrong = played.summary().reasons
        if wrong and not may_refuse:
            raise UnavailableError(f"requests to '{name}' failed: {wrong[0][0]}")

        done = max(1, (after["inference_count"] - before["inference_count"]) // rows)
        executed = max(1, after["execution_count"] - before["execution_count"])
        stats = _batch_totals(after), _batch_totals(before)
        return ServedLoad(
            clients=clients,
            latencies_s=played.since_sent_s[played.status == 0],
            loop_s=loop_s / done,
            batch_s=(stats[0] - stats[1]) / 1e9 / executed,
            requests=done / executed,
            sizes=Counter(_batch_sizes(after)) - Counter(_batch_sizes(before)),
            front_s=front_s / done,
            answered=int((played.status == 0).sum()),
        )


def _batch_sizes(statistics: dict[str, Any]) -> dict[int, int]:
    """Batches so far, by their rows."""
    return {each["batch_size"]: each["compute_infer"]["count"] for each in statistics["batch_stats"]}


def _batch_totals(statistics: dict[str, Any]) -> int:
    """Nanoseconds of all executions."""
    kinds = "compute_input", "compute_infer", "compute_output"
    return sum(each[kind]["ns"] for each in statistics["batch_stats"] for kind in kinds)


def _requests(name: str, count: int, stateful: bool, clients: int, rows: int) -> Iterator[LoggedRequest]:
    if not stateful:
        yield from (LoggedRequest(0.0, name, rows=rows) for _ in range(count))
        return
    base = time.monotonic_ns() % (1 << 40)
    rounds = max(1, count // (_SEQUENCE * clients))
    for number in range(rounds * clients):
        for position in range(_SEQUENCE):
            ends = position == _SEQUENCE - 1
            yield LoggedRequest(0.0, name, sequence=base + number, start=position == 0, end=ends)
