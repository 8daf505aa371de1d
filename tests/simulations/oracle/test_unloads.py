"""The rule for what goes with an ensemble."""

from __future__ import annotations

import pytest

from trireme.simulations.events import ChangeAsked, ChangeDone, Event, ModelStateChanged
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.unloads import MembersGo
from trireme.simulations.plan import Change, ModelPlan, StepPlan

MODELS = (
    ModelPlan("a"),
    ModelPlan("b"),
    ModelPlan("both", steps=(StepPlan("a"), StepPlan("b"))),
    ModelPlan("outer", steps=(StepPlan("both"),)),
    ModelPlan("other", steps=(StepPlan("b"),)),
)


def complaints(named: tuple[str, ...], *changes: tuple[Change, str, tuple[str, ...]]) -> list[str]:
    """What is found after these changes, with each of which these models went."""
    found: list[str] = []
    state = WorldState([model.config() for model in MODELS])
    rule = MembersGo(lambda violation: found.append(violation.text), state, named)

    def tell(event: Event) -> None:
        for handlers in (rule.handlers(), state.handlers()):
            handlers.get(type(event), lambda _event: None)(event)

    for model in MODELS:
        tell(ModelStateChanged(0, model.name, 1, "READY"))
    for change, model, gone in changes:
        tell(ChangeAsked(1, model, change.value))
        for each in gone:
            tell(ModelStateChanged(1, each, 1, "UNLOADING"))
        tell(ChangeDone(1, model, change.value, ""))
    return found


ALL = Change.UNLOAD_ALL


@pytest.mark.parametrize(
    ("named", "gone", "wrong"),
    [
        (("outer", "other"), ("outer", "both", "a"), []),
        (("outer", "other", "a"), ("outer", "both"), []),
        (("outer", "other", "both"), ("outer",), []),
        (("outer", "other"), ("outer", "both"), ["'a' is ready"]),
        (("outer", "other"), ("outer", "both", "a", "b"), ["'b' is not ready"]),
        (("outer", "other", "both"), ("outer", "both"), ["'both' is not ready"]),
    ],
)
def test_what_goes_with_an_ensemble(named: tuple[str, ...], gone: tuple[str, ...], wrong: list[str]) -> None:
    texts = complaints(named, (ALL, "outer", gone))
    assert texts == [f"{text} after 'outer' was unloaded with its members" for text in wrong]


def test_what_needs_a_model_goes_with_it_at_any_depth() -> None:
    assert complaints(("outer", "other"), (ALL, "a", ("outer", "both", "a"))) == []


def test_what_is_loaded_by_name_later_stays() -> None:
    changes = (Change.LOAD, "both", ()), (ALL, "outer", ("outer", "both"))
    assert complaints(("outer", "other"), *changes) == [
        "'both' is not ready after 'outer' was unloaded with its members"
    ]


def test_what_was_unloaded_by_name_is_not_named_any_more() -> None:
    changes = (Change.UNLOAD, "b", ("b",)), (Change.LOAD, "both", ()), (ALL, "both", ("both", "a", "b"))
    assert complaints(("b", "both"), *changes) == []
