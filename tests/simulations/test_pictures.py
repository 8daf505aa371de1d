"""The four pictures of how Triton executes models concurrently, and two of what streams are good for, played by the
real actors.

Each is held to exact virtual times, whatever the seed, and to a timeline that stands in ``docs/simulations.md`` too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.simulations.events import (
    BatchSealed,
    ExecutionEnded,
    ExecutionStarted,
    KernelEnded,
    KernelStarted,
    RequestAnswered,
)
from trireme.simulations.history import History
from trireme.simulations.scenarios import SCENARIOS
from trireme.simulations.timeline import draw_timeline
from trireme.simulations.world import run_world

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulations.md"
MS = 1_000_000
SEEDS = (1, 2, 3, 4, 5)

TWO_MODELS = """\
one column is 5 ms
               0         50        100 ms
               |         |         |
model0 queue   ....................
model0_0       [1=================]
model1 queue   ....................
model1_0       [2=================]
"""

ONE_INSTANCE = """\
one column is 5 ms
               0         50        100       150       200 ms
               |         |         |         |         |
model0 queue   11111111111111111111....................
model0_0       [1=================][2=================]
"""

THREE_INSTANCES = """\
one column is 5 ms
               0         50        100       150       200 ms
               |         |         |         |         |
model1 queue   11111111111111111111....................
model1_0       [3=================]....................
model1_1       [1=================]....................
model1_2       [2=================][4=================]
"""

STREAMS = """\
one column is 5 ms
                           0         50        100       150 ms
                           |         |         |         |
model0 queue               ..............................
model0_0                   [3===========================]
model0_1                   [1=========================]..
model0_2                   [2=======================]....
gpu0 stream 0 (model0_2)   [][k1]..[k2]..[k3]..[k4][]....
gpu0 stream 1 (model0_1)   ..[][k1]..[k2]..[k3]..[k4][]..
gpu0 stream 2 (model0_0)   ....[][k1]..[k2]..[k3]..[k4][]
"""

OVERLAP = """\
one column is 5 ms
                         0         50        100 ms
                         |         |         |
model0 queue             44444444333322221111........
model0_0                 [1=====][3=====][5=====]....
model0_0, beside         [2=========][4=====][6=====]
gpu0 model0_0 copy in    [][]....[]..[]..[]..[]......
gpu0 model0_0 compute    ..[k=][k=][k=][k=][k=][k=]..
gpu0 model0_0 copy out   ......[]..[]..[]..[]..[]..[]
"""

NO_OVERLAP = """\
one column is 5 ms
                         0         50        100       150       200 ms
                         |         |         |         |         |
model0 queue             5555555544444444333333332222222211111111........
model0_0                 [1=====][2=====][3=====][4=====][5=====][6=====]
gpu0 model0_0 copy in    []......[]......[]......[]......[]......[]......
gpu0 model0_0 compute    ..[k=]....[k=]....[k=]....[k=]....[k=]....[k=]..
gpu0 model0_0 copy out   ......[]......[]......[]......[]......[]......[]
"""

TIMELINES = {
    "two-models": TWO_MODELS,
    "one-instance": ONE_INSTANCE,
    "three-instances": THREE_INSTANCES,
    "streams": STREAMS,
    "overlap": OVERLAP,
    "no-overlap": NO_OVERLAP,
}


def executions(history: History) -> dict[int, tuple[str, int, int]]:
    """Of each request: the instance that executed it (alone), from when to when, in milliseconds."""
    started = {event.batch: event.at_ns for event in history.of(ExecutionStarted)}
    ended = {event.batch: event.at_ns for event in history.of(ExecutionEnded)}
    answered = {event.request: event.at_ns for event in history.of(RequestAnswered)}
    executed = {}
    for batch in history.of(BatchSealed):
        (request,) = batch.requests
        assert answered[request] == ended[batch.batch], "an answer goes out when its batch is over"
        executed[request] = (batch.instance, started[batch.batch] / MS, ended[batch.batch] / MS)
    return executed


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_to_two_models_are_executed_in_parallel(seed: int) -> None:
    assert executions(run_world(SCENARIOS["two-models"], seed)) == {
        1: ("model0_0", 0, 100),
        2: ("model1_0", 0, 100),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_two_requests_to_one_instance_are_executed_one_after_the_other(seed: int) -> None:
    assert executions(run_world(SCENARIOS["one-instance"], seed)) == {
        1: ("model0_0", 0, 100),
        2: ("model0_0", 100, 200),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_three_instances_execute_three_requests_in_parallel_and_the_fourth_waits(seed: int) -> None:
    executed = executions(run_world(SCENARIOS["three-instances"], seed))
    assert {executed[request][0] for request in (1, 2, 3)} == {"model1_0", "model1_1", "model1_2"}
    assert {executed[request][1:] for request in (1, 2, 3)} == {(0, 100)}
    assert executed[4][1:] == (100, 200)


@pytest.mark.parametrize("seed", SEEDS)
def test_instances_feed_their_streams_and_the_gpu_interleaves_them(seed: int) -> None:
    """Two units: two kernels run at once, of three streams in turn, so each kernel waits for one turn of the others."""
    history = run_world(SCENARIOS["streams"], seed)
    starts = {(event.stream, event.kernel): event.at_ns // MS for event in history.of(KernelStarted)}
    ends = {(event.stream, event.kernel): event.at_ns // MS for event in history.of(KernelEnded)}
    names = ("in", "k1", "k2", "k3", "k4", "out")
    spans = {stream: [(starts[stream, name], ends[stream, name]) for name in names] for stream in range(3)}
    assert spans == {
        0: [(0, 10), (10, 30), (40, 60), (70, 90), (100, 120), (120, 130)],
        1: [(10, 20), (20, 40), (50, 70), (80, 100), (110, 130), (130, 140)],
        2: [(20, 30), (30, 50), (60, 80), (90, 110), (120, 140), (140, 150)],
    }
    kernels = [event for event in history.of(KernelStarted) if event.engine == "compute"]
    assert [event.stream for event in kernels] == [0, 1, 2] * 4
    instance = {batch.batch: batch.instance for batch in history.of(BatchSealed)}
    owners = {(event.stream, instance[event.batch]) for event in history.of(KernelStarted)}
    assert {owner for _, owner in owners} == {"model0_0", "model0_1", "model0_2"}
    assert len(owners) == 3, "each instance has a stream of its own"


@pytest.mark.parametrize("name", TIMELINES)
def test_a_person_can_read_it(name: str) -> None:
    assert draw_timeline(run_world(SCENARIOS[name], 1), 50 if name == "no-overlap" else 40) == TIMELINES[name]


@pytest.mark.parametrize("name", TIMELINES)
def test_the_documentation_shows_it(name: str) -> None:
    assert TIMELINES[name] in DOCUMENT.read_text(encoding="utf-8")


def test_the_documentation_of_gpus_shows_what_streams_are_good_for() -> None:
    assert OVERLAP in DOCUMENT.with_name("gpu.md").read_text(encoding="utf-8")
