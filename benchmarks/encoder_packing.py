"""What texts take together in an encoder: as rows without padding, as Trireme computes them, and as padded batches, as
transformers does by itself.

    python benchmarks/encoder_packing.py [--shape small] [--threads 2] [--texts 32] [--tokens 2048] [--seconds 2]

In this process, without a server. Both compute the same texts, in float32, and pool them by their mean. Without padding
they are computed in the steps that a server makes of them; padded in these steps, or all in one batch. The network is
BERT's, of random numbers. Lengths: all alike; uniform from 8 to 256; and a few long ones among many short.

Threads wait for each other at each operation, of which there are more without padding: where other programs use the
cores, two threads measure these programs. The share of a core that each thread got is printed; it should be near 1.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers

from trireme.engine.backends.generation.encoding.layout import read_layout
from trireme.engine.backends.generation.encoding.network import EncoderNetwork
from trireme.engine.backends.generation.encoding.packed import TokenRow
from trireme.engine.generation.encodings import EncodedText, Encodings

VOCABULARY, LONGEST = 30_522, 256
SHAPES: Mapping[str, Mapping[str, int]] = {
    "small": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12},
    "base": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
LENGTHS: Mapping[str, Callable[[Random], int]] = {
    "all of 64": lambda _chance: 64,
    "8 to 256": lambda chance: chance.randint(8, LONGEST),
    "one of 8 has 256, others 16": lambda chance: LONGEST if chance.random() < 1 / 8 else 16,
}


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=2048, help="that a step has at most, as in max_tokens_per_step")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, **SHAPES[given.shape]}
    network: Any = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).eval()
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        layout = read_layout(Path(folder), {})
        assert layout is not None
        packed = EncoderNetwork(layout)
    print(f"{given.shape}, {given.texts} texts, {given.threads} threads: texts a second, medians of steps")
    print("lengths | without padding | padded in the same steps | in one batch | times | core")
    for name, length in LENGTHS.items():
        chance = Random(2)
        texts = [
            TokenRow([chance.randrange(1_000, VOCABULARY) for _ in range(length(chance))]) for _ in range(given.texts)
        ]
        parts = steps(texts, given.tokens)
        for part in parts:
            row = torch.from_numpy(packed.run(part))
            assert torch.allclose(row, padded(network, part), rtol=1e-3, atol=1e-4), "both give the same"
        runs = (
            lambda parts=parts: [packed.run(part) for part in parts],
            lambda parts=parts: [padded(network, part) for part in parts],
            lambda texts=texts: padded(network, texts),
        )
        (ours, *theirs), share = measured(runs, given.seconds)
        rates = " | ".join(f"{given.texts / each:.0f}" for each in (ours, *theirs))
        print(f"{name} | {rates} | {min(theirs) / ours:.2f} | {share / given.threads:.2f}")
    return 0


def padded(network: Any, texts: Sequence[TokenRow]) -> torch.Tensor:
    """The means of the texts, which are computed as a batch."""
    longest = max(len(text.ids) for text in texts)
    tokens = torch.tensor([[*text.ids, *[0] * (longest - len(text.ids))] for text in texts])
    mask = torch.tensor([[1] * len(text.ids) + [0] * (longest - len(text.ids)) for text in texts])
    with torch.inference_mode():
        states = network(input_ids=tokens, attention_mask=mask).last_hidden_state
        return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def steps(texts: Sequence[TokenRow], most_tokens: int) -> list[list[TokenRow]]:
    """The texts as a server computes them that come at once."""
    core = Encodings(most_tokens)
    waiting = {EncodedText(len(text.ids)): text for text in texts}
    for each in waiting:
        core.arrive(each)
    found: list[list[TokenRow]] = []
    while step := core.begin_step():
        found.append([waiting[each] for each in step])
        core.end_step()
    return found


def measured(runs: Sequence[Callable[[], object]], seconds: float) -> tuple[list[float], float]:
    """What each takes, in seconds; in turns, so that all have the same machine. And how many cores they had."""
    took: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    begun, used = time.perf_counter(), time.process_time()
    while time.perf_counter() < begun + seconds * len(runs):
        for run, times in zip(runs, took, strict=True):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    cores = (time.process_time() - used) / (time.perf_counter() - begun)
    return [statistics.median(times) for times in took], cores


if __name__ == "__main__":
    raise SystemExit(main())
