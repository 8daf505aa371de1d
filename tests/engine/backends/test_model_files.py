"""Which file an instance is made from (docs/reference/model-configuration.md#other-fields, ``cc_model_filenames``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.engine.backends.interface import InstanceSpec, ModelFiles
from trireme.engine.config.model import ModelConfig

FILES = ModelFiles(Path("m"), 2, {0: "8.0", 1: "9.0"})
CONFIG = ModelConfig("m", default_model_filename="any.plan", cc_model_filenames={"8.0": "ampere.plan"})


@pytest.mark.parametrize(
    ("kind", "device", "name"),
    [
        ("KIND_GPU", 0, "ampere.plan"),
        ("KIND_GPU", 1, "any.plan"),
        ("KIND_GPU", 5, "any.plan"),
        ("KIND_CPU", 0, "any.plan"),
        ("KIND_MODEL", 0, "any.plan"),
    ],
)
def test_the_compute_capability_of_the_gpu_chooses(kind: str, device: int, name: str) -> None:
    assert FILES.model_path(CONFIG, InstanceSpec("m_0", kind, device), "model.plan") == Path("m/2") / name


def test_without_any_name_it_is_the_backends_own() -> None:
    assert FILES.model_path(ModelConfig("m"), InstanceSpec("m_0", "KIND_GPU"), "model.plan") == Path("m/2/model.plan")
