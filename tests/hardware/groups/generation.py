"""Generated text: tokens of random networks are those of `transformers`, with CUDA graphs and without; their speed."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from hardware import main, need, need_torch

RUNNING = 32
ARCHITECTURES, COUNTS = ("llama", "gpt2"), (1, 3, 8, 32)
LARGE: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 1024,
}
"""What is measured: 200 million weights, in bfloat16."""

PROMPT, NEW, SIZE = 64, 128, 16


def compare(figures: dict[str, Any], gpu: Any, folder: Path) -> None:
    """Raises AssertionError if a token is another one."""
    from reference_networks import Played, Reference

    from trireme.engine.backends.generation.gpu_network import GpuNetwork

    for architecture in ARCHITECTURES:
        reference = Reference(architecture, folder / architecture, max(COUNTS))
        for graphs in (True, False):
            captured = launched = 0
            for count in COUNTS:
                make = partial(GpuNetwork, gpu=gpu, name=architecture, most_running=RUNNING, graphs=graphs)
                played: Any = Played(reference, count, make=make, most_running=RUNNING)
                played.check(reference)
                captured += len(played.network.decoding.captured)
                launched += played.network.decoding.launched
            assert (launched > 0) is graphs, f"{launched} graphs were launched"
            figures[f"{architecture}, graphs {graphs}"] = {"captured": captured, "launched": launched}


def measure(figures: dict[str, Any], torch: Any, gpu: Any, folder: Path) -> None:
    """Tokens a second of steps without prompts, by how many texts are in them."""
    transformers = need("transformers")

    from trireme.engine.backends.generation.gpu_network import GpuNetwork

    torch.manual_seed(5)
    config = transformers.LlamaConfig(**LARGE, bos_token_id=None, eos_token_id=None)
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(folder / "large")
    blocks = RUNNING * -(-(PROMPT + NEW) // SIZE)
    for graphs in (False, True):
        network: Any = GpuNetwork(
            folder / "large", blocks, SIZE, gpu=gpu, name="large", most_running=RUNNING, graphs=graphs
        )
        for count in (1, 8, RUNNING):
            tokens_per_s(network, blocks, count)  # which captures
            figures[f"tokens a second, {count} texts, graphs {graphs}"] = round(tokens_per_s(network, blocks, count), 1)
        figures[f"shapes captured, graphs {graphs}"] = [tuple(shape) for shape in network.decoding.captured]


def tokens_per_s(network: Any, blocks: int, count: int) -> float:
    from trireme.engine.generation.blocks import BlockMemory
    from trireme.engine.generation.iterations import IterationLimits, Iterations
    from trireme.engine.generation.requests import Generation

    limits = IterationLimits(context=network.context, most_tokens=RUNNING * PROMPT, most_running=RUNNING)
    core = Iterations(BlockMemory(blocks, SIZE, shares=False), limits, lambda _ended: None)
    for number in range(count):
        core.arrive(Generation(number, [1 + number % 30] * PROMPT, NEW))
    tokens, seconds = 0, 0.0
    while (step := core.begin_step(0.0)) is not None:
        began_s = time.perf_counter()
        network.run(step)
        if step.tokens == len(step.pieces):
            seconds += time.perf_counter() - began_s
            tokens += step.tokens
        core.end_step({piece.generation: [1] for piece in step.pieces if piece.draws}, lambda _generation: False)
    return tokens / seconds


def group(figures: dict[str, Any]) -> None:
    torch = need_torch()
    for name in ("transformers", "safetensors"):
        need(name)
    from trireme.engine.gpu.torch_device import TorchDevices

    gpu = TorchDevices().get(0)
    with tempfile.TemporaryDirectory() as folder:
        compare(figures, gpu, Path(folder))
        measure(figures, torch, gpu, Path(folder))


if __name__ == "__main__":
    main(group)
