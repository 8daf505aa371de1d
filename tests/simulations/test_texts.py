"""Sums that are kept as texts."""

from __future__ import annotations

import numpy as np
import pytest

from trireme.simulations.plan import ModelPlan, Plan, RequestPlan, SequencesPlan
from trireme.simulations.planted import planted
from trireme.simulations.play import play
from trireme.simulations.texts import A_TEXT, read_texts, texts

MS = 1_000_000


def test_a_sum_is_read_from_its_text() -> None:
    sums = np.array([[0.0], [12.0], [65_535.0]], np.float32)
    assert read_texts(texts(sums)).tolist() == sums.tolist()
    assert len({len(each) for each in texts(sums).flat}) == 3
    assert read_texts(np.array([b""], object)).tolist() == [0]
    assert read_texts(sums) is sums


def test_a_text_that_is_cut_off_is_noticed() -> None:
    with pytest.raises(ValueError, match="not what was kept"):
        read_texts(np.array([b"12.0 ==="], object))


@pytest.mark.parametrize("same_buffer", [False, True])
@pytest.mark.parametrize("bug", ["", "text-not-written"])
def test_what_a_sequence_keeps_is_found_again(same_buffer: bool, bug: str) -> None:
    sequences = SequencesPlan(sums=True, same_buffer=same_buffer, texts=True)
    requests = tuple(
        RequestPlan(number, "m", number * 20 * MS, sequence=1 + number % 2, start=number < 3) for number in range(1, 9)
    )
    plan = Plan(1, (ModelPlan("m", sequences=sequences),), requests, calm_ns=MS)
    with planted(bug):
        outcome = play(plan)
    assert (outcome.violation is not None) == (bool(bug) and same_buffer)
    assert bug or outcome.counts[A_TEXT] == len(requests)
