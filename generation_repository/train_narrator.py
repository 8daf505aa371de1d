"""Trains `narrator`, a small network of Llama's kind that writes tales, and its tokenizer.

    python generation_repository/train_narrator.py [REPOSITORY]

It reads tales of ``tales.py``, each once, and learns to guess the next token. What comes out is a model in the layout
of Hugging Face in ``narrator/1/``, its weights in half precision, and the loss on the way as ``narrator_loss.csv`` and
``narrator_loss.svg``: of the tales that it reads, and of others that it never reads. Takes ten minutes on one core.
"""

from __future__ import annotations

import csv
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

REPOSITORY = Path(__file__).parent
END = "<end>"

TOKENS = 1024
WIDTH = 128
LAYERS = 4
HEADS = 8
KEY_VALUE_HEADS = 4
INNER = 352
CONTEXT = 512

ROUNDS = 3000
ROWS = 4
LENGTH = 256
LEARNING_RATE = 3e-3
EVERY = 50
"""Rounds between two points of the curve."""
SEED = 1
HELD_OUT_SEED = 2

NAME_WEIGHT = 3.0

_tales = runpy.run_path(str(REPOSITORY / "tales.py"))
write_tale: Callable[[Random], str] = _tales["write_tale"]
NAMES = frozenset(_tales["SHE"] + _tales["HE"])


def make_tokenizer() -> Any:
    """Byte-level pairs, learned from tales, so that any text has tokens."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    random = Random(SEED)
    tokenizer.train_from_iterator((write_tale(random) for _ in range(4000)), trainer)
    return tokenizer


def read_rows(tokenizer: Any, seed: int) -> Iterator[list[int]]:
    """Rows of tokens, each from the beginning of a tale on, the end of each tale marked."""
    random = Random(seed)
    while True:
        row: list[int] = []
        while len(row) <= LENGTH:
            row += [*tokenizer.encode(write_tale(random)).ids, tokenizer.token_to_id(END)]
        yield row[: LENGTH + 1]


def make_network(tokenizer: Any) -> Any:
    """The network before it has learned anything."""
    import transformers

    end = tokenizer.token_to_id(END)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=WIDTH**-0.5,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    return transformers.LlamaForCausalLM(config)


def train(network: Any, tokenizer: Any) -> list[tuple[int, float, float]]:
    """The curve: round, loss of tales read, loss of others; both in nats a token."""
    import torch

    def losses_of(rows: list[list[int]]) -> tuple[Any, Any]:
        """As it is, and with names weighing more: they are what a network is slowest to carry through a tale."""
        batch = torch.tensor(rows)
        logits = network(input_ids=batch[:, :-1], use_cache=False).logits.flatten(0, 1)
        guess = torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="none")
        weights = weighing[batch[:, 1:].flatten()]
        return guess.mean(), (guess * weights).sum() / weights.sum()

    weighing = torch.tensor(
        [
            NAME_WEIGHT if tokenizer.decode([token]).strip() in NAMES else 1.0
            for token in range(len(network.lm_head.weight))
        ]
    )
    source, others = read_rows(tokenizer, SEED), read_rows(tokenizer, HELD_OUT_SEED)
    held_out = [next(others) for _ in range(32)]
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=ROUNDS, pct_start=0.05)
    curve, read = [], 0.0
    for number in range(1, ROUNDS + 1):
        loss, weighed = losses_of([next(source) for _ in range(ROWS)])
        optimizer.zero_grad()
        weighed.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        read += loss.item() / EVERY
        if number % EVERY == 0:
            with torch.no_grad():
                other = losses_of(held_out)[0].item()
            print(f"round {number}: loss {read:.3f}, of tales not read {other:.3f}", flush=True)
            curve.append((number, round(read, 4), round(other, 4)))
            read = 0.0
    return curve


def save(network: Any, tokenizer: Any, directory: Path) -> None:
    """Write the model. What is kept in half precision is computed in single precision, as CPUs do that well."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    network.to(torch.float16).save_pretrained(directory)
    about = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(about | {"dtype": "float32"}, indent=2, sort_keys=True) + "\n")
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)


def draw(curve: list[tuple[int, float, float]], repository: Path) -> None:
    """Write the curve as a table and as a picture."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "narrator"
    from matplotlib import pyplot

    with (repository / "narrator_loss.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("round", "read", "held_out"), *curve])
    rounds, read, other = zip(*curve, strict=True)
    figure, axes = pyplot.subplots(figsize=(6.4, 3.2))
    axes.plot(rounds, read, label="tales that it reads")
    axes.plot(rounds, other, "--", label="tales that it does not read")
    axes.set(xlabel="round", ylabel="loss (nats a token)", ylim=(0, None), title="Training of narrator")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(repository / "narrator_loss.svg", metadata={"Date": None})


def main(repository: Path = REPOSITORY) -> None:
    import torch

    torch.set_num_threads(1)  # sums come in the same order on every machine with the same instructions
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    network = make_network(tokenizer)
    curve = train(network, tokenizer)
    save(network, tokenizer, repository / "narrator" / "1")
    draw(curve, repository)
    size = sum(path.stat().st_size for path in (repository / "narrator").rglob("*") if path.is_file())
    print(f"wrote {repository / 'narrator'}: {size} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
