"""What answers of generated text cost a server, as worked out of what it has logged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from generating_profiles import STEP_S, steps_of, text

from trireme.engine.logs.request_log import LoggedResult
from trireme.foresight.step_costs import _held_up

TEXTS, ANSWER_S = 8, 1e-4


@pytest.mark.parametrize(
    ("between_us", "part"),
    [
        pytest.param(1e6 * STEP_S, 0.0, id="steps take what they take alone"),
        pytest.param(1e6 * (STEP_S + TEXTS * ANSWER_S / 2), 0.5, id="half of what answers take"),
        pytest.param(1e6 * (STEP_S + 100 * TEXTS * ANSWER_S), 3.0, id="never more than three times of it"),
    ],
)
def test_how_much_of_the_loops_work_holds_up_steps(between_us: float, part: float) -> None:
    result = LoggedResult(1e6, between_us=f"{between_us}x31", step_pieces=TEXTS * 32, step_share=32.0)
    served: Any = SimpleNamespace(prompt=16, new=32, generation=steps_of())
    found = _held_up(served, [text(0.0, 16, 32, result=result)], ANSWER_S)
    assert found == pytest.approx(part, abs=1e-9)
    assert _held_up(served, [], ANSWER_S) == 0.0
