"""The graph that a plan makes of a configuration."""

from __future__ import annotations

import pytest
from ensembles import ensemble, member, step

from trireme.engine.config.ensemble import ensemble_scheduling, with_decoupled
from trireme.engine.ensemble import EnsemblePlan


@pytest.fixture(scope="module")
def plan() -> EnsemblePlan:
    """I and J (optional) go through a to x and y; b takes x; j takes y and I. P is made by b, O by j."""
    steps = [
        step("a", {"IN": "I", "ALSO": "J"}, {"X": "x", "Y": "y"}),
        step("b", {"IN": "x"}, {"OUT": "P"}),
        step("j", {"A": "y", "B": "I"}, {"OUT": "O"}, version=3),
    ]
    config = ensemble(steps, ("I", "J?"), ("O", "P"), rest="max_inflight_requests: 5")
    return EnsemblePlan(config, [member("a", ("IN", "ALSO?"), ("X", "Y")), member("b"), member("j", ("A", "B"))])


def test_steps_are_connected(plan: EnsemblePlan) -> None:
    assert plan.consumers == {"I": (0, 2), "J": (0,), "x": (1,), "y": (2,)}
    assert plan.producers == {"x": (0, "X"), "y": (0, "Y"), "P": (1, "OUT"), "O": (2, "OUT")}
    assert plan.optional_inputs == ("J",)
    assert [each.model_version for each in plan.steps] == [-1, -1, 3]
    assert plan.max_inflight_requests == 5


@pytest.mark.parametrize(
    ("requested", "needed"), [((), {0, 1, 2}), (("O", "P"), {0, 1, 2}), (("O",), {0, 2}), (("P",), {0, 1})]
)
def test_only_steps_that_requested_outputs_follow_from_are_needed(
    plan: EnsemblePlan, requested: tuple[str, ...], needed: set[int]
) -> None:
    assert plan.needed(requested) == needed


def test_an_output_is_labelled_by_the_member_that_makes_it(plan: EnsemblePlan) -> None:
    assert plan.producers["O"] == (2, "OUT")
    assert "I" not in plan.producers


def test_maps_are_in_the_order_of_the_members_names() -> None:
    config = ensemble([step("a", {"Z": "I", "A": "J", "M": "K"}, {"OUT": "O"})], ("I", "J", "K"))
    (only,) = ensemble_scheduling(config).steps
    assert list(only.input_map) == ["A", "M", "Z"]


def test_the_transaction_policy_is_overwritten() -> None:
    config = ensemble([step("a", {"IN": "I"}, {"OUT": "O"})])
    assert not config.message.HasField("model_transaction_policy")
    settled = with_decoupled(config, False)
    assert settled.message.HasField("model_transaction_policy"), "it is always in /config"
    assert not settled.decoupled
    assert with_decoupled(settled, True).decoupled
    assert not with_decoupled(with_decoupled(settled, True), False).decoupled


def test_it_is_known_what_follows_from_each_step(plan: EnsemblePlan) -> None:
    assert plan.following == (frozenset({1, 2}), frozenset(), frozenset())
    steps = [
        step("a", {"IN": "I"}, {"OUT": "x"}),
        step("b", {"IN": "x"}, {"OUT": "y"}),
        step("c", {"IN": "y"}, {"OUT": "O"}),
    ]
    chain = EnsemblePlan(ensemble(steps), [member("a"), member("b"), member("c")])
    assert chain.following == (frozenset({1, 2}), frozenset({2}), frozenset())
