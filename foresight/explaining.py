"""Where the time of requests goes, what limits a run, and what a change of it would bring.

Rules:
 1. A request's time in the queue is *wait for an instance* while all instances of its model execute, and *delay* while
    one is free: then the scheduler holds the request back, for a batch to grow, or to keep an order or a limit.
 2. Of a batch's execution, gathering inputs and scattering outputs take the parts that the profile has measured; in a
    real run they are those of the log.
 3. What is left is the event loop, front ends, the ways between it and clients, and handing batches to threads or
    processes.
 4. What is busy for at least `BUSY` of the time limits the run. If nothing is, the traffic does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..engine.logs.request_log import LoggedRequest
from ..engine.profiles import ModelProfile
from ..simulations.planning import PlayedRun
from .summary import RunSummary

BUSY = 0.85
_SLOWEST = 0.99

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Of the requests to one model that were executed and answered well: seconds by phase.

    Attributes:
        mean: of all of them.
        slow: of the slowest hundredth, at least of one request.
    """

    requests: int
    mean: Mapping[str, float]
    slow: Mapping[str, float]


def time_shares(phases: Mapping[str, Column]) -> TimeShares:
    """Of columns with an entry a request."""
    total = np.sum([*phases.values()], axis=0) if phases else np.empty(0)
    if not len(total):
        return TimeShares(0, {}, {})
    slow = total >= np.quantile(total, _SLOWEST)
    means = {name: float(column.mean()) for name, column in phases.items()}
    return TimeShares(len(total), means, {name: float(column[slow].mean()) for name, column in phases.items()})


def all_busy_until(begun_s: Column, ended_s: Column, instances: int) -> tuple[Column, Column]:
    """For how long all instances have executed up to a time: the times at which that changes its rate, ascending, and
    the seconds at each; in between it is linear (`np.interp`)."""
    times = np.concatenate([begun_s, ended_s])
    steps = np.concatenate([np.ones(len(begun_s)), -np.ones(len(ended_s))])
    order = np.lexsort((steps, times))  # of one instance, a batch ends before the next one begins
    times, busy = times[order], np.cumsum(steps[order])
    if not len(times):
        return np.zeros(1), np.zeros(1)
    passed = np.diff(times) * (busy[:-1] >= instances)
    return times, np.concatenate([[0.0], np.cumsum(passed)])


def _split_queue(queued_s: Column, begun_s: Column, busy: tuple[Column, Column]) -> dict[str, Column]:
    """Rule 1."""
    waited = np.interp(begun_s, *busy) - np.interp(queued_s, *busy)
    return {"delay": np.maximum(0.0, begun_s - queued_s - waited), "wait for an instance": waited}


def planned_phases(run: PlayedRun, model: str, instances: int, profile: ModelProfile) -> dict[str, Column]:
    """By phase, of a run in virtual time. Empty columns for a model that was asked through an ensemble only."""
    index = run.models.index(model)
    wanted = run.well(model) & (run.batch >= 0)
    batch = run.batch[wanted]
    its = run.batch_model == index
    busy = all_busy_until(run.batch_begun_s[its], run.batch_heard_s[its], instances)
    begun, started, ended = (each[batch] for each in (run.batch_begun_s, run.batch_started_s, run.batch_ended_s))
    took = ended - started
    part_in, part_out = _copy_parts(profile)
    inner = {"input": took * part_in, "compute": took * (1 - part_in - part_out), "output": took * part_out}
    outside = run.admitted_s[wanted] - run.sent_s[wanted] + started - begun + run.answered_s[wanted] - ended
    return {**_split_queue(run.admitted_s[wanted], begun, busy), **inner, "loop and ways": outside}


def _copy_parts(profile: ModelProfile) -> tuple[float, float]:
    """Of a batch's time, what gathering inputs and scattering outputs take."""
    points = [point for point in profile.service if point.side_by_side == 1]
    whole = sum(point.time.mean_s for point in points)
    if whole <= 0:
        return 0.0, 0.0
    part_in, part_out = (sum(each) / whole for each in zip(*((p.copy_in_s, p.copy_out_s) for p in points), strict=True))
    return min(part_in, 0.5), min(part_out, 0.5)


def real_phases(log: Sequence[LoggedRequest], model: str, instances: int = 0) -> dict[str, Column]:
    """By phase, of a real run's log with results.

    Args:
        instances: of the model; 0 for as many as the log names.
    """
    results = [
        (each.offset_s, each.result)
        for each in log
        if each.model == model and each.result is not None and not each.result.outcome and each.result.batch
    ]
    rows = [
        (at_s, r.total_us / 1e6, r.queue_us / 1e6, r.input_us / 1e6, r.infer_us / 1e6, r.output_us / 1e6)
        for at_s, r in results
    ]
    at_s, total, queue, inputs, infer, outputs = np.array(rows, np.float64).reshape(-1, 6).T
    begun = at_s + queue
    ended = begun + inputs + infer + outputs
    names = sorted({result.instance for _, result in results})
    which = np.array([names.index(result.instance) for _, result in results], np.int64)
    executions = np.unique(np.stack([which.astype(np.float64), begun.round(5), ended.round(5)]), axis=1)
    busy = all_busy_until(executions[1], executions[2], instances or max(1, len(names)))
    outside = np.maximum(0.0, total - (ended - at_s))
    phases = {"input": inputs, "compute": infer, "output": outputs, "loop and ways": outside}
    return {**_split_queue(at_s, begun, busy), **phases}


def limits(summary: RunSummary, cores: float) -> Iterator[str]:
    """What limits a run, most limiting first, in words (rule 4)."""
    found = [(summary.loop, "the event loop"), (summary.front_ends, "the front ends")]
    if cores < float("inf"):
        found.append((summary.cores / cores, f"the {cores:g} cores"))
    found += [(part, f"the instances of {name}") for name, part in summary.instances.items()]
    known = sorted(((part, what) for part, what in found if part == part), reverse=True)
    for part, what in known:
        if part >= BUSY:
            yield f"{what}: busy {part:.0%} of the time"
    if not any(part >= BUSY for part, _ in known):
        told = f"; the busiest, {known[0][1]}, {known[0][0]:.0%} of the time" if known else ""
        yield f"nothing but the traffic{told}"
