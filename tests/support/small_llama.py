"""A small network of Llama's kind, of random numbers, with a token for each byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counting_network import ALPHABET, write_tokenizer

PROMPT, NEW = "Once upon a time", 20


def write_llama(directory: Path, context: int = 128) -> str:
    """Store it; how `PROMPT` goes on for `NEW` tokens, by transformers' own code."""
    import torch
    import transformers

    torch.manual_seed(4)
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=len(ALPHABET),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = transformers.LlamaForCausalLM(config).eval()
    for weights in model.parameters():
        weights.data.mul_(3)
    directory.mkdir(parents=True)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    tokens = tokenizer(PROMPT, return_tensors="pt").input_ids
    mask = torch.ones_like(tokens)
    return tokenizer.decode(model.generate(tokens, attention_mask=mask, max_new_tokens=NEW, do_sample=False)[0])
