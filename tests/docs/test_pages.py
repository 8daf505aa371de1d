"""What the documents show is what happens: their commands are run, and their outputs compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from documents import ROOT, Reader

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the pages' commands need curl")

BESIDE_MODELS = (
    "docs/example-models.md",
    "docs/clients.md",
    "docs/embedding.md",
    "docs/generate.md",
    "docs/openai.md",
)
"""Pages that are read in the root of a checkout."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python", "command-line", "comparison"])
def test_a_page_for_an_empty_folder(name: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read((ROOT / "docs" / name).with_suffix(".md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE_MODELS)
def test_a_page_for_a_checkout(name: str) -> None:
    with Reader(ROOT) as reader:
        reader.read(ROOT / name)


def test_the_readme(tmp_path: Path) -> None:
    """Read in a folder where the models that come with Trireme lie, as in a checkout."""
    (tmp_path / "model_repository").symlink_to(ROOT / "model_repository")
    with Reader(tmp_path) as reader:
        reader.read(ROOT / "README.md")


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert all(word in text for word in ("`.ci/run`", "make serve", "`make test`"))
