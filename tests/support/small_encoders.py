"""Small random encoders, of several architectures, with a tokenizer that has a token for each letter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

ALPHABET = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz ,."]
PAD, UNKNOWN, BEGIN, SEPARATE = range(4)
CONTEXT = 64
SIZES: Mapping[str, Any] = {
    "vocab_size": len(ALPHABET),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": PAD,
}
_DISTILBERT: Mapping[str, Any] = {
    "vocab_size": len(ALPHABET),
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": CONTEXT,
}
_MODERN: Mapping[str, Any] = {
    **SIZES,
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
    "bos_token_id": BEGIN,
    "eos_token_id": SEPARATE,
    "cls_token_id": BEGIN,
    "sep_token_id": SEPARATE,
}

Making = Callable[..., Any]
ENCODERS: Mapping[str, Making] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
    "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**SIZES)),
    "xlm-roberta": lambda: transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**SIZES)),
    "distilbert": lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**_DISTILBERT)),
    "modernbert": lambda: transformers.ModernBertModel(transformers.ModernBertConfig(**_MODERN)),
    "mistral": lambda: transformers.MistralModel(
        transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=7)
    ),
}
CLASSIFIERS: Mapping[str, Making] = {
    "bert": lambda **labels: transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **labels)),
    "roberta": lambda **labels: transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(**SIZES, **labels)
    ),
    "distilbert": lambda **labels: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**_DISTILBERT, **labels)
    ),
    "modernbert": lambda **labels: transformers.ModernBertForSequenceClassification(
        transformers.ModernBertConfig(**_MODERN, classifier_pooling="mean", **labels)
    ),
}


def random_network(make: Making, **labels: Any) -> Any:
    """A network whose results differ well from text to text."""
    torch.manual_seed(5)
    network = make(**labels).eval()
    for weights in network.parameters():
        weights.data.mul_(3)
    return network


def make_tokenizer() -> Tokenizer:
    """One token for each letter, between a first and a last one, as BERT's."""
    tokenizer = Tokenizer(models.WordLevel({each: place for place, each in enumerate(ALPHABET)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", BEGIN), ("[SEP]", SEPARATE)],
    )
    return tokenizer


def write_dense(directory: Path, linear: Any, activation: str) -> None:
    """Store a layer as sentence-transformers does."""
    directory.mkdir(exist_ok=True)
    about = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": f"torch.nn.modules.activation.{activation}",
    }
    (directory / "config.json").write_text(json.dumps(about))
    weights = {f"linear.{name}": value.detach() for name, value in linear.state_dict().items()}
    safetensors.torch.save_file(weights, str(directory / "model.safetensors"))


def write_encoder(
    directory: Path,
    network: Any,
    *,
    tokenizer: bool = True,
    modules: tuple[str, ...] = (),
    denses: Sequence[tuple[Any, str]] = (),
) -> None:
    """Store a network; with modules, as sentence-transformers does.

    Args:
        modules: a pooling as its configuration calls it, such as ``pooling_mode_cls_token``; and ``normalize``.
        denses: layers after the pooling, with the names of their activations.
    """
    directory.mkdir(parents=True, exist_ok=True)
    network.save_pretrained(directory)
    if tokenizer:
        make_tokenizer().save(str(directory / "tokenizer.json"))
    if not modules:
        return
    listed = [("", "Transformer"), ("1_Pooling", "Pooling")]
    for number, (linear, activation) in enumerate(denses):
        listed.append((f"{number + 2}_Dense", "Dense"))
        write_dense(directory / f"{number + 2}_Dense", linear, activation)
    if "normalize" in modules:
        listed.append(("9_Normalize", "Normalize"))
    rows = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(listed)
    ]
    (directory / "modules.json").write_text(json.dumps(rows))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False}
    pooling |= {name: True for name in modules if name.startswith("pooling_mode")}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
