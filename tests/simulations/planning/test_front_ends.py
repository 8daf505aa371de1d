"""Front ends in processes of their own, in planned runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.options import ServerOptions
from trireme.simulations.models import Profile, simple_model
from trireme.simulations.planning import ClosedLoop, ExecutionPlace, HostCosts, PlannedModel, play
from trireme.simulations.planning.front_ends import MOST_OF_A_TURN

OPTIONS = ServerOptions()


class Fronted(HostCosts):
    """Each piece of work has its own price, in ms; cores are enough for all."""

    def __init__(self, front_ends: int = 1, cores: float = 64.0) -> None:
        self.front_ends = front_ends
        self.cores = cores
        self.heard: list[int] = []

    def wake(self, events: int, rested_s: float) -> float:
        self.heard.append(events)
        return 0.0

    def admit(self, request: LoggedRequest) -> float:
        return 0.001

    def answer(self, model: PlannedModel, rows: int, well: bool) -> float:
        return 0.0005

    def front_turn(self) -> float:
        return 0.0002

    def front_in(self, request: LoggedRequest) -> float:
        return 0.003

    def front_out(self, model: PlannedModel, rows: int, well: bool) -> float:
        return 0.004


def planned(name: str = "m", *, instances: int = 1, place: ExecutionPlace = ExecutionPlace.THREAD) -> PlannedModel:
    config = simple_model(name, Profile(0.0), instances=instances).config
    return PlannedModel(config, lambda _rows, _busy, _chance: 0.010, place)


def at(*times_s: float, model: str = "m") -> list[LoggedRequest]:
    return [LoggedRequest(time_s, model) for time_s in times_s]


def test_a_front_end_reads_before_the_loop_hears_and_writes_what_it_has_answered() -> None:
    run = play([planned()], at(1.0), OPTIONS, 1, costs=Fronted())
    assert run.admitted_s == pytest.approx([1.0 + 0.0032 + 0.001])
    assert run.answered_s == pytest.approx([1.0 + 0.0032 + 0.001 + 0.010 + 0.0005 + 0.0042])
    assert run.loop_busy_s == pytest.approx(0.0015)
    assert run.front_ends_busy_s == pytest.approx(0.0074)
    assert run.cores_busy_s == pytest.approx(0.010 + 0.0074)


def test_what_comes_while_a_front_end_works_is_done_in_one_turn_and_handed_over_together() -> None:
    costs = Fronted()
    run = play([planned(instances=3)], at(1.0, 1.001, 1.002), OPTIONS, 1, costs=costs)
    assert costs.heard[:2] == [1, 2]
    assert run.admitted_s == pytest.approx([1.0042, 1.0032 + 0.0062 + 0.001, 1.0032 + 0.0062 + 0.002])


def test_front_ends_share_the_work() -> None:
    """A hundred requests at once keep one busy for 0.7 s, and two for half of that; the loop's part stays."""
    models, log = [planned(instances=100)], at(*[0.0] * 100)
    one, two = (play(models, log, OPTIONS, 1, costs=Fronted(count)) for count in (1, 2))
    assert one.front_ends_busy_s == pytest.approx(0.7, rel=0.01)
    assert two.front_ends_busy_s == pytest.approx(0.35, rel=0.02)
    assert one.loop_busy_s == two.loop_busy_s == pytest.approx(0.15)
    assert one.ended_s > 0.7 > two.ended_s
    assert len(one) == len(two) == 100
    assert one.refused() == two.refused() == Counter()


def test_a_turn_takes_only_so_many() -> None:
    """So that the loop has something to do before all has been read."""
    run = play([planned(place=ExecutionPlace.DEVICE)], at(*[0.0] * (2 * MOST_OF_A_TURN)), OPTIONS, 1, costs=Fronted())
    turn_s = MOST_OF_A_TURN * 0.003 + 0.0002
    assert run.admitted_s[0] == pytest.approx(0.0002 + 0.003 + 0.001)  # which was alone there
    assert run.admitted_s[MOST_OF_A_TURN] == pytest.approx(0.0032 + turn_s + 0.001 * MOST_OF_A_TURN)
    assert run.admitted_s[MOST_OF_A_TURN + 1] > 0.0032 + 2 * turn_s - 0.003


def test_front_ends_compete_for_cores() -> None:
    """On one core a request that is computed waits for a front end that reads another; on two it does not."""
    models = [planned("a"), planned("b", place=ExecutionPlace.DEVICE)]
    log = [LoggedRequest(0.0, "a"), LoggedRequest(0.0072, "b")]  # the first has 7 of 10 ms to do
    for cores, ended_s in ((1.0, 0.0042 + 0.010 + 0.0032 + 0.001), (2.0, 0.0042 + 0.010)):
        run = play(models, log, OPTIONS, 1, costs=Fronted(1, cores))
        assert run.batch_ended_s[0] == pytest.approx(ended_s)


def test_the_loop_and_a_front_end_have_one_core_in_turns() -> None:
    """The second request is read while the loop takes the first in."""
    model = planned(place=ExecutionPlace.DEVICE)
    run = play([model], at(0.0, 0.001), OPTIONS, 1, costs=Fronted(cores=1.0))
    # From 3.2 ms on the loop has 1 ms to do and the front end 3.2: half a core each until 5.2 ms.
    assert run.admitted_s[0] == pytest.approx(0.0052)
    assert run.admitted_s[1] == pytest.approx(0.0052 + 0.0022 + 0.001)


def test_closed_loops_wait_for_what_a_front_end_writes() -> None:
    loop = ClosedLoop(2, 6, lambda _number: LoggedRequest(0.0, "m"), lambda _number: 0.0)
    run = play([planned(instances=2)], loop.first, OPTIONS, 1, costs=Fronted(), then=loop.then)
    assert len(run) == 6
    assert sorted(run.sent_s[2:]) == sorted(run.answered_s[:4])
    assert not run.refused()


def test_what_is_refused_goes_the_same_way() -> None:
    """And what has to wait for the server's budget is read by then."""
    log = [*at(0.0), *at(0.0, model="unknown"), *at(0.0, model="other")]
    options = replace(OPTIONS, max_inflight_requests=1)
    run = play([planned(), planned("other")], log, options, 1, costs=Fronted())
    assert run.refused() == Counter(unknown_model=1)
    assert run.model.tolist() == [0, -1, 1]
    # The second turn reads two, the loop takes both in; the budget is free when the first is answered.
    assert run.answered_s[0] == pytest.approx(0.0032 + 0.001 + 0.010 + 0.0005 + 0.0042, abs=0.0021)
    assert run.answered_s[2] > run.answered_s[0]


def test_a_sequence_stays_with_its_front_end_and_in_order() -> None:
    """One that went from one to the other would overtake itself."""

    class Uneven(Fronted):
        def front_in(self, request: LoggedRequest) -> float:
            return 0.050 if request.start else 0.0

    log = [LoggedRequest(at * 0.001, "m", sequence=number, start=at == 0) for at in range(10) for number in (1, 2, 3)]
    run = play([planned(instances=40)], log, OPTIONS, 1, costs=Uneven(8))
    for number in range(3):
        begun = run.admitted_s[number::3].tolist()
        assert begun == sorted(begun)
        assert begun[1] > 0.050


def test_one_seed_gives_one_run() -> None:
    log = at(*[each / 300 for each in range(200)])
    runs = [play([planned(instances=8)], log, OPTIONS, seed, costs=Fronted(3)) for seed in (1, 1, 2)]
    assert runs[0].answered_s.tobytes() == runs[1].answered_s.tobytes() != runs[2].answered_s.tobytes()


def test_what_a_front_ends_cost_raises_ends_the_run() -> None:
    class Broken(Fronted):
        def front_in(self, request: LoggedRequest) -> float:
            raise KeyError("front_in")

    with pytest.raises(KeyError, match="front_in"):
        play([planned()], at(0.0, 0.1), OPTIONS, 1, costs=Broken())
