"""A small network of Llama's kind, of random numbers, with a token for each byte; and adapters for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counting_network import ALPHABET, write_tokenizer

PROMPT, NEW = "Once upon a time", 20
LAYERS, WIDTH, RANK = 2, 32, 4


def write_llama(directory: Path, context: int = 128) -> str:
    """Store it; how `PROMPT` goes on for `NEW` tokens, by transformers' own code."""
    import torch
    import transformers

    torch.manual_seed(4)
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=len(ALPHABET),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
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


def write_adapter(directory: Path, seed: int) -> None:
    """Store one, as PEFT does, that changes what a text comes to."""
    import safetensors.torch
    import torch

    directory.mkdir(parents=True)
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16 * RANK, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(about))
    torch.manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, WIDTH)
        weights[f"{name}.lora_B.weight"] = torch.randn(WIDTH, RANK)
    safetensors.torch.save_file(weights, str(directory / "adapter_model.safetensors"))
