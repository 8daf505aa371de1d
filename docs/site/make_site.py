"""Makes a site with search of the documents, with Sphinx: `make docs`.

    python docs/site/make_site.py [FOLDER]     # default: build/site

Sphinx reads a copy of docs/, in which docs/README.md says what stands where in the site's index, and links to files
outside of docs/ lead to the repository. A warning is an error. The pages load nothing from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
import runpy
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HERE = Path(__file__).parent

INDEX = "index" + ".md"

_LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?:|#|mailto:)([^()\s]+)\)")
_ROW = re.compile(r"^\| \[[^\]]*\]\(([^)#]+)\.md\) \|", re.MULTILINE)
"""A row of a table that lists pages."""


def repository() -> str:
    """Where files of this version are, outside of the site."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    version = runpy.run_path(str(ROOT / "engine" / "version.py"))["VERSION"]
    return f"{urls['Repository']}/blob/v{version}"


def with_links_of_the_site(text: str, folder: str, base: str) -> str:
    """The text of a page of a folder below docs/: links out of docs/ are addresses below `base`, and a folder's README
    is its index."""

    def lead(link: re.Match[str]) -> str:
        shown, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        inside = path.startswith("docs/") and "/site/" not in path
        return f"{shown}({target.replace('README.md', INDEX)})" if inside else f"{shown}({base}/{path})"

    return _LINK.sub(lead, text)


def with_index(text: str) -> str:
    """A page whose tables list others, with Sphinx's index of those, section by section."""
    parts = re.split(r"^(?=##+ )", text, flags=re.MULTILINE)
    return "\n".join(part + "\n".join(_toctree(part)) for part in parts)


def _toctree(section: str) -> Iterator[str]:
    pages = _ROW.findall(section)
    if pages:
        title = section.splitlines()[0].lstrip("# ").partition(":")[0]
        yield from ("", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", "")


def prepare(folder: Path) -> None:
    """Copy the documents into an empty folder, as Sphinx wants them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("site", "__pycache__"))
    shutil.copy(HERE / "conf.py", folder)
    base = repository()
    for page in folder.rglob("*.md"):
        inner = page.parent.relative_to(folder).as_posix()
        text = with_links_of_the_site(page.read_text(), inner, base)
        if page.name == "README.md":
            page.unlink()
            page, text = page.with_name(INDEX), with_index(text)
        page.write_text(text)


def build(target: Path) -> int:
    """Make the site in a folder; returns Sphinx's exit code."""
    from sphinx.cmd.build import build_main

    source = target.with_name(f"{target.name}-source")
    prepare(source)
    return build_main(["--fail-on-warning", "--keep-going", "--fresh-env", "--quiet", str(source), str(target)])


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    chosen.parent.mkdir(parents=True, exist_ok=True)
    code = build(chosen)
    if code == 0:
        sys.stdout.write(f"{chosen / 'index.html'}\n")
    sys.exit(code)
