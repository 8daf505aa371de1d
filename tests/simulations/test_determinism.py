"""The canary for trio's private switch: in a process that hypothesis has not touched."""

from __future__ import annotations

import json

import pytest
import trio

from trireme.simulations.determinism import UnknownTrioError, deterministic_scheduling

CANARY = """
import json, sys
import trio
from trireme.simulations.determinism import deterministic_scheduling

private = trio._core._run

def order():
    turns = []
    async def take_turns(number):
        for _ in range(3):
            turns.append(number)
            await trio.lowlevel.checkpoint()
    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(take_turns, number)
    trio.run(main)
    return turns

def seeded(seed):
    with deterministic_scheduling(seed):
        return order()

switch_before, state_before = private._ALLOW_DETERMINISTIC_SCHEDULING, private._r.getstate()
seeds = [seeded(seed) for seed in (1, 2, 3, 1, 2, 3)]
with deterministic_scheduling(4):
    switch_within = private._ALLOW_DETERMINISTIC_SCHEDULING
try:
    with deterministic_scheduling(5):
        raise KeyError
except KeyError:
    pass
switch_after, restored = private._ALLOW_DETERMINISTIC_SCHEDULING, private._r.getstate() == state_before
print(json.dumps({
    "hypothesis": "hypothesis" in sys.modules,
    "switch": [switch_before, switch_within, switch_after],
    "restored": restored,
    "seeds": seeds,
    "unseeded": [order() for _ in range(20)],
}))
"""


def test_task_order_is_a_function_of_the_seed_within_the_block_and_of_chance_again_after_it(run_python) -> None:
    seen = json.loads(run_python("-c", CANARY))
    assert not seen["hypothesis"], "the canary must live where the switch is untouched"
    assert seen["switch"] == [False, True, False]
    assert seen["restored"], "trio's generator goes on where it was, after an exception too"
    assert seen["seeds"][:3] == seen["seeds"][3:]
    assert len({tuple(turns) for turns in seen["seeds"]}) == 3
    assert len({tuple(turns) for turns in seen["unseeded"]}) > 1


def test_two_processes_agree_on_the_order(run_python) -> None:
    first, second = (json.loads(run_python("-c", CANARY, hash_seed=seed))["seeds"] for seed in (1, 2))
    assert first == second


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_without_the_switch_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(trio._core._run, name)
    with pytest.raises(UnknownTrioError, match=rf"trio {trio.__version__} has no"), deterministic_scheduling(1):
        pytest.fail("entered")
