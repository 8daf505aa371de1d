"""Measures what requests cost a server's host beside their execution: on `trireme serve` in a process of its own, with
the player of request logs as its client.

Rules:
 1. One client, who asks again as soon as it has its answer, tells what a request costs the event loop together with
    all that it does not share (`A` processor seconds of the loop's thread), and `_CROWD` clients at once what it costs
    in company (`C`). All are on connections that were there before: a new one costs as much as several requests. Of
    what is shared, n requests of a batch pay one part each: request + shared = A, request + shared / n = C.
 2. What is executed on the event loop is taken off before: its time is in the service times.
 3. What is outside of the loop is the rest of the median latency of one request alone: without the loop, the execution,
    and the two ways to its thread. Its spread is that of the latencies, about their median. Medians, since a few
    requests that other programs held up would be most of what is left.
 4. Then the client waits for each of `_RESTS_S` before it asks again: what that costs more is what a rested loop costs.
    It grows about as the square root of the rest, by which `_grows_by` is fitted. So it is known what the loop's rests
    cost in rule 1 (while a client had its answer, and while a batch was executed elsewhere); that is taken off before.
 5. One client asks for as many rows as there may be, too: what that costs the loop and outside more, is by the byte.
 6. Batches that are executed elsewhere take longer while a server reads and writes, since caches, memory and the lock
    of the interpreter are shared, or than they took when they were measured alone, in another minute. By how much,
    those of the client alone and of the crowd tell, each beside those of its own size. They take turns, of which the
    one in the middle counts: other programs hold up whole turns.
 7. Who sleeps has to wait for a core when it wakes up, if other programs have them. How long, requests that came after
    the shortest rest tell by what they took longer than nine of ten of their kind. After longer rests all takes longer,
    and differs more.
 8. All of that is measured once more on a server with one front end in a process of its own, which does not poll. The
    processor time of that process is split as in rule 1: a request alone takes two of its turns, one in and one out.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ..clients.player import LoadClient
from ..clients.target import LoadProtocol, LoadTarget
from ..engine.errors import UnavailableError
from ..engine.logs.request_log import LoggedLoop, LoggedRequest, RequestTraffic
from ..engine.options import ServerOptions
from ..engine.profiles import NEVER_LATE, HostPoint, RestedLoop, ServicePoint, TimeDistribution, Way
from ..engine.profiles.profile import runs_on_loop
from .service_times import MeasuredModel

_CROWD = 8
_ROUNDS = 5
"""In which lone client and crowd take turns."""
_PART = 0.3
"""Of what a point may take: one request at a time, and the crowd, each for so long."""
_WARM_UP = 100
_LEAST, _MOST = 60, 6_000
_START_S = 120.0
_SEQUENCE = 50
_RESTS_S = (0.001, 0.003, 0.01, 0.05)
_LEAST_RESTED, _MOST_RESTED = 30, 1_500
_IDLE_S = 0.3
_USUAL = 0.9
"""So many of all requests are not late."""
_HIDES_S = 0.001
"""The spread of batches that take longer hides that of what is outside of them."""
_LEAST_SLOWED, _MOST_SLOWED = 0.8, 1.5
_MOST_OF_IT = 0.8
"""So much of what a request costs may come of rests: a fit of a few measurements is not to say that nothing is left."""

_FRONT_END = "trireme.api.cli.front_end"
"""In the command line of a front end."""
_NO_POLLS = ("--poll-us", "0")
_PROCESS_TIME = 2
"""Of the numbers that Linux has for clocks of another process (`clock_getcpuclockid`): processor time, ended threads'
too."""

_PROTOCOLS = {
    Way.HTTP: LoadProtocol.HTTP,
    Way.JSON: LoadProtocol.JSON,
    Way.GRPC: LoadProtocol.GRPC,
    Way.STREAM: LoadProtocol.STREAM,
}


class ServedModels:
    """`trireme serve` in a process of its own, on free ports of this machine.

    Args:
        flags: more of its flags.
        front_ends: processes that read and write for it.
    """

    def __init__(self, options: ServerOptions, flags: Sequence[str] = (), front_ends: int = 0) -> None:
        self.front_ends = front_ends
        words = [sys.executable, "-m", "trireme", "serve", "--front-ends", str(front_ends)]
        for each in options.model_repository:
            words += ["--model-repository", str(each)]
        for name in ("http", "grpc", "metrics"):
            words += [f"--{name}-port", "0"]
        words += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", *flags]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self.process = subprocess.Popen(words, stdout=self._log, stderr=subprocess.STDOUT)
        self.http_port = self.grpc_port = 0

    def __enter__(self) -> ServedModels:
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__)  # also after Ctrl-C: nothing is to be left
            self._wait_for_start()
            undo.pop_all()
        return self

    def _wait_for_start(self) -> None:
        limit_s = time.monotonic() + _START_S
        while time.monotonic() < limit_s and self.process.poll() is None:
            text = self._written()
            http_port = re.search(r"Started HTTPService at 127\.0\.0\.1:(\d+)", text)
            grpc_port = re.search(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)", text)
            if http_port and grpc_port:
                self.http_port, self.grpc_port = int(http_port[1]), int(grpc_port[1])
                return
            time.sleep(0.02)
        text = self._written()
        raise UnavailableError(f"the server to be measured did not start:\n{text[-2000:]}")

    def __exit__(self, *_error: object) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self.process.wait()
        self._log.close()

    def _written(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def target(self, way: Way) -> LoadTarget:
        """Where clients find it."""
        protocol = _PROTOCOLS[way]
        return LoadTarget("127.0.0.1", self.http_port if protocol.is_http else self.grpc_port, protocol)

    def loop_s(self) -> float:
        """Processor seconds of the event loop's thread so far."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat")
        try:
            return int(path.read_text().split()[0]) / 1e9
        except OSError as error:
            raise UnavailableError(f"the kernel does not tell what the event loop uses: {error}") from error

    def front_ends_s(self) -> float:
        """Processor seconds of all front ends so far."""
        if not self.front_ends:
            return 0.0
        found = [each.pid for each in psutil.Process(self.process.pid).children() if _FRONT_END in each.cmdline()]
        try:
            return sum(time.clock_gettime(~pid << 3 | _PROCESS_TIME) for pid in found)
        except OSError as error:
            raise UnavailableError(f"the kernel does not tell what a front end uses: {error}") from error

    def statistics(self, model: str) -> dict[str, Any]:
        """Of the only version of a model."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            connection.request("GET", f"/v2/models/{model}/stats")
            return json.loads(connection.getresponse().read())["model_stats"][0]
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """What clients in a closed loop saw, and what it cost.

    Attributes:
        clients: how many there were.
        latencies_s: from when each request was sent, which may be later than it was due.
        loop_s: of the event loop, a request.
        batch_s: that a batch took.
        requests: of a batch.
        sizes: how many batches had so many rows.
        front_s: of front ends, a request.
    """

    clients: int
    latencies_s: np.ndarray
    loop_s: float
    batch_s: float
    requests: float
    sizes: Mapping[int, int]
    front_s: float = 0.0


def measure_host(
    measured: MeasuredModel,
    options: ServerOptions,
    ways: Sequence[Way],
    nbytes: int,
    most_s: float,
    front_ends: Sequence[int] = (0,),
) -> list[HostPoint]:
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
    found: list[HostPoint] = []
    for count in front_ends:
        with ServedModels(options, (*flags, *(_NO_POLLS if count else ())), count) as server:
            for way in ways:
                with LoadClient(server.target(way), _CROWD) as client:
                    found += _points(_Loads(server, client, measured), way, nbytes, _PART * most_s)
    return found


def _points(loads: _Loads, way: Way, nbytes: int, seconds: float) -> Iterator[HostPoint]:
    small = _point(loads, way, nbytes, seconds)
    yield small
    largest = loads.measured.service[-1]
    if largest.rows > 1 and not loads.measured.config.has_sequence_batching:
        yield _large_point(loads, small, largest, seconds)


def _point(loads: _Loads, way: Way, nbytes: int, seconds: float) -> HostPoint:
    measured = loads.measured
    service_s = measured.service[0].time.mean_s
    one = max(service_s + 0.0005, 0.0005)
    loads.play(_CROWD, _WARM_UP)
    counts = [round(min(max(seconds / one, least), _MOST) / _ROUNDS) for least in (_LEAST, 4 * _LEAST)]
    rounds = [
        [loads.play(clients, count) for clients, count in zip((1, _CROWD), counts, strict=True)] for _ in range(_ROUNDS)
    ]
    alone, crowd = (joined(loads) for loads in zip(*rounds, strict=True))
    on_loop = runs_on_loop(measured.executor, service_s)
    usual_s = float(np.median(alone.latencies_s))
    ways_s = measured.start.quantile(0.5) + measured.notice.quantile(0.5)
    aside_s = 0.0 if on_loop else measured.service[0].time.quantile(0.5) + ways_s
    outside_s = max(0.0, usual_s - alone.loop_s - alone.front_s - aside_s)
    after_rests = list(_rested_loads(loads, usual_s, seconds))
    rested = list(_rested(loads.server, alone, after_rests))
    grows_by = _grows_by(rested, outside_s)
    a = _without_rests(alone.loop_s - (alone.batch_s if on_loop else 0.0), grows_by * (outside_s**0.5 + aside_s**0.5))
    c = crowd.loop_s - (crowd.batch_s / crowd.requests if on_loop else 0.0)
    c = _without_rests(c, 0.0 if on_loop else grows_by * crowd.batch_s**0.5 / crowd.requests)
    company = max(crowd.requests, 2.0)
    shared, front_shared = shared_part(a, c, company), shared_part(alone.front_s, crowd.front_s, company)
    spread = np.maximum(0.0, outside_s + (_calm(alone.latencies_s, service_s) - usual_s))
    outside = TimeDistribution.of([float(each) for each in spread])
    more_s = grows_by * outside_s**0.5
    known = [replace(each, loop_s=each.loop_s + more_s) for each in rested]
    slowed = 1.0 if on_loop else float(np.median([slowed_by(each, measured) for each in rounds]))
    late = late_by([load for _, load in after_rests[:1]], service_s)
    return HostPoint(
        *(way, nbytes, loads.server.front_ends, a - shared, shared, outside),
        rested=(RestedLoop(0.0, 0.0, 0.0), *known),
        slowed=slowed,
        late=late,
        front_request_s=alone.front_s - front_shared,
        front_turn_s=front_shared / 2,
    )


def shared_part(alone_s: float, together_s: float, company: float) -> float:
    """Of what a request alone costs, the part that several pay one part each of (rule 1).

    Args:
        together_s: what one of several costs.
        company: how many these are, at least 2.
    """
    return min(max(0.0, (alone_s - together_s) / (1 - 1 / company)), alone_s)


def _large_point(loads: _Loads, small: HostPoint, largest: ServicePoint, seconds: float) -> HostPoint:
    """Rule 5."""
    measured, rows, service_s = loads.measured, largest.rows, largest.time.quantile(0.5)
    on_loop = runs_on_loop(measured.executor, largest.time.mean_s)
    ways_s = measured.start.quantile(0.5) + measured.notice.quantile(0.5)
    aside_s = 0.0 if on_loop else service_s + ways_s
    loads.play(1, _WARM_UP, rows=rows)
    count = round(min(max(seconds / max(largest.time.mean_s + 0.0005, 0.0005), _LEAST), _MOST))
    alone = loads.play(1, count, rows=rows)
    usual_s = float(np.median(alone.latencies_s))
    outside_s = max(0.0, usual_s - alone.loop_s - alone.front_s - aside_s)
    grows_by = _grows_by(small.rested, 0.0)
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


def joined(loads: Sequence[ClosedLoad]) -> ClosedLoad:
    """Loads of as many clients, one after the other, as one."""
    batches = [max(1, sum(load.sizes.values())) for load in loads]
    requests = [load.requests * count for load, count in zip(loads, batches, strict=True)]
    return ClosedLoad(
        loads[0].clients,
        np.concatenate([load.latencies_s for load in loads]),
        float(np.average([load.loop_s for load in loads], weights=requests)),
        float(np.average([load.batch_s for load in loads], weights=batches)),
        sum(requests) / sum(batches),
        sum((Counter(load.sizes) for load in loads), Counter()),
        float(np.average([load.front_s for load in loads], weights=requests)),
    )


def slowed_by(loads: Sequence[ClosedLoad], measured: MeasuredModel) -> float:
    """Rule 6."""
    most = max(point.side_by_side for point in measured.service)
    alone, together = (
        {point.rows: point.time.mean_s for point in measured.service if point.side_by_side == count}
        for count in (1, most)
    )
    shared = {rows: took_s / alone[rows] for rows, took_s in together.items() if alone.get(rows)}

    def expected(load: ClosedLoad) -> float:
        sizes, counts = list(load.sizes), list(load.sizes.values())
        took_s = np.interp(sizes, list(alone), list(alone.values()))
        if load.clients > 1 and shared:
            took_s = took_s * np.interp(sizes, list(shared), list(shared.values()))
        return float(took_s @ np.array(counts))

    expected_s = sum(expected(load) for load in loads)
    took_s = sum(load.batch_s * sum(load.sizes.values()) for load in loads)
    return min(max(_LEAST_SLOWED, took_s / expected_s), _MOST_SLOWED) if expected_s > 0 else 1.0


def _rested_loads(loads: _Loads, usual_s: float, seconds: float) -> Iterator[tuple[float, ClosedLoad]]:
    """Rule 4: rests, and what came of requests after each."""
    for rest_s in _RESTS_S:
        if rest_s < usual_s / 2:
            continue  # a request that takes a little longer would hold up the next one
        apart_s = rest_s + usual_s
        count = round(min(max(2 * seconds / apart_s, _LEAST_RESTED), _MOST_RESTED))
        yield rest_s, loads.play(1, count, apart_s)


def _rested(server: ServedModels, alone: ClosedLoad, loads: Sequence[tuple[float, ClosedLoad]]) -> Iterator[RestedLoop]:
    """Rule 4: by rest, what a request costs more than one that came after none."""
    before_s, began_s = server.loop_s(), time.monotonic()
    time.sleep(_IDLE_S)
    idle = (server.loop_s() - before_s) / (time.monotonic() - began_s)  # what it does without requests
    usual_s = float(np.median(alone.latencies_s))
    for rest_s, load in loads:
        loop_s = max(0.0, load.loop_s - idle * (rest_s + usual_s) - alone.loop_s)
        outside_s = max(0.0, float(np.median(load.latencies_s)) - usual_s - loop_s)
        yield RestedLoop(rest_s, loop_s, outside_s)


def late_by(loads: Sequence[ClosedLoad], service_s: float) -> TimeDistribution:
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

    def play(self, clients: int, count: int, apart_s: float = 0.0, rows: int = 1) -> ClosedLoad:
        """So many clients ask, each one request after the other; or requests come at times that are so far apart."""
        server, name = self.server, self.measured.config.name
        requests = list(_requests(name, count, self.measured.config.has_sequence_batching, clients, rows))
        traffic = RequestTraffic(requests, LoggedLoop(clients))
        if apart_s:
            traffic = RequestTraffic([replace(each, offset_s=at * apart_s) for at, each in enumerate(requests)])
        before, loop_s, front_s = server.statistics(name), server.loop_s(), server.front_ends_s()
        played = self.client.play(traffic)
        loop_s, front_s = server.loop_s() - loop_s, server.front_ends_s() - front_s
        after = server.statistics(name)
        wrong = played.summary().reasons
        if wrong:
            raise UnavailableError(f"requests to '{name}' failed: {wrong[0][0]}")

        done = max(1, (after["inference_count"] - before["inference_count"]) // rows)
        executed = max(1, after["execution_count"] - before["execution_count"])
        stats = _batch_totals(after), _batch_totals(before)
        return ClosedLoad(
            clients=clients,
            latencies_s=played.since_sent_s[played.status == 0],
            loop_s=loop_s / done,
            batch_s=(stats[0] - stats[1]) / 1e9 / executed,
            requests=done / executed,
            sizes=Counter(_batch_sizes(after)) - Counter(_batch_sizes(before)),
            front_s=front_s / done,
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
