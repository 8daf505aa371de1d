"""What an event loop is at: its tasks' steps, its passes, and the garbage collector meanwhile."""

from __future__ import annotations

import resource
import time
from typing import NamedTuple

import trio

_LONG_S = 0.0002


class Step(NamedTuple):
    """One step of a task.

    Attributes:
        system_ms, faults: spent in the system, and pages given to it, of one that took much CPU time.
    """

    began_s: float
    ended_s: float
    cpu_ms: float = 0.0
    task: str = ""
    system_ms: float = 0.0
    faults: int = 0

    @property
    def clock_ms(self) -> float:
        return (self.ended_s - self.began_s) * 1e3


class Steps(trio.abc.Instrument):
    """The longer steps of all tasks of the event loop, and what the loop does between two of them.

    Attributes:
        steps: by CPU time or by the clock.
        passes: of the loop, without the time that it waits for something to do.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.steps: list[Step] = []
        self.passes: list[Step] = []
        self._used = resource.getrusage(resource.RUSAGE_THREAD)
        self._cpu_s = time.thread_time()
        self._clock_s = self._woke_s = time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        now_s = time.perf_counter()
        if now_s > self._woke_s + _LONG_S:
            self.passes.append(Step(self._woke_s, now_s))

    def after_io_wait(self, timeout: float) -> None:
        self._woke_s = time.perf_counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._used = resource.getrusage(resource.RUSAGE_THREAD)
        self._cpu_s, self._clock_s = time.thread_time(), time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        cpu_s, now_s = time.thread_time() - self._cpu_s, time.perf_counter()
        if now_s > self._clock_s + _LONG_S:
            used = resource.getrusage(resource.RUSAGE_THREAD)
            system_ms = (used.ru_stime - self._used.ru_stime) * 1e3
            faults = used.ru_minflt - self._used.ru_minflt
            self.steps.append(Step(self._clock_s, now_s, cpu_s * 1e3, task.name, system_ms, faults))


class Collections:
    """Of the garbage collector: the longest there was, in ms by the clock."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._began_s = 0.0

    def __call__(self, phase: str, _of: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - self._began_s) * 1e3)
