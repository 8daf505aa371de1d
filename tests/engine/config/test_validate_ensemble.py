"""Every refusal of docs/reference/ensembles.md#configuration-errors, in its words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from model_configs import read_config

from trireme.engine.config import prepare_for_load
from trireme.engine.errors import InvalidArgumentError

IO = """
platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: 1 }
output { name: "B" data_type: TYPE_FP32 dims: 1 }
"""


def _step(*, model: str = "x", inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [
        *(f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()),
        *(f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()),
    ]
    return f'step {{ model_name: "{model}" {" ".join(maps)} }}'


def _steps(*steps: str) -> str:
    return f"ensemble_scheduling {{ {' '.join(steps)} }}"


A_TO_B = _step(inputs={"i": "A"}, outputs={"o": "B"})

REFUSED: list[tuple[str, str]] = [
    (f"{_steps(A_TO_B)} instance_group {{ }}", "instance group should not be specified for ensemble 'm'"),
    (f"{_steps(A_TO_B)} optimization {{ }}", "optimization should not be specified for ensemble 'm'"),
    (f"{_steps(A_TO_B)} model_warmup {{ }}", "model_warmup can not be specified for ensemble 'm'"),
    (_steps(), "must specify 'step' for ensemble 'm'"),
    (_steps("step { }"), "must specify 'model_name' in step 0 of ensemble 'm'"),
    (_steps(_step(inputs={}, outputs={"o": "B"})), "must specify 'input_map' in step 0 of ensemble 'm'"),
    (
        _steps(_step(inputs={"i": "A"}, outputs={"o": "C"}), _step(inputs={"i": "C"}, outputs={})),
        "must specify 'output_map' in step 1 of ensemble 'm'",
    ),
    (
        _steps(_step(inputs={"i": "A"}, outputs={"o": "B", "p": "B"})),
        "ensemble tensor 'B' can appear in an output map only once for ensemble 'm' step 0",
    ),
    (_steps(A_TO_B, A_TO_B), "ensemble tensor 'B' can appear in an output map only once for ensemble 'm' step 1"),
    (_steps(_step(inputs={"i": "Z"}, outputs={"o": "B"})), "ensemble input 'A' for ensemble m' is not used"),
    (_steps(_step(inputs={"i": "A"}, outputs={"o": "Z"})), "ensemble output 'B' for ensemble m' is not used"),
    (
        _steps(_step(inputs={"i": "A", "j": "Q"}, outputs={"o": "B"})),
        "output 'B' for ensemble 'm' is not written: at least one of its depending tensors, 'Q', is not connected",
    ),
    (_steps(_step(inputs={"i": "A", "j": "B"}, outputs={"o": "C"})), "output 'B' for ensemble 'm' is not written"),
    (_steps(_step(inputs={"i": "A"}, outputs={"o": "B", "u": "U"})), "ensemble tensor 'U' is unused in ensemble 'm'"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_ensembles_are_refused(make_model: Callable[..., Path], text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_config(make_model(IO + text))
    assert str(caught.value) == reason


def test_a_diamond_of_steps_is_accepted(make_model: Callable[..., Path]) -> None:
    diamond = _steps(
        _step(inputs={"x": "C", "y": "D"}, outputs={"o": "B"}),
        _step(inputs={"i": "A"}, outputs={"o": "C"}),
        _step(inputs={"i": "A"}, outputs={"o": "D"}),
    )
    config = prepare_for_load(read_config(make_model(IO + diamond)), None)
    assert config.has_ensemble_scheduling
    assert config.instance_group == ()
    assert not config.message.HasField("optimization")
