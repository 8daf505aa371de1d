"""Trains `storyteller`, which writes on in the manner of ``storyteller.txt``, one character after the other.

    python model_repository/train_storyteller.py

A recurrent network (one GRU layer) learns to guess each character of the text from those before it. PyTorch trains it;
what it has learned is written to ``storyteller/1/weights.npz`` in half precision, and ``storyteller/1/model.py`` needs
nothing but numpy to use it. Takes a few minutes on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parent
TEXT = REPOSITORY / "storyteller.txt"
WEIGHTS = REPOSITORY / "storyteller" / "1" / "weights.npz"

EMBEDDING = 24
HIDDEN = 112
ROUNDS = 1400
ROWS = 32
LENGTH = 96
LEARNING_RATE = 4e-3
DROPOUT = 0.3
MISTAKES = 0.03
"""Share of the characters read that are replaced by others, so that stories are mixed rather than learned by heart."""
SEED = 1


def read_text() -> tuple[str, np.ndarray]:
    """The alphabet of the text, and the text as places in the alphabet."""
    text = TEXT.read_text()
    alphabet = "".join(sorted(set(text)))
    return alphabet, np.array([alphabet.index(character) for character in text], np.int64)


def train(alphabet: str, text: np.ndarray) -> dict[str, np.ndarray]:
    """The weights, by the names that `model.py` knows."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    embedding = nn.Embedding(len(alphabet), EMBEDDING)
    layer = nn.GRU(EMBEDDING, HIDDEN, batch_first=True)
    guess = nn.Linear(HIDDEN, len(alphabet))
    drop = nn.Dropout(DROPOUT)
    modules = nn.ModuleList([embedding, layer, guess])
    optimizer = torch.optim.AdamW(modules.parameters(), LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=ROUNDS)
    source = torch.from_numpy(text)
    for number in range(ROUNDS):
        starts = torch.randint(len(source) - LENGTH, (ROWS,))
        rows = torch.stack([source[start : start + LENGTH + 1] for start in starts.tolist()])
        mistaken = torch.rand(ROWS, LENGTH) < MISTAKES
        others = torch.randint(len(alphabet), (ROWS, LENGTH))
        hidden, _ = layer(embedding(torch.where(mistaken, others, rows[:, :-1])))
        loss = nn.functional.cross_entropy(guess(drop(hidden)).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if number % 100 == 99:
            print(f"round {number + 1}: loss {loss.item():.3f}")
    learned: dict[str, Any] = {
        "embedding": embedding.weight,
        "input": layer.weight_ih_l0,
        "input_bias": layer.bias_ih_l0,
        "state": layer.weight_hh_l0,
        "state_bias": layer.bias_hh_l0,
        "output": guess.weight,
        "output_bias": guess.bias,
    }
    return {name: weight.detach().numpy().astype(np.float16) for name, weight in learned.items()}


def main() -> None:
    alphabet, text = read_text()
    weights = train(alphabet, text)
    np.savez(WEIGHTS, alphabet=np.frombuffer(alphabet.encode(), np.uint8), **weights)
    print(f"wrote {WEIGHTS}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
