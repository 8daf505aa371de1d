"""Random networks of transformers, each with a tokenizer, for benchmarks of generation. Nothing is downloaded: the
tokenizer is trained on the texts of this repository's documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[1]
VOCABULARY, CONTEXT = 12_288, 2_048
SHAPES: Mapping[str, Mapping[str, int]] = {
    "small": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8},
    "medium": {"hidden_size": 512, "intermediate_size": 1_376, "num_hidden_layers": 8, "num_attention_heads": 8},
}
"""Sizes of Llama: 12 million weights, and 42 million."""


def make_network(directory: Path, shape: str, dtype: str = "float32") -> tokenizers.Tokenizer:
    """A Llama of random weights in Hugging Face's layout, which never ends a text by itself.

    Args:
        shape: of `SHAPES`.

    Returns:
        Its tokenizer.
    """
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, **SHAPES[shape]}
    sizes |= {"num_key_value_heads": 4, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False}
    transformers.utils.logging.disable_progress_bar()
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).to(getattr(torch, dtype))
    network.save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train([str(path) for path in document_paths()], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    return tokenizer


def document_paths() -> list[Path]:
    """Texts for tokenizers and prompts."""
    return sorted((ROOT / "docs").rglob("*.md"))
