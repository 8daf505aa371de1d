"""Pages and pictures that are made from the code are those that the code makes now."""

from __future__ import annotations

import ast

import drawings
import pytest
import reference
from PIL import Image
from references import ROOT, links

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return reference.pages()


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_of_the_reference_is_up_to_date(name: str, made: dict[str, str]) -> None:
    """If it is not: python docs/site/reference.py."""
    assert made[name] == reference.path_of(name).read_text(), "run python docs/site/reference.py"


def test_every_metric_family_of_the_sources_is_listed(made: dict[str, str]) -> None:
    """Those too whose name is a constant of the module, or put together."""
    page = made["metric-families"]
    assert "`nv_inference_queue_summary_us` | summary |" in page  # whose name is put together
    named = {
        node.value
        for folder in reference.METRIC_SOURCES
        for path in (ROOT / folder).rglob("metrics/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("trireme_")
    }
    assert len(named) > 20
    assert sorted(name for name in named if f"`{name}`" not in page) == []


@pytest.mark.parametrize("name", ["request", "actors"])
def test_a_drawing_is_up_to_date(name: str) -> None:
    """If it is not: python docs/site/drawings.py."""
    assert drawings.drawings()[name] == (drawings.PICTURES / f"{name}.svg").read_text()


def test_the_picture_of_the_package_index_is_that_of_the_readme() -> None:
    """If it is not: python docs/site/drawings.py --png."""
    picture = Image.open(drawings.PICTURES / f"{drawings.ON_THE_INDEX}.png")
    assert picture.info["made of"] == drawings.digest(drawings.drawings()[drawings.ON_THE_INDEX])
    assert f"docs/pictures/{drawings.ON_THE_INDEX}.svg" in (ROOT / "README.md").read_text()


def test_the_tree_has_the_actors_that_there_are() -> None:
    """Each of its boxes is a class of actors/, and each class of an actor is a box."""
    classes = {
        node.name: [ast.unparse(base) for base in node.bases]
        for path in (ROOT / "actors").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    drawn = {actor.name for actor in drawings.ACTORS}
    assert sorted(drawn - classes.keys()) == []
    alive = {name for name, bases in classes.items() if any(base.startswith(("Actor[", "Door[")) for base in bases)}
    assert sorted(alive - drawn) == ["Door", "StreamExecutor"]  # what doors have in common; a kind of Executor


def test_every_document_is_in_the_index() -> None:
    listed = {link.partition("#")[0] for _, link in links((DOCS / "README.md").read_text())}
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.parent.name != "reference"}
    assert sorted(pages - listed - {"README.md"}) == []
