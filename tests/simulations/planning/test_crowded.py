"""Who wakes up while others compute on all cores waits for one, in a planned run."""

from __future__ import annotations

import math

import pytest

from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.options import ServerOptions
from trireme.simulations.models import Profile, simple_model
from trireme.simulations.planning import ExecutionPlace, HostCosts, PlannedModel, play
from trireme.simulations.planning.cores import Cores

BATCH_S, LATE_S = 0.1, 0.003
SECOND_AT_S = 0.05
"""The first request is computed then."""


class CrowdedCosts(HostCosts):
    """A machine on which each that finds all cores taken waits for as long."""

    def __init__(self, cores: float, *, clients_here: bool = False) -> None:
        self.cores = cores
        self.clients_here = clients_here

    def crowded(self) -> float:
        return LATE_S


def model(instances: int, place: ExecutionPlace = ExecutionPlace.THREAD, cores: float = 1.0) -> PlannedModel:
    config = simple_model("m", Profile(0.0), instances=instances).config
    return PlannedModel(config, lambda _rows, _busy, _chance: BATCH_S, place, cores)


def admitted_late(planned: PlannedModel, costs: HostCosts) -> float:
    """The second of two requests, which comes while the first one is computed."""
    run = play([planned], [LoggedRequest(0.0, "m"), LoggedRequest(SECOND_AT_S, "m")], ServerOptions(), 1, costs=costs)
    return float(run.admitted_s[1]) - SECOND_AT_S


@pytest.mark.parametrize(
    ("planned", "cores", "late_s"),
    [
        pytest.param(model(2), 2.0, LATE_S, id="as many may compute as there are cores"),
        pytest.param(model(2), 1.9, LATE_S, id="of which clients take a part"),
        pytest.param(model(1), 1.0, LATE_S, id="a single core"),
        pytest.param(model(1), 2.0, 0.0, id="one core is always free"),
        pytest.param(model(2), 4.0, 0.0, id="two are"),
        pytest.param(model(8), 4.0, 0.0, id="one of eight computes on four cores"),
        pytest.param(model(2, cores=0.1), 2.0, 0.0, id="they only wait"),
        pytest.param(model(2, ExecutionPlace.DEVICE), 2.0, 0.0, id="they compute elsewhere"),
        pytest.param(model(2), math.inf, 0.0, id="there is no end of cores"),
    ],
)
def test_a_request_that_wakes_the_loop_is_heard_late(planned: PlannedModel, cores: float, late_s: float) -> None:
    assert admitted_late(planned, CrowdedCosts(cores)) == pytest.approx(late_s, abs=1e-9)


@pytest.mark.parametrize("clients_here", [False, True])
def test_clients_on_the_same_cores_hear_late_too(clients_here: bool) -> None:
    """The answer to the first request is read while the second one is computed."""
    costs = CrowdedCosts(2.0, clients_here=clients_here)
    run = play([model(2)], [LoggedRequest(0.0, "m"), LoggedRequest(SECOND_AT_S, "m")], ServerOptions(), 1, costs=costs)
    late_s = LATE_S * clients_here
    assert list(run.answered_s) == pytest.approx([BATCH_S + late_s, SECOND_AT_S + LATE_S + BATCH_S], abs=1e-9)


def test_short_batches_that_prove_it_are_computed_by_the_loop_itself() -> None:
    """So there are not as many beside it as cores."""
    heavy = model(1)
    config = simple_model("light", Profile(0.0), instances=4).config
    light = PlannedModel(config, lambda _rows, _busy, _chance: 0.0001, ExecutionPlace.PROVING)
    arrivals = [LoggedRequest(0.0, "m"), LoggedRequest(SECOND_AT_S, "m")]
    run = play([heavy, light], arrivals, ServerOptions(), 1, costs=CrowdedCosts(2.0))
    assert float(run.admitted_s[1]) == pytest.approx(SECOND_AT_S)


def test_all_but_one_of_many_cores_are_crowded() -> None:
    cores = Cores(8.0, most=8.0)
    for number in range(8):
        assert cores.crowded is (number >= 7)
        cores.begin(1.0, 1.0, lambda _now, _what: None, number)
