"""What the documents show is what happens: their commands are run, and their outputs compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from documents import ROOT, Reader, indented_commands, steps
from page_models import copy_models, write_encoders, write_writer
from s3_endpoint import s3_endpoint

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the pages' commands need curl")

EMPTY = (
    "comparison",
    "command-line",
    "frameworks",
    "metrics",
    "python",
    "request_logs",
    "response_cache",
    "simulations",
)
"""Pages that are read in an empty folder."""
SOME_MODELS = (
    "access",
    "console",
    "foresight",
    "front_ends",
    "gateway",
    "on_demand",
    "planning",
    "production",
    "python_models",
    "routes",
    "tracing",
)
"""Pages that are read beside copies of some models, in the folder `models`."""
CHECKOUT = ("clients", "embedding", "example-models", "generate", "openai")
"""Pages that are read in the root of a checkout."""
BESIDE_OTHERS = frozenset({"encoders", "generation", "migrating-from-triton", "repositories"})
"""Pages that are read beside something else: each has a test of its own here."""
ELSEWHERE = frozenset(
    {
        "cluster",  # tests/cluster/test_on_ray.py
        "batch_strategies",  # tests/engine/scheduling/test_strategy.py
        "errors",  # tests/api/cli/test_remedies.py
        "migrating-from-torchserve",  # tests/wire/test_migration_from_torchserve.py
        "stubs",  # test_stubs.py
    }
)
"""Pages that other tests read."""
TUTORIALS = [page.stem for page in (ROOT / "docs" / "tutorials").glob("*.md")]  # test_tutorials.py
REFERENCE = ROOT / "docs" / "reference"
"""Its blocks are exchanges and texts, which other tests take from there, layouts, and signatures."""
PAGES = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.name != "errors.md"]
READ = {*EMPTY, *SOME_MODELS, *CHECKOUT, *BESIDE_OTHERS, *ELSEWHERE, *TUTORIALS}
UNREAD = [page for page in PAGES if page.stem not in READ and page != ROOT / "README.md"]


def read(name: str, folder: Path) -> None:
    with Reader(folder) as reader:
        reader.read((ROOT / "docs" / name).with_suffix(".md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", EMPTY)
def test_a_page_for_an_empty_folder(name: str, tmp_path: Path) -> None:
    read(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_MODELS)
def test_a_page_for_some_models(name: str, tmp_path: Path) -> None:
    copy_models(tmp_path / ("model_repository" if name == "routes" else "models"), "digits", "simple")
    read(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKOUT)
def test_a_page_for_a_checkout(name: str) -> None:
    read(name, ROOT)


@pytest.mark.slow
def test_the_page_on_models_that_generate(tmp_path: Path) -> None:
    write_writer(tmp_path / "models", "lawyer", "pirate")
    read("generation", tmp_path)


@pytest.mark.slow
def test_the_page_on_encoders(tmp_path: Path) -> None:
    write_encoders(tmp_path / "models")
    read("encoders", tmp_path)


@pytest.mark.slow
def test_the_page_on_migrating_from_triton(tmp_path: Path) -> None:
    """With another Trireme in the place of Triton."""
    copy_models(tmp_path / "models", "digits", "simple")
    with Reader(tmp_path) as reader:
        reader.serve("trireme serve --model-repository models")
        reader.read(ROOT / "docs" / "migrating-from-triton.md")


@pytest.mark.slow
def test_the_page_on_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small endpoint in the place of Amazon's, as the environment says."""
    with s3_endpoint() as endpoint:
        endpoint.bucket, endpoint.folder = "models", "production"
        for name in ("digits", "simple"):
            for path in (ROOT / "model_repository" / name).rglob("*.*"):
                endpoint.put(path.relative_to(ROOT / "model_repository").as_posix(), path.read_bytes())
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{endpoint.server_address[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        read("repositories", tmp_path)


@pytest.mark.parametrize("page", UNREAD, ids=lambda page: page.stem)
def test_a_page_that_no_test_reads_only_shows_something(page: Path) -> None:
    """Or says of a block why it is not run."""
    run = {"command", "program", "file"} if page.parent == REFERENCE else {"command", "program", "file", "unknown"}
    assert [step.line for step in steps(page.read_text(encoding="utf-8")) if step.kind in run] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_in_blocks_that_are_run(page: Path) -> None:
    """And not in indented ones."""
    assert list(indented_commands(page.read_text(encoding="utf-8"))) == []


def test_the_readme(tmp_path: Path) -> None:
    """Read in a folder where the models that come with Trireme lie, as in a checkout."""
    (tmp_path / "model_repository").symlink_to(ROOT / "model_repository")
    with Reader(tmp_path) as reader:
        reader.read(ROOT / "README.md")


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert all(word in text for word in ("`.ci/run`", "make serve", "`make test`"))
