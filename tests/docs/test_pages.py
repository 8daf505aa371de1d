"""What the documents show is what happens: their commands are run, and their outputs compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from documents import ROOT, Reader, steps

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the pages' commands need curl")

BESIDE_MODELS = (
    "docs/example-models.md",
    "docs/clients.md",
    "docs/embedding.md",
    "docs/generate.md",
    "docs/openai.md",
)
"""Pages that are read in the root of a checkout."""


IN_AN_EMPTY_FOLDER = ("python", "command-line", "comparison", "response_cache", "request_logs", "access")
BESIDE_SOME_MODELS = ("routes", "tracing", "on_demand", "console", "front_ends")
"""Pages that are read in a folder with copies of some of the models, as `model_repository` or as `models`."""
OTHERS = frozenset({"errors"})
"""Pages that other tests make, or follow."""


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_AN_EMPTY_FOLDER)
def test_a_page_for_an_empty_folder(name: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read((ROOT / "docs" / name).with_suffix(".md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE_SOME_MODELS)
def test_a_page_for_some_models(name: str, tmp_path: Path) -> None:
    folder = tmp_path / ("model_repository" if name == "routes" else "models")
    for model in ("digits", "simple"):
        shutil.copytree(ROOT / "model_repository" / model, folder / model)
    with Reader(tmp_path) as reader:
        reader.read((ROOT / "docs" / name).with_suffix(".md"))


def test_each_console_block_is_run_or_says_why_not() -> None:
    """Of the pages that no test here follows."""
    followed = {
        *IN_AN_EMPTY_FOLDER,
        *BESIDE_SOME_MODELS,
        *OTHERS,
        *(Path(each).stem for each in BESIDE_MODELS),
        "stubs",
    }
    for page in (ROOT / "docs").glob("*.md"):
        if page.stem not in followed:
            commands = [step for step in steps(page.read_text(encoding="utf-8")) if step.kind == "command"]
            assert commands == [], f"{page.name}: no test runs these"


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
