"""How late a thread gets a core while others compute on all of them.

Rules:
 1. A thread that wakes up while other threads compute on all cores may have to wait until the kernel's clock ticks,
    for some milliseconds: computing is seldom interrupted at once, least of all if it has just begun. Where fewer
    compute than there are cores that hardly happens, for one is always found that rests.
 2. It is measured on two cores, to which all are bound. This process stands for a server's event loop. Two others stand
    for instances: told to, they compute for as long as a batch takes, and say that they are done. One more stands for
    the clients, who ask at random times, so that each instance computes for half of the time.
 3. What counts is how late requests and answers are read, while at least one instance computes, beyond the middle one
    of those while none does.
"""

from __future__ import annotations

import math
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median

from ..engine.profiles import NEVER_LATE, TimeDistribution

_CORES = 2
_SHARE = 0.5
"""Of the time, for which each instance computes."""
_WORK_S = 0.0001
"""Of the event loop, for a request, and for the end of a batch."""
_LEAST_BURST_S, _MOST_BURST_S = 0.0005, 0.02
_LEAST_SAMPLES = 40
_ALL = -math.inf
_TIME = struct.Struct("d")


def measure_crowding(burst_s: float, seconds: float) -> TimeDistribution:
    """How late it is; never, where it cannot be measured: with less than two cores, where nothing may be bound to them,
    or no process be started.

    Args:
        burst_s: what a batch takes.
        seconds: that the measurement takes.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < _CORES:
        return NEVER_LATE
    burst_s = min(max(burst_s, _LEAST_BURST_S), _MOST_BURST_S)
    try:
        with _bound(), ExitStack() as ended:
            instances = [ended.enter_context(_process("instance", burst_s)) for _ in range(_CORES)]
            clients = ended.enter_context(_process("clients", _CORES * _SHARE / burst_s, seconds))
            return _Loop(instances, clients).run()
    except OSError:
        return NEVER_LATE


@contextmanager
def _bound() -> Iterator[None]:
    """This thread, and those processes that it starts, have two cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:_CORES]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _process(what: str, *numbers: float) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", __name__, what, *map(str, numbers)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def _descriptors(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """To read from, and to write to."""
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    return process.stdout.fileno(), process.stdin.fileno()


def _read(descriptor: int) -> list[float]:
    return [each for (each,) in _TIME.iter_unpack(os.read(descriptor, 1 << 16))]


def _tell(descriptor: int, value: float) -> None:
    os.write(descriptor, _TIME.pack(value))


def _spin(seconds: float) -> None:
    """Compute, without a call to the kernel in which it could be interrupted."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


@dataclass(slots=True)
class _Late:
    """How late messages of one kind were read, and how many instances computed then."""

    seconds: list[float] = field(default_factory=list)
    computing: list[int] = field(default_factory=list)

    def more(self) -> list[float]:
        """Rule 3."""
        pairs = list(zip(self.seconds, self.computing, strict=False))
        usual = median([late_s for late_s, count in pairs if not count] or [late_s for late_s, _ in pairs] or [0.0])
        return [max(0.0, late_s - usual) for late_s, count in pairs if count]


class _Loop:
    """The event loop of rule 2."""

    def __init__(self, instances: list[subprocess.Popen[bytes]], clients: subprocess.Popen[bytes]) -> None:
        self._poll = select.epoll()
        self._writes: dict[int, int] = {}
        for process in (*instances, clients):
            reads, writes = _descriptors(process)
            self._poll.register(reads, select.EPOLLIN)
            self._writes[reads] = writes
        self._clients = _descriptors(clients)[0]
        self._idle = [reads for reads in self._writes if reads != self._clients]
        self._computing = 0
        self._waiting = 0
        self._requests, self._answers = _Late(), _Late()

    def run(self) -> TimeDistribution:
        """Until the clients have told all."""
        with self._poll:
            going = True
            while going:
                for reads, _ in self._poll.poll():
                    if reads == self._clients:
                        going = self._hear()
                    else:
                        self._end(reads)
                while self._waiting and self._idle:
                    self._waiting -= 1
                    self._computing += 1
                    _tell(self._writes[self._idle.pop(0)], time.perf_counter())
        late = [*self._requests.more(), *self._answers.more()]
        return TimeDistribution.of(late) if len(late) >= _LEAST_SAMPLES else NEVER_LATE

    def _hear(self) -> bool:
        """Requests; when all are sent, as negative numbers, how late each answer was read; `_ALL` at last.

        Returns:
            Whether there is more.
        """
        now_s = time.perf_counter()
        for sent_s in (told := _read(self._clients)):
            if sent_s == _ALL:
                return False
            if sent_s < 0:
                self._answers.seconds.append(-sent_s)
                continue
            self._requests.seconds.append(now_s - sent_s)
            self._requests.computing.append(self._computing)
            self._waiting += 1
            _spin(_WORK_S)
        if not told:
            raise ChildProcessError("the process of the clients has ended")
        return True

    def _end(self, reads: int) -> None:
        """An instance is done."""
        if not _read(reads):
            raise ChildProcessError("a process that was to compute has ended")
        self._computing -= 1
        self._idle.append(reads)
        _spin(_WORK_S)
        self._answers.computing.append(self._computing)
        _tell(self._writes[self._clients], time.perf_counter())


def _instance(burst_s: float) -> None:
    while os.read(0, _TIME.size):
        _spin(burst_s)
        _tell(1, time.perf_counter())


def _ask(rate_hz: float, seconds: float) -> None:
    chance, late = random.Random(1), []
    due_s = time.perf_counter()
    end_s = due_s + seconds
    while due_s < end_s:
        due_s += chance.expovariate(rate_hz)
        while (left_s := due_s - time.perf_counter()) > 0:
            if select.select([0], [], [], left_s)[0]:
                now_s = time.perf_counter()
                late += [now_s - written_s for written_s in _read(0)]
        _tell(1, time.perf_counter())
    for each in late:
        _tell(1, -max(each, 1e-9))
    _tell(1, _ALL)
    while os.read(0, _TIME.size):  # what is still answered: the loop must not write to a process that has ended
        pass


if __name__ == "__main__":
    {"instance": _instance, "clients": _ask}[sys.argv[1]](*map(float, sys.argv[2:]))
