"""Texts under constraints, without a network."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from counting_network import ALPHABET, write_tokenizer

from trireme.engine.backends.generation.constraint_trial import ConstraintTrial
from trireme.engine.backends.generation.constraints import ConstrainedText, Constraints
from trireme.engine.backends.generation.tokenizer import Tokenizer

ENDING = ALPHABET.index(chr(256))
"""A token that no text has, of the byte 0."""


class AtOnce(ConstraintTrial):
    """No process is asked before."""

    def run(self, library: Any, grammar: str, limits: Any, tokens: Any) -> None:
        """Whatever it is."""


def tokenizer_with(folder: Path, marks: Sequence[str]) -> Constraints:
    """Constraints of a tokenizer with a token for each byte, and for these texts: those in angle brackets are usual
    tokens, others are special."""
    write_tokenizer(folder)
    file = str(folder / "tokenizer.json")
    made = tokenizers.Tokenizer.from_file(file)
    for mark in marks:
        made.add_tokens([tokenizers.AddedToken(mark, special=not mark.endswith("call>"))])
    made.save(file)
    return Constraints(Tokenizer(folder), made.get_vocab_size())


def generated(constraints: Constraints, text: ConstrainedText, draws: random.Random, most: int) -> str:
    """What comes of it, to its end, if each token that may come is as probable; `ENDING` ends it."""
    tokens: list[int] = []
    while not text.over:
        allowed = np.flatnonzero(text.allowed)
        tokens.append(draws.choice(allowed.tolist()))
        text.take(tokens[-1])
        assert len(tokens) < most, "it comes to an end"
    if tokens[-1] == ENDING:
        tokens.pop()
    return constraints._tokenizer.decode(tokens, special=True)
