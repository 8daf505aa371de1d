"""Random networks of transformers, what their own `generate` makes of prompts, and texts to be compared with that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers

from trireme.engine.backends.generation.network import Network
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationLimits, Iterations
from trireme.engine.generation.requests import Generation

VOCABULARY, CONTEXT, NEW = 97, 128, 10
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
}
ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=7)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=16)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            bos_token_id=None,
            eos_token_id=None,
        )
    ),
}


@contextmanager
def one_thread() -> Iterator[None]:
    """Such networks are computed faster so, above all beside other tests."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    yield
    torch.set_num_threads(count)


class Reference:
    """A random network, where it is stored, and what its own `generate` makes of some prompts.

    Attributes:
        prompts: so many of 1 to 40 tokens; every other one begins like the others of these.
        texts: they and what follows, greedily.
    """

    def __init__(self, architecture: str, directory: Path, count: int = 32) -> None:
        torch.manual_seed(5)
        model = ARCHITECTURES[architecture]().eval()
        for weights in model.parameters():
            weights.data.mul_(3)  # so that no two tokens are about as probable
        model.save_pretrained(directory)
        self.directory = directory
        chance = Random(3)
        beginning = [chance.randrange(VOCABULARY) for _ in range(18)]
        self.prompts: list[list[int]] = []
        for number in range(count):
            own = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 22))]
            self.prompts.append(beginning + own if number % 2 else own)
        self.texts = [self._generated(model, prompt) for prompt in self.prompts]

    def _generated(self, model: Any, prompt: list[int]) -> list[int]:
        tokens = torch.tensor([prompt])
        mask = torch.ones_like(tokens)
        return model.generate(tokens, attention_mask=mask, max_new_tokens=NEW, do_sample=False)[0].tolist()


class Played:
    """Texts, generated together; the first so many of a reference.

    Args:
        make: makes the network.

    Attributes:
        network: what computes them.
        widest: most pieces of a step.
    """

    def __init__(
        self,
        reference: Reference,
        count: int,
        *,
        blocks: int = 400,
        shares: bool = True,
        packs: bool = False,
        make: Callable[..., Network] = Network,
        **limits: Any,
    ) -> None:
        limits = {"context": CONTEXT, "most_tokens": 200, "most_running": 32, **limits}
        self.memory = BlockMemory(blocks, 4, shares=shares)
        self.core = Iterations(self.memory, IterationLimits(**limits), lambda _ended: None)
        self.network = make(reference.directory, blocks, 4, limits.get("held", 0))
        if packs:
            self.network.pack()
        self.generations = [
            Generation(number, list(each), NEW) for number, each in enumerate(reference.prompts[:count])
        ]
        for generation in self.generations:
            self.core.arrive(generation)
        self.widest = 0
        self.play()

    def play(self) -> None:
        while (step := self.core.begin_step(0.0)) is not None:
            self.widest = max(self.widest, len(step.pieces))
            drawing = [piece.generation for piece in step.pieces if piece.draws]
            drawn = zip(drawing, self.network.run(step), strict=True)
            self.core.end_step({each: [int(logits.argmax())] for each, logits in drawn}, lambda _generation: False)

    def check(self, reference: Reference) -> None:
        for generation, text in zip(self.generations, reference.texts, strict=False):
            assert generation.tokens == text, f"prompt {generation.number}"
