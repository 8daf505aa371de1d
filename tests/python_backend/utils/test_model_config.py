"""`ModelConfig` adds what a configuration leaves open, and refuses what contradicts it, in Triton's words.

The texts were recorded from Triton's own class.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trireme.python_backend.child.utils.triton_python_backend_utils import ModelConfig

BASE: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 4,
    "input": [
        {"name": "A", "data_type": "TYPE_FP32", "dims": [4], "optional": False},
        {"name": "I", "data_type": "TYPE_INVALID", "dims": []},
        {"name": "O", "data_type": "TYPE_FP32", "dims": [4]},
    ],
    "output": [{"name": "A", "data_type": "TYPE_FP32", "dims": [4]}],
}
NEW = {"name": "N", "data_type": "TYPE_FP32", "dims": [4]}
WHERE = "in auto-complete-config function for model 'm'"


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(json.dumps(BASE | changes))


def refusal(made: ModelConfig, call: Callable[[], None]) -> str:
    """The text of the error; nothing has changed."""
    before = json.dumps(made.as_dict())
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    assert json.dumps(made.as_dict()) == before
    return str(caught.value)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_new_entries_are_added(kind: str) -> None:
    made = config()
    getattr(made, f"add_{kind}")(NEW)
    assert made.as_dict()[kind] == [*BASE[kind], NEW]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_entries_that_agree_change_nothing(kind: str) -> None:
    made = config()
    getattr(made, f"add_{kind}")({"name": "A", "data_type": "TYPE_FP32", "dims": [4]})
    assert made.as_dict() == BASE


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_single_number_is_one_dimension(kind: str) -> None:
    """For a new entry and for one that the configuration has, as Triton loads such models, too."""
    made = config()
    for name in ("N", "A"):
        getattr(made, f"add_{kind}")({"name": name, "data_type": "TYPE_FP32", "dims": 4})
    assert {entry["name"]: entry["dims"] for entry in made.as_dict()[kind]}.items() >= {"N": [4], "A": [4]}.items()


def test_what_is_open_is_filled_in() -> None:
    made = config()
    made.add_input({"name": "I", "data_type": "TYPE_INT8", "dims": [-1, 2], "optional": True})
    made.add_input({"name": "O", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
    assert made.as_dict()["input"][1:] == [
        {"name": "I", "data_type": "TYPE_INT8", "dims": [-1, 2], "optional": True},
        {"name": "O", "data_type": "TYPE_FP32", "dims": [4], "optional": True},
    ]


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"data_type": "TYPE_INT8", "dims": [9]},
            (
                "unable to load model 'm', configuration expects datatype TYPE_FP32 for {kind} 'A', "
                "model provides TYPE_INT8"
            ),
        ),
        (
            {"dims": [5, -1]},
            "model 'm', tensor 'A': the model expects dims [5, -1] but the model configuration specifies dims [4]",
        ),
    ],
)
def test_contradictions_are_refused(kind: str, change: dict[str, Any], text: str) -> None:
    made = config()
    given = {"name": "A", "data_type": "TYPE_FP32", "dims": [4]} | change
    assert refusal(made, lambda: getattr(made, f"add_{kind}")(given)) == text.format(kind=kind)


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "{kind} {where} is missing 'name' property."),
        ({"name": "N", "dims": [4]}, "{kind} 'N' {where} is missing 'data_type' property."),
        ({"name": "N", "data_type": "TYPE_FP32"}, "{kind} 'N' {where} is missing 'dims' property."),
    ],
)
def test_incomplete_entries_are_refused(kind: str, given: dict[str, Any], text: str) -> None:
    made = config()
    assert refusal(made, lambda: getattr(made, f"add_{kind}")(given)) == text.format(kind=kind, where=WHERE)


def test_other_properties_are_refused() -> None:
    made = config()
    assert refusal(made, lambda: made.add_input(NEW | {"x": 1})) == (
        f"input 'N' {WHERE} contains property other than 'name', 'data_type', 'dims' and 'optional'."
    )
    assert refusal(made, lambda: made.add_output(NEW | {"optional": True})) == (
        f"output 'N' {WHERE} contains property other than 'name', 'data_type' and 'dims'."
    )


def test_optional_must_agree() -> None:
    made = config()
    given = {"name": "A", "data_type": "TYPE_FP32", "dims": [4], "optional": True}
    assert refusal(made, lambda: made.add_input(given)) == (
        "model 'm', tensor 'A': the model expects optional True but the model configuration specifies optional False"
    )


def test_max_batch_size_is_never_made_smaller() -> None:
    made = config()
    made.set_max_batch_size(8)
    assert made.as_dict()["max_batch_size"] == 8
    assert refusal(made, lambda: made.set_max_batch_size(3)) == (
        "configuration specified max_batch_size 8, but in auto-complete-config function for model 'm' specified "
        "max_batch_size 3"
    )


def test_dynamic_batching_is_added_unless_it_is_there() -> None:
    made = config()
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {}
    made = config(dynamic_batching={"preferred_batch_size": [4]})
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}


@pytest.mark.parametrize("other", ["sequence_batching", "ensemble_scheduling"])
def test_other_schedulers_are_not_replaced(other: str) -> None:
    made = config(**{other: {}})
    assert refusal(made, made.set_dynamic_batching) == (
        f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for model 'm' "
        "tries to set scheduling_choice as 'dynamic_batching'"
    )


def test_transaction_policy_is_set_once() -> None:
    made = config()
    made.set_model_transaction_policy({"decoupled": True})
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict()["model_transaction_policy"] == {"decoupled": True}
    assert refusal(made, lambda: made.set_model_transaction_policy({"decoupled": False})) == (
        "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'True'."
    )
    assert refusal(made, lambda: made.set_model_transaction_policy({"x": True})) == (
        f"model transaction property {WHERE} contains property other than 'decoupled'."
    )
