"""What the repository cites is in the repository: documents, headings, and the exact texts of the reference.

``docs/reference/`` is the contract with clients. Code and tests cite it by page and heading, in one form:
``docs/reference/scheduling.md#priorities``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from references import (
    CITATION,
    REFERENCE,
    ROOT,
    SECTION,
    STANDARD,
    SourceTexts,
    anchors,
    exact_texts,
    links,
    tracked_files,
    without_links,
)

from trireme.api.cli.completion import all_commands
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.main import command_parser
from trireme.engine.metrics import families

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES = sorted(REFERENCE.glob("*.md"))
OF_TOOLS = frozenset({"benchmarks.md", "simulations.md", "gpu.md", "kubernetes.md", "foresight.md", "CHANGELOG.md"})
"""Documents that name flags of scripts, which are not those of `trireme serve`."""
OTHER_FLAGS = frozenset({"seed", "seeds", "flag"})
"""Flags of the simulator, and one that stands for any."""
ELSEWHERE = frozenset({"x.md", "bench.md"})
"""Names that stand for no document of this repository: examples in tests, and what `make bench` writes."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    """Every relative link in the documents, its anchor included."""
    for line, link in links(document.read_text()):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{name_of(document)}:{line} links to {link}: there is no such file"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name_of(document)}:{line} links to {link}: there is no such heading"


def test_citations_resolve() -> None:
    """Whatever code, tests and documents cite: a document from the repository's root, and a heading in it."""
    wrong = []
    for path in tracked_files():
        text = without_links(path.read_text()) if path.suffix == ".md" else path.read_text()
        for match in CITATION.finditer(text):
            where = f"{name_of(path)}:{text.count(chr(10), 0, match.start()) + 1} cites {match[0]}"
            places = [ROOT, ROOT / "docs", *([path.parent] if path.suffix == ".md" else [])]
            target = next((found for place in places if (found := place / match[1]).is_file()), None)
            if target is None:
                if match[1].rpartition("/")[2] not in ELSEWHERE:
                    wrong.append(f"{where}: there is no such document")
            elif match[2] and match[2][1:] not in anchors(target):
                wrong.append(f"{where}: there is no such heading")
    assert not wrong, "\n".join(wrong)


def test_sections_are_of_standards() -> None:
    """A section sign cites a document by number. Only published standards, named in front of it, may be cited so."""
    wrong = []
    for path in tracked_files():
        text = path.read_text()
        for match in SECTION.finditer(text):
            if name_of(path) != "tests/support/references.py" and not STANDARD.search(text[: match.start()]):
                line = text.count("\n", 0, match.start()) + 1
                wrong.append(f"{name_of(path)}:{line} cites a section, but of no standard")
    assert not wrong, "\n".join(wrong)


def test_every_page_is_in_the_index() -> None:
    listed = {link.partition("#")[0] for _, link in links((REFERENCE / "README.md").read_text())}
    assert {page.name for page in PAGES} - {"README.md"} <= listed


@pytest.fixture(scope="module")
def sources() -> SourceTexts:
    return SourceTexts(
        path
        for folder in ("api", "engine", "python_backend", "actors", "front_ends", "gateway", "cluster")
        for path in (ROOT / folder).rglob("*.py")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_exact_texts_are_those_of_the_code(page: Path, sources: SourceTexts) -> None:
    """A text that the reference promises to the letter is sent by something."""
    for line, text in exact_texts(page.read_text()):
        missing = sources.missing(text)
        assert not missing, f"{name_of(page)}:{line}: no source has {missing!r} of {text!r}"


def test_a_wrong_text_is_noticed(sources: SourceTexts) -> None:
    page = "| Case | Text |\n|---|---|\n| a | `Exceeds maximum queue length` |\n"
    assert [sources.missing(text) for _, text in exact_texts(page)] == ["Exceeds maximum queue length"]


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each.name not in OF_TOOLS], ids=name_of)
def test_flags_exist(document: Path) -> None:
    """Every flag that a document names in code is one of a sub-command."""
    named = set(re.findall(r"`--([a-z][a-z0-9-]*[a-z0-9])(?=[=` ])", document.read_text()))
    known = {option.name[2:] for _, options in all_commands(command_parser(None)).values() for option in options}
    assert sorted(named - known - OTHER_FLAGS) == []


def test_metric_families_exist(sources: SourceTexts) -> None:
    names = {name for page in PAGES for name in re.findall(r"`(nv_\w+)`", page.read_text())}
    assert len(names) > 30
    made = {name for name, *_ in (*families._DURATIONS, *families._SUMMARIES)}  # of the names of their kinds
    unknown = [name for name in sorted(names - made) if sources.missing(name)]
    assert [name for name in unknown if sources.missing(name.removeprefix("nv_cache_"))] == []


def test_defaults_of_flags_are_those_of_the_command_line() -> None:
    """Where the reference gives a flag of its own row a default, it is that of `trireme serve`."""
    checked = 0
    for page in PAGES:
        for names, cell in re.findall(r"^\| (`--[^|]+`) \| ([^|]*) \|", page.read_text(), re.MULTILINE):
            flags = [FLAGS[name] for name in re.findall(r"`--([a-z0-9-]+)`", names) if name in FLAGS]
            values = [value.split(";")[0].strip() for value in cell.split(",")]
            for flag, value in zip(flags, values, strict=False):
                if re.fullmatch(r"true|false|\d+(\.\d+)*( ms)?", value):
                    assert str(flag.default).lower() == value.removesuffix(" ms"), f"{page.name}: --{flag.name}"
                    checked += 1
    assert checked > 20
