"""What the steps of a model are (the rules of `engine.generation.iterations`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trireme.engine.errors import InvalidArgumentError, RefusalReason, UnavailableError
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationLimits, Iterations, Step, SwapIn, SwapOut
from trireme.engine.generation.requests import Generation, GenerationEnd, GenerationState

NEXT = 7
"""The token that is always drawn."""


class Model:
    """Iterations, and steps that are carried out at once."""

    def __init__(self, blocks: int = 100, size: int = 4, *, shares: bool = False, **limits: Any) -> None:
        self.memory = BlockMemory(blocks, size, shares=shares)
        self.ended: list[Generation] = []
        self.begun: list[Generation] = []
        limits = {"context": 100, "most_tokens": 20, "most_running": 4, **limits}
        self.core = Iterations(self.memory, IterationLimits(**limits), self.ended.append, self.begun.append)
        self.numbers = 0

    def ask(self, prompt: int, most_new: int = 5, **rest: Any) -> Generation:
        """A generation from a prompt of so many tokens, its own."""
        self.numbers += 1
        tokens = rest.pop("tokens", [100 * self.numbers + at for at in range(prompt)])
        generation = Generation(self.numbers, tokens, most_new, **rest)
        self.core.arrive(generation)
        return generation

    def begin(self, now_s: float = 0.0) -> Step | None:
        return self.core.begin_step(now_s)

    def end(self, step: Step, stopping: tuple[Generation, ...] = ()) -> None:
        drawn = {piece.generation: [NEXT] * piece.generation.wide for piece in step.pieces if piece.draws}
        self.core.end_step(drawn, lambda generation: generation in stopping)

    def step(self, now_s: float = 0.0) -> dict[int, int]:
        """Carry out a step; by number of the generation, how many tokens it computed."""
        step = self.begin(now_s)
        if step is None:
            return {}
        self.end(step)
        return {piece.generation.number: piece.end - piece.start for piece in step.pieces}


def test_a_prompt_is_computed_and_its_tokens_are_drawn_one_by_one() -> None:
    model = Model()
    generation = model.ask(6, 3)
    assert [model.step() for _ in range(4)] == [{1: 6}, {1: 1}, {1: 1}, {}]
    assert list(generation.new) == [NEXT] * 3
    assert (model.ended, generation.end, generation.state) == (
        [generation],
        GenerationEnd.LENGTH,
        GenerationState.OVER,
    )
    assert model.memory.free == model.memory.count


def test_one_step_is_under_way_at_a_time() -> None:
    model = Model()
    model.ask(6)
    step = model.begin()
    assert step is not None
    assert model.begin() is None


def test_a_token_that_stops_ends_it() -> None:
    model = Model()
    generation = model.ask(6)
    step = model.begin()
    assert step is not None
    model.end(step, stopping=(generation,))
    assert (generation.end, list(generation.new)) == (GenerationEnd.STOP, [NEXT])


def test_a_long_prompt_goes_in_pieces_beside_those_that_go_on() -> None:
    model = Model(most_tokens=10)
    model.ask(4)
    assert model.step() == {1: 4}
    model.ask(30)
    assert [model.step() for _ in range(4)] == [{1: 1, 2: 9}, {1: 1, 2: 9}, {1: 1, 2: 9}, {1: 1, 2: 3}]


def test_no_more_run_than_may() -> None:
    model = Model(most_running=2)
    for _ in range(3):
        model.ask(2, 2)
    assert [model.step() for _ in range(4)] == [{1: 2, 2: 2}, {1: 1, 2: 1}, {3: 2}, {3: 1}]


def test_a_step_needs_more_tokens_than_generations_may_run() -> None:
    with pytest.raises(InvalidArgumentError, match="a step of 4 tokens has no room for prompts beside 4 generations"):
        IterationLimits(context=10, most_tokens=4, most_running=4)


def test_a_large_one_is_not_passed_by_small_ones() -> None:
    model = Model(blocks=6)
    model.ask(12, 2)
    model.step()
    large = model.ask(16, 2)
    model.ask(2, 2)
    assert model.step() == {1: 1}
    assert model.step() == {2: 16, 3: 2}
    assert large.state is GenerationState.RUNNING


def test_those_that_run_have_room_to_grow() -> None:
    model = Model(blocks=6, spare=2)
    model.ask(12, 5)
    model.step()
    second = model.ask(4, 2)
    model.step()
    assert second.state is GenerationState.PENDING, "two blocks are left, and the first takes one of three now"
    model = Model(blocks=6, spare=2)
    model.ask(20, 1)
    assert model.step() == {1: 20}, "none runs: there is nothing to spare"


def test_what_was_computed_for_the_same_beginning_is_not_computed_again() -> None:
    model = Model(shares=True)
    model.ask(0, tokens=list(range(10)))
    model.step()
    model.ask(0, tokens=[*range(9), 50, 51])
    assert model.step() == {1: 1, 2: 3}


def test_the_last_one_makes_room_and_is_computed_again() -> None:
    model = Model(blocks=4)
    model.ask(8, 5)
    second = model.ask(7, 4)
    assert model.step() == {1: 8, 2: 7}
    assert model.step() == {1: 1}, "both need a block, and there is none"
    assert (second.state, second.computed) == (GenerationState.PENDING, 0)
    assert [model.step() for _ in range(4)] == [{1: 1}, {1: 1}, {1: 1}, {2: 8}]
    assert model.core.counts.recomputations == 1


def test_the_last_one_is_swapped_out_where_the_host_has_room() -> None:
    model = Model(blocks=4, held=2, swaps_from=4)
    model.ask(8, 5)
    second = model.ask(7, 4)
    model.step()
    step = model.begin()
    assert step is not None
    assert [type(move) for move in step.moves] == [SwapOut, SwapOut]
    assert second.state is GenerationState.SWAPPED
    model.end(step)
    assert [model.step() for _ in range(3)] == [{1: 1}] * 3
    step = model.begin()
    assert step is not None
    assert [type(move) for move in step.moves] == [SwapIn, SwapIn]
    assert [(piece.generation, piece.start, piece.end) for piece in step.pieces] == [(second, 7, 8)]


def test_what_a_failed_step_was_to_swap_out_is_computed_again() -> None:
    """The step may have failed before it moved anything."""
    model = Model(blocks=4, held=2, swaps_from=4)
    first, second = model.ask(8, 5), model.ask(7, 4)
    model.step()
    assert model.begin() is not None
    assert second.state is GenerationState.SWAPPED
    model.core.fail_step()
    assert first.end is GenerationEnd.FAILED
    assert (second.state, second.held, second.computed) == (GenerationState.PENDING, [], 0)
    assert model.step() == {2: 8}


def test_a_lower_level_goes_first_and_takes_the_room_of_higher_ones() -> None:
    model = Model(blocks=4)
    late = model.ask(10, 2, level=2)
    model.step()
    model.ask(10, 2, level=1)
    assert model.step() == {2: 10}
    assert late.state is GenerationState.PENDING
    assert [model.step() for _ in range(2)] == [{2: 1}, {1: 11}]


def test_none_is_preempted_in_vain() -> None:
    model = Model(blocks=8)
    model.ask(14, 3, level=1)
    model.step()
    small = model.ask(4, 3, level=2)
    model.step()
    model.ask(20, 2, level=1)
    model.step()
    assert small.state is GenerationState.RUNNING, "its room is not enough"


def test_choices_share_their_prompt() -> None:
    model = Model(blocks=10)
    first = model.ask(6, 3, choices=3)
    assert model.step() == {1: 6}
    assert [each.choice for each in model.begun] == [1, 2]
    assert model.memory.free == 8
    step = model.begin()
    assert step is not None
    assert len(step.moves) == 2, "two copies of the block that is not full"
    model.end(step)
    model.step()
    assert sorted(each.choice for each in model.ended) == [0, 1, 2]
    assert [list(each.new) for each in model.ended] == [[NEXT] * 3] * 3
    assert first.end is GenerationEnd.LENGTH


def test_choices_count_before_they_are_drawn() -> None:
    model = Model(most_running=3)
    model.ask(4, choices=2)
    second = model.ask(4, choices=2)
    assert model.step() == {1: 4}
    assert second.state is GenerationState.PENDING


@pytest.mark.parametrize(
    ("prompt", "most_new", "choices", "why"),
    [
        (0, 5, 1, "5 tokens are to follow a prompt of 0; expected 1 or more of both"),
        (5, 0, 1, "0 tokens are to follow a prompt of 5; expected 1 or more of both"),
        (90, 11, 1, "the prompt has 90 tokens and 11 are to follow, which is more than the model's context of 100"),
        (30, 11, 1, "41 tokens take 11 blocks of memory, and there are 10"),
        (5, 5, 5, "5 choices are asked for; expected 1 to 4"),
        (5, 5, 0, "0 choices are asked for; expected 1 to 4"),
    ],
)
def test_what_can_never_be_is_refused_at_once(prompt: int, most_new: int, choices: int, why: str) -> None:
    model = Model(blocks=10)
    with pytest.raises(InvalidArgumentError, match=why):
        model.ask(prompt, most_new, choices=choices)
    assert model.core.waiting == 0


def test_no_more_wait_than_may() -> None:
    model = Model(most_pending=1)
    model.ask(4)
    with pytest.raises(UnavailableError, match="there are 1 generations pending already; try again later") as caught:
        model.ask(4)
    assert caught.value.refusal is RefusalReason.QUEUE_FULL


def test_who_leaves_without_a_step_is_gone_at_once() -> None:
    model = Model()
    generation = model.ask(4)
    model.step()
    model.core.leave(generation)
    assert (generation.end, model.memory.free) == (GenerationEnd.CANCELLED, model.memory.count)
    model.core.leave(generation)
    assert model.ended == [generation]


def test_who_leaves_amid_a_step_is_gone_when_it_is_over() -> None:
    model = Model()
    generation = model.ask(4)
    step = model.begin()
    assert step is not None
    model.core.leave(generation)
    assert (model.ended, model.memory.free) == ([], model.memory.count - 1), "the step still writes there"
    model.end(step)
    assert (model.ended, list(generation.new), model.memory.free) == ([generation], [], model.memory.count)


def test_who_is_told_of_an_end_may_have_the_others_leave() -> None:
    model = Model()
    first = model.ask(4, 1, choices=2)
    ended: list[Generation] = []

    def end(generation: Generation) -> None:
        ended.append(generation)
        for other in list(model.core):
            model.core.leave(other)

    model.core._ended = end
    model.step()
    assert [(each.choice, each.end) for each in ended] == [(0, GenerationEnd.LENGTH), (1, GenerationEnd.CANCELLED)]
    assert first.state is GenerationState.OVER
    assert model.memory.free == model.memory.count


@pytest.mark.parametrize("running", [False, True])
def test_what_is_too_late_leaves(running: bool) -> None:
    model = Model(most_running=1)
    first = model.ask(4, 20, deadline_s=3.0 if running else None)
    second = model.ask(4, deadline_s=None if running else 3.0)
    model.step(2.0)
    assert model.ended == []
    model.step(3.0)
    late = first if running else second
    assert (model.ended, late.end) == ([late], GenerationEnd.EXPIRED)


def test_a_step_that_fails_ends_what_was_in_it() -> None:
    model = Model(most_running=2)
    model.ask(4)
    model.ask(4)
    waiting = model.ask(4)
    step = model.begin()
    assert step is not None
    model.core.leave(step.pieces[0].generation)
    model.core.fail_step()
    assert sorted(each.end.value for each in model.ended if each.end) == ["cancelled", "failed"]
    assert model.step() == {3: 4}
    assert waiting.state is GenerationState.RUNNING


def test_the_step_after_one_in_which_all_draw_is_known_before() -> None:
    model = Model(blocks=4, size=2)
    first, second = model.ask(2, 3), model.ask(2, 2)
    step = model.begin()
    assert step is not None
    ahead = model.core.ahead()
    assert ahead is not None
    assert [each[1:] for each in ahead.pieces] == [(2, 3, True), (2, 3, True)]
    assert model.memory.free == 0, "its memory is taken"
    latest = {first: 5, second: 6}
    following = replace(ahead, latest=latest)
    assert [list(following.tokens_of(each, each.start)) for each in following.pieces] == [[5], [6]]
    model.core.end_step({each: [token] for each, token in latest.items()}, lambda _each: False, following)
    assert model.begin() is None, "it is under way"
    assert (model.core.counts.steps, model.core.counts.tokens) == (2, 6)
    assert [list(following.tokens_of(each, 0))[2:] for each in following.pieces] == [[5], [6]], "told or not"
    assert model.core.ahead() is None, "one of them comes to its end"
    model.end(following)
    assert (model.ended, list(second.new)) == ([second], [6, NEXT])
    assert model.step() == {1: 1}


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": 4, "most_new": 1},
        {"prompt": 4, "choices": 2},
        {"prompt": 30},
        {"prompt": 12, "most_new": 9},
    ],
    ids=["the last token", "choices to come", "a long prompt", "no memory"],
)
def test_the_step_after_another_one_is_not_known(asked: dict[str, int]) -> None:
    model = Model(blocks=12)
    model.ask(**asked)
    if asked["prompt"] == 12:
        model.ask(36 - 4)
    assert model.core.ahead() is None, "there is none"
    assert model.begin() is not None
    free = model.memory.free
    assert model.core.ahead() is None
    assert model.memory.free == free


def test_the_next_step_is_not_known_while_one_waits_or_leaves() -> None:
    model = Model()
    first, _ = model.ask(4), model.ask(4)
    model.begin()
    assert model.core.ahead() is not None
    waiting = model.ask(4)
    assert model.core.ahead() is None
    model.core.leave(waiting)
    assert model.core.ahead() is not None
    model.core.leave(first)
    assert model.core.ahead() is None


def test_one_that_leaves_when_the_next_step_has_begun_does_so_after_that() -> None:
    model = Model(shares=True)
    generation = model.ask(7)
    model.begin()
    ahead = model.core.ahead()
    assert ahead is not None
    model.core.leave(generation)
    model.core.end_step({generation: [NEXT]}, lambda _each: False, replace(ahead, latest={generation: NEXT}))
    assert (model.ended, generation.state, list(generation.new)) == ([], GenerationState.RUNNING, [])
    model.core.end_step({generation: [NEXT]}, lambda _each: False)
    assert (model.ended, generation.end) == ([generation], GenerationEnd.CANCELLED)
    assert model.memory.free == model.memory.count
    again = model.ask(8, tokens=[*generation.tokens, 1, 2])
    model.begin()
    assert again.found == 4, "a block whose tokens are not known has no name"
