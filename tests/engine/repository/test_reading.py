"""What is known of models before they are loaded on demand (`engine.repository.reading`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ensembles import ensemble, member, step

from trireme.engine.errors import TriremeError
from trireme.engine.options import ServerOptions
from trireme.engine.repository.agents import AgentRegistry
from trireme.engine.repository.reading import Reading, needs_of, read_models, worth
from trireme.engine.repository.source import ModelSource
from trireme.simulations.models import Profile, SimulatedModel


def model(name: str, *members: str, nbytes: int = 10, parameters: dict[str, str] | None = None) -> SimulatedModel:
    """An ensemble if there are members."""
    steps = [step(each, {"IN": "I"}, {"OUT": f"O{index}"}) for index, each in enumerate(members)]
    config = ensemble(steps, name=name) if members else member(name)
    made = SimulatedModel(replace(config, parameters=parameters or {}), Profile(0.0))
    made.nbytes = nbytes
    return made


def read(name: str, *models: ModelSource, known: dict[str, Reading] | None = None) -> dict[str, Reading]:
    sources = {each.name: each for each in models}
    return read_models(name, sources, known or {}, ServerOptions(), AgentRegistry())


def test_a_model_is_read_with_all_that_it_needs() -> None:
    models = model("top", "mid", "c"), model("mid", "a", "b"), model("a"), model("b"), model("c", nbytes=7), model("d")
    found = read("top", *models)
    assert sorted(found) == ["a", "b", "c", "mid", "top"]
    assert (found["c"].nbytes, found["top"].members, found["a"].members) == (7, ("mid", "c"), ())
    needs = needs_of("top", found)
    assert needs["top"] == ("a", "b", "mid", "c")
    assert needs["mid"] == ("a", "b")
    assert list(needs)[-1] == "top"


def test_what_has_not_changed_is_not_read_again() -> None:
    changed, same = model("changed"), model("same")
    known = read("changed", changed) | read("same", same)
    changed.nbytes = same.nbytes = 30
    changed.touch()
    found = read("changed", changed, known=known) | read("same", same, known=known)
    assert (found["changed"].nbytes, found["same"].nbytes) == (30, 10)


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ((model("a", "a"),), "circular dependency between ensembles: a -> ... -> a -> a"),
        ((model("a", "b"), model("b", "a")), "circular dependency between ensembles: a -> ... -> b -> a"),
        (
            (model("a", "b"), model("b", "c"), model("c", "b")),
            (
                "ensemble 'a' depends on 'b' which is not valid. Model 'b' failed with error: circular dependency "
                "between ensembles: b -> ... -> c -> b"
            ),
        ),
        ((model("a", "b"),), "ensemble a contains models that are not available or ambiguous: b"),
        (
            (model("a", "b"), model("b", parameters={"ON_DEMAND_PRIORITY": "high"})),
            "parameter 'ON_DEMAND_PRIORITY' of model 'b' is 'high'; expected a whole number from -100 to 100",
        ),
    ],
)
def test_why_a_model_is_not_to_be_loaded(models: tuple[SimulatedModel, ...], text: str) -> None:
    with pytest.raises(TriremeError) as problem:
        needs_of("a", read("a", *models))
    assert problem.value.message == text


def test_a_model_that_cannot_be_read_is_left_to_its_load() -> None:
    class Unreadable(SimulatedModel):
        def modified_ns(self) -> int:
            raise PermissionError("no")

    unreadable = Unreadable(member("a"), Profile(0.0))
    found = read("a", unreadable)
    assert found == {"a": Reading()}
    assert needs_of("a", found) == {"a": ()}
    assert read("a", model("a"), known=found)["a"].nbytes == 10


@pytest.mark.parametrize(
    ("parameters", "priority", "pinned"),
    [
        ({}, 0, False),
        ({"ON_DEMAND_PRIORITY": "7"}, 7, False),
        ({"ON_DEMAND_PRIORITY": "-100", "ON_DEMAND_PIN": "true"}, -100, True),
        ({"ON_DEMAND_PIN": "false"}, 0, False),
    ],
)
def test_worth_is_said_by_parameters(parameters: dict[str, str], priority: int, pinned: bool) -> None:
    found = read("a", model("a", parameters=parameters))
    assert worth([found["a"]]) == (priority, pinned)
    assert worth([found["a"], Reading(priority=3), Reading(pinned=True)]) == (max(priority, 3), True)


@pytest.mark.parametrize("text", ["", "high", "1.5", "101", "-101", "--1", "+1", " 1", "²", "1" * 200])
def test_priorities_that_are_none(text: str) -> None:
    problem = read("a", model("a", parameters={"ON_DEMAND_PRIORITY": text}))["a"].problem
    assert problem == (
        f"parameter 'ON_DEMAND_PRIORITY' of model 'a' is '{text}'; expected a whole number from -100 to 100"
    )


def test_pins_that_are_none() -> None:
    problem = read("a", model("a", parameters={"ON_DEMAND_PIN": "maybe"}))["a"].problem
    assert problem == "parameter 'ON_DEMAND_PIN' of model 'a' is 'maybe'; expected 'true' or 'false'"
