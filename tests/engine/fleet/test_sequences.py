"""Where sequences are (`engine.fleet.sequences`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest

from trireme.engine.fleet.router import FleetRouter
from trireme.engine.fleet.types import AttemptEnd, FleetRequest, FleetSettings, Refuse, ReplicaReport, SendTo

_FEW, _MANY = 10, 3_000


def knowing(sequences: int) -> FleetRouter:
    """A router that knows so many sequences at two replicas."""
    router = FleetRouter(FleetSettings(), Random(1))
    for name in "ab":
        router.join(name, -100.0)
        router.connected(name, -100.0)
        router.report(name, ReplicaReport("e", models={"m": {1: True}}), 0.0)
    router.tick(0.0)
    for sequence in range(1, sequences + 1):
        sent = router.place(FleetRequest("m", sequence=sequence, start=True), 0.0)
        assert isinstance(sent, SendTo)
        router.settle(sent, AttemptEnd.ANSWERED, 0.0)
    return router


def steps_of(act: Callable[[], Any]) -> int:
    """How many bytecodes of Python are executed."""
    steps = 0

    def watch(frame: FrameType, event: str, _what: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        act()
    finally:
        sys.settrace(before)
    return steps


def lose(router: FleetRouter, how: str, epoch: str = "another") -> None:
    if how == "lost":
        router.lost("a", 0.0)
    elif how == "left":
        router.leave("a", 0.0)
    else:
        router.report("a", ReplicaReport(epoch, models={"m": {1: True}}), 0.0)
    router.tick(0.0)


@pytest.mark.parametrize("how", ["lost", "left", "another process"])
def test_the_loss_of_a_replica_takes_as_many_steps_however_many_sequences_there_are(how: str) -> None:
    few, many = knowing(_FEW), knowing(_MANY)
    assert few.sequences_at("a") > 0
    assert many.sequences_at("a") > _MANY // 3
    taken = steps_of(lambda: lose(few, how))
    assert 0 < taken < 3_000
    assert steps_of(lambda: lose(many, how)) == taken


@pytest.mark.parametrize("how", ["lost", "another process"])
def test_each_sequence_finds_for_itself_that_it_is_lost(how: str) -> None:
    """Those of the other replica go on; one that is started anew counts again where it is, and is lost again."""
    router = knowing(100)
    at_b = router.sequences_at("b")
    lose(router, how)
    assert (router.sequences, router.statistics(0.0)["a"].sequences) == (100, 0)
    if how == "lost":
        router.connected("a", 0.0)
        router.report("a", ReplicaReport("e", models={"m": {1: True}}), 0.0)
    lost = []
    for sequence in range(1, 101):
        decision = router.place(FleetRequest("m", sequence=sequence), 0.0)
        if isinstance(decision, Refuse):
            lost.append(sequence)
        else:
            assert isinstance(decision, SendTo)
            assert decision.replica == "b"
            router.settle(decision, AttemptEnd.ANSWERED, 0.0)
    assert len(lost) == 100 - at_b
    again = [router.place(FleetRequest("m", sequence=sequence, start=True), 0.0) for sequence in lost]
    placed = [each.replica for each in again if isinstance(each, SendTo)]
    assert len(placed) == len(lost)
    assert router.sequences_at("a") == placed.count("a") > 0
    assert router.sequences_at("b") == at_b + placed.count("b")
    lose(router, how, "a third")
    assert router.sequences_at("a") == 0
    for sent in again:
        assert isinstance(sent, SendTo)
        router.settle(sent, AttemptEnd.LOST if sent.replica == "a" else AttemptEnd.ANSWERED, 0.0)
    assert router.sequences_at("a") == 0, "what was lost is not taken away once more"


def test_what_was_lost_is_forgotten_like_others() -> None:
    router = knowing(20)
    lose(router, "lost")
    for sequence in range(101, 131):
        sent = router.place(FleetRequest("m", sequence=sequence, start=True), 10_000.0)
        assert isinstance(sent, SendTo)
        router.settle(sent, AttemptEnd.ANSWERED, 10_000.0)
    assert router.sequences == router.sequences_at("b") == 30
    assert router.sequences_at("a") == 0
