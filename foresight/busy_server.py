"""What requests cost a server that has something to do.

Rules:
 1. In a closed loop a server rests while its clients have their answers, and while a batch is executed elsewhere; after
    that everything costs more (caches, cores that sleep). Real traffic leaves fewer such rests. So a load at random
    times, at `SHARE` of what the largest batches can do and at most `MOST_HZ`, is measured, and played in virtual time
    with the profile, of which a part is scaled so that the play takes as much of the event loop.
 2. Where batches are executed elsewhere, no client alone lets the loop rest for less than a batch takes. So what
    requests and batches cost the loop that has not rested is scaled. What a request alone took beyond that comes of the
    rest that it followed: it takes what was measured, whatever the scale, and so do those after longer rests.
 3. Where batches are executed on the loop, a client alone leaves it no rest. So it is what shorter and longer rests
    cost that is scaled.
 4. What a front end has to do is scaled to what it was measured to do.
 5. Where as many batches may be executed as there are cores, these share them with the event loop and with clients. The
    play has that, and what they are slower on a server (`HostPoint.slowed`) has it, too. So that is scaled until the
    play's batches take as long as those of the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random

import numpy as np

from ..engine.config.model import ModelConfig
from ..engine.logs.request_log import LoggedRequest
from ..engine.options import ServerOptions
from ..engine.profiles import HostPoint, ModelProfile, RestedLoop
from ..simulations.planning import PlayedRun, may_be_crowded, most_cores, play
from .models import ForeseenModel
from .planned_models import ProfiledCosts, planned_model, served_factor

SHARE = 0.5
MOST_HZ = 500.0

_LEAST, _MOST = 0.4, 2.0
"""The scale."""
_HALVINGS = 6
_CLIENT_S = 0.00008
"""Processor time of the client, a request."""
_LEAST_REST_S = 0.0005
"""A loop that has slept for less is awake."""
_LEAST_CORES = 0.1
LEAST_SLOWED = 0.8


@dataclass(frozen=True, slots=True)
class BusyServer:
    """What was measured of one way to a server, with its loop at work and at rest.

    Attributes:
        log: the load of rule 1; empty if the server refused some of it, so that there is nothing to scale by.
        loop_s, front_s: processor seconds of the event loop and of the front end for all of it.
        alone_s: of the event loop, for a request alone, without the execution.
        rest_s: for which the loop had rested before.
        rested: what a request costs more after longer rests.
        sizes: how many of the load's batches had so many rows; all of them together took `executed_s`.
    """

    log: Sequence[LoggedRequest]
    loop_s: float
    front_s: float
    alone_s: float
    rest_s: float
    rested: Sequence[RestedLoop]
    sizes: Mapping[int, int] = field(default_factory=dict)
    executed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """One way in which requests come: its points, by size, whose costs are those of closed loops."""

    points: Sequence[HostPoint]
    busy: BusyServer


def settled(profile: ModelProfile, config: ModelConfig, way: MeasuredWay, options: ServerOptions) -> list[HostPoint]:
    """A way's points, with the costs of a server that has something to do.

    Args:
        profile: of the model, whose own points are of no meaning.
        config: of the model.
        options: of the server.
    """
    log = way.busy.log
    if not log:
        return scaled(way, 1.0)
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        if _played(profile, config, scaled(way, middle), log, options).loop_busy_s < way.busy.loop_s:
            low = middle
        else:
            high = middle
    points = slowed_as_measured(profile, config, scaled(way, (low * high) ** 0.5), way.busy, options)
    front_s = _played(profile, config, points, log, options).front_ends_busy_s
    by = min(max(_LEAST, way.busy.front_s / front_s), _MOST) if front_s > 0 else 1.0
    return [
        replace(point, front_request_s=by * point.front_request_s, front_turn_s=by * point.front_turn_s)
        for point in points
    ]


def slowed_as_measured(
    profile: ModelProfile, config: ModelConfig, points: Sequence[HostPoint], busy: BusyServer, options: ServerOptions
) -> list[HostPoint]:
    """The points, with batches that take as long in a play as they were measured to (rule 5)."""
    if not may_be_crowded(most_cores([planned_model(ForeseenModel(config, profile))]), profile.origin.cores):
        return list(points)
    run = _played(profile, config, points, busy.log, options)
    rows, took_s = run.batch_rows, run.batch_ended_s - run.batch_started_s
    played_s = {int(size): float(took_s[rows == size].mean()) for size in np.unique(rows)}
    sizes = list(busy.sizes)
    expected_s = float(np.interp(sizes, list(played_s), list(played_s.values())) @ np.array(list(busy.sizes.values())))
    by = busy.executed_s / expected_s if expected_s > 0 else 1.0
    return [replace(point, slowed=min(max(LEAST_SLOWED, by * point.slowed), _MOST)) for point in points]


def scaled(way: MeasuredWay, by: float) -> list[HostPoint]:
    """The points with other costs of the event loop (rules 2 and 3)."""
    small, busy = way.points[0], way.busy
    never = RestedLoop(0.0, 0.0, 0.0)
    if busy.rest_s < _LEAST_REST_S:
        curve = (never, *(replace(each, loop_s=by * each.loop_s) for each in busy.rested))
        return [replace(point, rested=curve) for point in way.points]
    more_s = busy.alone_s - by * (small.request_s + small.batch_s)
    after = [RestedLoop(busy.rest_s, 0.0, 0.0), *(each for each in busy.rested if each.rest_s > busy.rest_s)]
    loop_s = accumulate((max(0.0, more_s + each.loop_s) for each in after), max)
    curve = (never, *(replace(each, loop_s=its_s) for each, its_s in zip(after, loop_s, strict=True)))
    return [
        replace(point, request_s=by * point.request_s, batch_s=by * point.batch_s, rested=curve) for point in way.points
    ]


def _played(
    profile: ModelProfile,
    config: ModelConfig,
    points: Sequence[HostPoint],
    log: Sequence[LoggedRequest],
    options: ServerOptions,
) -> PlayedRun:
    """What comes of the load, by these costs: the mean ones, without the error of their measurement."""
    known = replace(profile, host=tuple(points))
    way, front_ends = points[0].way, points[0].front_ends
    model = planned_model(
        ForeseenModel(config, known), served_factor(known, way, front_ends > 0), config=config, way=way
    )
    client_cores = len(log) / max(log[-1].offset_s, 1e-3) * _CLIENT_S
    cores = max(_LEAST_CORES, profile.origin.cores - client_cores)
    costs = ProfiledCosts({config.name: known}, cores, way, Random(1), front_ends=front_ends, clients_here=True)
    return play([model], log, options, 1, costs=costs)
