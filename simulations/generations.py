"""Generations: a model that is loaded again lives on beside itself until the old one is drained.

In the history the first generation has the model's own name, the second one is called ``m~2``, and so on.
"""

from __future__ import annotations


def generation_name(model: str, generation: int) -> str:
    """What a generation, counted from 1, is called in the history."""
    return model if generation == 1 else f"{model}~{generation}"


def model_of(name: str) -> str:
    """The model that a generation is of."""
    return name.partition("~")[0]
