"""Implicit states that are kept as texts (BYTES), whose elements differ in size.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from .plan import Plan

SHARE = 0.4
"""Of the models that keep sums."""

A_TEXT = "a text kept"


def kept_as_texts(plan: Plan) -> Plan:
    """The plan, some of whose models keep their sums as texts."""
    chance = Random(f"texts {plan.seed}")
    models = [
        replace(model, sequences=replace(model.sequences, texts=True))
        if model.sequences is not None and model.sequences.sums and chance.random() < SHARE
        else model
        for model in plan.models
    ]
    return replace(plan, models=tuple(models))


def texts(sums: np.ndarray) -> np.ndarray:
    """Sums as texts, longer ones for larger sums."""
    written = [f"{float(each)} {'=' * (int(each) % 13)}".encode() for each in sums.flat]
    return np.array(written, object).reshape(sums.shape)


def read_texts(kept: np.ndarray) -> np.ndarray:
    """The sums in these texts, FP32 of the same shape; where there is no text yet, 0. What is no text stays as it is.

    Raises:
        ValueError: a text is cut off, or another one's.
    """
    if kept.dtype != object:
        return kept
    found = np.zeros(kept.shape, np.float32)
    for place, text in enumerate(kept.flat):
        if text:
            number, _, marks = text.decode().partition(" ")
            found.flat[place] = float(number)
            if marks != "=" * (int(float(number)) % 13):
                raise ValueError(f"{text!r} is not what was kept")
    return found
