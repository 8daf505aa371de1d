"""Bugs of the cores that decide what generating models compute, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...engine.generation.blocks import BlockMemory, BlockTable
from ...engine.generation.iterations import Iterations
from ...engine.generation.requests import Generation, GenerationState


def _written_by_all(original: Any, memory: BlockMemory, table: BlockTable, start: int, end: int) -> list[int]:
    """Who shares a block that is not full writes to it in place."""
    del original, memory, table, start, end
    return []


def _adapters_alike(original: Any, memory: BlockMemory, tokens: Sequence[int], salt: bytes = b"") -> list[int]:
    """What one adapter has computed serves any other."""
    del salt
    return original(memory, tokens)


def _named_before(original: Any, memory: BlockMemory, tokens: Sequence[int], salt: bytes, found: Sequence[int]) -> Any:
    """Blocks have their names before they are computed."""
    table = original(memory, tokens, salt, found)
    if table is not None:
        memory.computed(table, tokens, len(tokens))
    return table


def _name_kept(original: Any, memory: BlockMemory) -> int:
    """A block that is taken for other tokens keeps the name that it had."""
    names = dict(memory._by_name)
    block = original(memory)
    memory._by_name.update({name: where for name, where in names.items() if where == block})
    return block


def _fork_uncounted(original: Any, memory: BlockMemory, table: BlockTable) -> BlockTable:
    """A fork is no user of the last block that it shares."""
    fork = original(memory, table)
    if memory._users[fork.blocks[-1]] > 2:
        memory._users[fork.blocks[-1]] -= 1
    return fork


def _host_full(original: Any, core: Iterations, generation: Generation) -> None:
    """What comes back from the host keeps its place there."""
    unheld = list(core._unheld)
    original(core, generation)
    core._unheld = unheld


def _large_passed(original: Any, core: Iterations) -> None:
    """Smaller ones pass the first, if that finds no room."""
    original(core)
    if core._waiting:
        first = core._waiting.pop(0)
        original(core)
        core._waiting.insert(0, first)


def _one_waits_for_ever(original: Any, core: Iterations, first: Generation, beside: Sequence[Generation]) -> bool:
    """Spare blocks are asked for where none runs, too."""
    if not beside and core._needed(first, set()) + core.limits.spare > core.memory.free:
        return False
    return original(core, first, beside)


def _last_token_found(original: Any, memory: BlockMemory, tokens: Sequence[int], salt: bytes = b"") -> list[int]:
    """Of a prompt that has been computed whole no token is computed again, so that nothing follows from it."""
    return original(memory, [*tokens, 0], salt)


def _first_preempted(original: Any, core: Iterations, generation: Generation) -> None:
    """The first one is preempted, not the last."""
    if len(core._running) > 2 and core._running[0].level == generation.level and core._running[-1] is generation:
        generation = core._running[-2]
    original(core, generation)


def _choices_free(original: Any, core: Iterations, generation: Generation, beside: Sequence[Generation]) -> bool:
    """Choices count as one until they are drawn."""
    choices, generation.choices = generation.choices, 1
    try:
        return original(core, generation, beside)
    finally:
        generation.choices = choices


def _late_ones_run(original: Any, core: Iterations, now_s: float) -> None:
    """Deadlines count while generations wait, and not once they run."""
    running, core._running = core._running, []
    original(core, now_s)
    core._running = running


def _swapped_unmoved(original: Any, core: Iterations, generation: Generation) -> None:
    """What is computed of the last block, if that is not full, does not go to the host."""
    computed, generation.computed = generation.computed, generation.computed - generation.computed % core.memory.size
    original(core, generation)
    generation.computed = computed if generation.state is GenerationState.SWAPPED else 0


def _leaves_amid_next(original: Any, core: Iterations, drawn: Any, stops: Any, following: Any = None) -> None:
    """One that is to leave does so when its step is over, though the next one with it has begun."""
    leaving = dict(core._leaving)
    original(core, drawn, stops, following)
    for generation, end in leaving.items():
        if following is not None and core._leaving.pop(generation, None) is not None:
            core._finish(generation, end)


GENERATING_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "written-by-all": (BlockMemory, "_shared", _written_by_all),
    "adapters-alike": (BlockMemory, "find", _adapters_alike),
    "named-before": (BlockMemory, "begin", _named_before),
    "name-kept": (BlockMemory, "_take", _name_kept),
    "fork-uncounted": (BlockMemory, "fork", _fork_uncounted),
    "last-token-found": (BlockMemory, "find", _last_token_found),
    "host-full": (Iterations, "_begin", _host_full),
    "large-passed": (Iterations, "_admit", _large_passed),
    "one-waits-for-ever": (Iterations, "_fits", _one_waits_for_ever),
    "first-preempted": (Iterations, "_preempt", _first_preempted),
    "choices-free": (Iterations, "_fits", _choices_free),
    "late-ones-run": (Iterations, "expire", _late_ones_run),
    "swapped-unmoved": (Iterations, "_preempt", _swapped_unmoved),
    "leaves-amid-next": (Iterations, "end_step", _leaves_amid_next),
}
"""Found by swarm runs of the cores alone (`generating`)."""
