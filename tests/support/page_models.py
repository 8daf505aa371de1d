"""Models that pages take for granted, under the names that they have there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import safetensors.numpy
from small_encoders import CLASSIFIERS, ENCODERS, random_network, write_encoder

ROOT = Path(__file__).parents[2]


def copy_models(models: Path, *names: str) -> None:
    """Models of `model_repository`, which a page may change."""
    for name in names:
        shutil.copytree(ROOT / "model_repository" / name, models / name)


def write_writer(models: Path, *adapters: str) -> None:
    """A model that writes tales, as `writer`, with adapters that change what it writes."""
    version = models / "writer" / "1"
    shutil.copytree(ROOT / "generation_repository" / "narrator" / "1", version)
    (models / "writer" / "config.pbtxt").write_text('backend: "generation"\n')
    for seed, name in enumerate(adapters):
        folder = version / "adapters" / name
        folder.mkdir(parents=True)
        settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        random = np.random.default_rng(seed)
        layers = json.loads((version / "config.json").read_text())["num_hidden_layers"]
        weights = {
            f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight": random.normal(
                0, 0.1, shape
            ).astype(np.float32)
            for layer in range(layers)
            for part, shape in (("A", (4, 128)), ("B", (128, 4)))
        }
        safetensors.numpy.save_file(weights, folder / "adapter_model.safetensors")


def write_encoders(models: Path) -> None:
    """`vectors` makes embeddings, `ranks` the scores of pairs."""
    modules = ("pooling_mode_mean_tokens", "normalize")
    write_encoder(models / "vectors" / "1", random_network(ENCODERS["bert"]), modules=modules)
    write_encoder(models / "ranks" / "1", random_network(CLASSIFIERS["bert"], num_labels=1))
