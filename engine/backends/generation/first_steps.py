"""Steps that are computed before a model is ready: its first request is not slow then, and it is known what a token of
its memory takes."""

from __future__ import annotations

from dataclasses import replace

from ...generation.blocks import BlockMemory
from ...generation.iterations import IterationLimits, Iterations
from ...generation.requests import Generation
from .network import Network

_PROMPT, _NEW = 8, 2


def warm_up(network: Network, limits: IterationLimits, blocks: int, size: int) -> None:
    """Compute a prompt and what follows it, as far as there is room for that.

    Args:
        blocks, size: of the network's memory, in which nothing is kept.

    Raises:
        TriremeError: a step has failed.
    """
    room = min(limits.context, blocks * size)
    new = min(_NEW, room - 1)
    compute(network, limits, blocks, size, min(_PROMPT, room - new), new)


def compute(network: Network, limits: IterationLimits, blocks: int, size: int, prompt: int, new: int) -> None:
    """Compute a prompt of so many tokens, and so many that follow; nothing if there are none of either."""
    if prompt < 1 or new < 1:
        return
    memory = BlockMemory(blocks, size, shares=False)
    iterations = Iterations(memory, replace(limits, held=0), lambda _generation: None)
    generation = Generation(0, [0] * prompt, new)
    iterations.arrive(generation)
    while (step := iterations.begin_step(0.0)) is not None:
        network.run(step)
        iterations.end_step({piece.generation: [0] for piece in step.pieces if piece.draws}, lambda _generation: False)
