"""Tensors between models that batch and models that do not (docs/reference/ensembles.md#execution)."""

from __future__ import annotations

import pytest
from ensembles import World, ensemble, error, job, member, response, step, tensor

from trireme.engine.ensemble import EnsemblePlan
from trireme.engine.ensemble.flow import adapted

ADAPTED = [
    # shape, rows, dims of the taker, taker batches, result
    ((2, 4), 2, (4,), True, (2, 4)),
    ((4,), 0, (4,), False, (4,)),
    ((4,), 0, (4,), True, (1, 4)),
    ((4,), 0, (-1,), True, (1, 4)),
    ((5, 4), 0, (4,), True, (5, 4)),
    ((1, 4), 1, (4,), False, (4,)),
    ((1, 4), 1, (-1, 4), False, (1, 4)),
    ((2, 4), 2, (4,), False, (2, 4)),
    ((3, 4), 1, (4,), False, (3, 4)),
]


@pytest.mark.parametrize(("shape", "rows", "dims", "batching", "result"), ADAPTED)
def test_the_batch_dimension_comes_and_goes(
    shape: tuple[int, ...], rows: int, dims: tuple[int, ...], batching: bool, result: tuple[int, ...]
) -> None:
    assert adapted(shape, rows, dims, batching) == result


@pytest.fixture
def mixed() -> World:
    """A batching ensemble whose middle step does not batch."""
    steps = [
        step("b1", {"IN": "I"}, {"OUT": "t"}),
        step("a", {"IN": "t"}, {"OUT": "u"}),
        step("b2", {"IN": "u"}, {"OUT": "O"}),
    ]
    members = [member("b1", max_batch_size=8), member("a"), member("b2", max_batch_size=8)]
    return World(EnsemblePlan(ensemble(steps, max_batch_size=4), members))


def test_a_batch_of_one_goes_through_a_member_that_does_not_batch(mixed: World) -> None:
    request = job(tensor("I", 1, 2, shape=(1, 2)))
    mixed.start(request)
    mixed.answer(mixed.call("b1"), tensor("OUT", 1, 2, shape=(1, 2)))
    assert mixed.calls[mixed.call("a")].inputs[0].shape == (2,)
    mixed.answer(mixed.call("a"), tensor("OUT", 1, 2))
    assert mixed.calls[mixed.call("b2")].inputs[0].shape == (1, 2)
    mixed.answer(mixed.call("b2"), tensor("OUT", 1, 2, shape=(1, 2)))
    assert response(request).outputs[0].shape == (1, 2)


def test_a_larger_batch_is_left_for_the_member_to_refuse(mixed: World) -> None:
    mixed.start(job(tensor("I", 1, 2, 3, 4, shape=(2, 2)), rows=2))
    mixed.answer(mixed.call("b1"), tensor("OUT", 1, 2, 3, 4, shape=(2, 2)))
    assert mixed.calls[mixed.call("a")].inputs[0].shape == (2, 2)


def test_an_output_of_a_batching_member_loses_its_batch_dimension() -> None:
    steps = [step("b", {"IN": "I"}, {"OUT": "O"})]
    world = World(EnsemblePlan(ensemble(steps), [member("b", max_batch_size=8)]))
    request = job(tensor("I", 1, 2))
    world.start(request)
    assert world.calls[world.call("b")].inputs[0].shape == (1, 2)
    world.answer(world.call("b"), tensor("OUT", 1, 2, shape=(1, 2)))
    assert response(request).outputs[0].shape == (2,)


@pytest.mark.parametrize(("rows", "max_batch_size"), [(0, 0), (2, 8)])
def test_the_reshape_of_an_output_is_undone(rows: int, max_batch_size: int) -> None:
    steps = [step("a", {"IN": "I"}, {"OUT": "O"})]
    config = ensemble(steps, outputs=("O FP32 4/2,2",), max_batch_size=max_batch_size)
    members = [member("a", outputs=("OUT FP32 2,2",), max_batch_size=max_batch_size)]
    world = World(EnsemblePlan(config, members))
    lead = (rows,) if rows else ()
    request = job(tensor("I", *range(rows or 1), shape=(*lead, 1)), rows=rows or 1)
    world.start(request)
    world.answer(world.call("a"), tensor("OUT", *range(4 * (rows or 1)), shape=(*lead, 2, 2)))
    assert response(request).outputs[0].shape == (*lead, 4)


def test_an_output_that_cannot_have_its_shape_fails_the_request() -> None:
    steps = [step("a", {"IN": "I"}, {"OUT": "O"})]
    config = ensemble(steps, outputs=("O FP32 4/2,2",))
    world = World(EnsemblePlan(config, [member("a", outputs=("OUT FP32 2,-1",))]))
    request = job(tensor("I", 1))
    run = world.start(request)
    world.answer(world.call("a"), tensor("OUT", *range(6), shape=(2, 3)))
    assert error(request).message == (
        "in ensemble 'e', output 'O' has shape [2, 3], but the model configuration promises the shape [2, 2] of its "
        "'reshape'"
    )
    assert run.held == 0
