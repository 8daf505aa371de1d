"""Reads what the repository says about its own documents: citations, links, headings, exact texts."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"

CITATION = re.compile(r"(?<![\w./-])((?:docs/)?(?:reference/)?[\w.-]+\.md)(?:(#[\w-]*)|\b)")
"""A document that is named outside of a Markdown link: ``docs/reference/http.md#routes``, ``CONTRIBUTING.md``."""
SECTION = re.compile(r"§")
"""How documents outside of the repository are cited. Standards have sections, too; they are named before it."""
STANDARD = re.compile(r"\bRFC \d+(?: §[\d.]+,)*\s*$")

_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^```", re.MULTILINE)
_EXACT = ("Text", "HELP")
_PLACEHOLDER = re.compile(r"<[^<>]*>|\[R\]")
_FORMAT = re.compile(r"%[a-z]|%\.\d[a-z]|\{\w*\}")
_TRIMMED = " '\".,:;()[]\n"
_SHORTEST = 4


def tracked_files() -> list[Path]:
    """The files of the repository that are text, and may cite something."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    wanted = (".py", ".md", ".proto", ".toml", ".pbtxt", ".sh")
    return [ROOT / name for name in names if name.endswith(wanted) and (ROOT / name).is_file()]


@cache
def anchors(document: Path) -> frozenset[str]:
    """The anchors of a document's headings, as Markdown viewers make them."""
    text = _without_fences(document.read_text())
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return frozenset(found)


def links(text: str) -> Iterator[tuple[int, str]]:
    """The targets of a Markdown text's links, with their lines; those of the web left out."""
    plain = _without_fences(text)
    for match in _LINK.finditer(plain):
        if "://" not in match[1] and not match[1].startswith("mailto:"):
            yield plain.count("\n", 0, match.start()) + 1, match[1]


def without_links(text: str) -> str:
    """The text, its links' targets blanked."""
    return _LINK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def exact_texts(document: str) -> Iterator[tuple[int, str]]:
    """What a page of the reference promises to the letter: code in columns called Text or HELP, and ``text`` blocks."""
    column = block = None
    for number, line in enumerate(document.splitlines(), start=1):
        if line.startswith("```"):
            block = line[3:] if block is None else None
        elif block == "text" and line:
            yield number, line
        elif block is None and line.startswith("|"):
            cells = line.strip("|").split(" | ")
            titles = [cell.strip() for cell in cells]
            if column is None:
                column = next((titles.index(title) for title in _EXACT if title in titles), -1)
            elif column >= 0 and len(cells) > column:
                for code in re.finditer(r"``(.+?)``|`([^`]+)`", cells[column]):
                    yield number, code[1] or code[2]
        else:
            column = None


class SourceTexts:
    """All texts in the sources of some folders, cut at the places where values are put in."""

    def __init__(self, files: Iterable[Path]) -> None:
        pieces: set[str] = set()
        for path in files:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant):
                    if isinstance(node.value, str):
                        pieces.update(_FORMAT.split(node.value))
                    elif isinstance(node.value, bytes):
                        pieces.add(node.value.decode("latin-1"))
        self._pieces = {trimmed for piece in pieces if len(trimmed := piece.strip(_TRIMMED)) >= _SHORTEST}
        self._all = "\0".join(self._pieces)

    def missing(self, text: str) -> str:
        """The first part of `text`, values aside, that is in no source; empty if there is none."""
        for line in text.split("\\n"):
            for part in _PLACEHOLDER.split(line):
                fragment = part.strip(_TRIMMED)
                if len(fragment) >= _SHORTEST and not self._has(fragment):
                    return fragment
        return ""

    def _has(self, fragment: str, joints: int = 4) -> bool:
        """Whether it is in a source, or put together of so many pieces that are."""
        if fragment in self._all:
            return True
        if not joints:
            return False
        words = [match.start() for match in re.finditer(r"(?<=[\s:.,'])\S|(?<=\S)'", fragment)]
        return any(
            self._is_piece(fragment[:at]) and self._has(fragment[at:].strip(_TRIMMED), joints - 1)
            for at in reversed(words)
        )

    def _is_piece(self, text: str) -> bool:
        trimmed = text.strip(_TRIMMED)
        return len(trimmed) < _SHORTEST or trimmed in self._pieces or f"{trimmed}\0" in self._all


def _without_fences(text: str) -> str:
    """The text, fenced code blanked; lines stay where they are."""
    lines = []
    inside = False
    for line in text.splitlines():
        fence = bool(_FENCE.match(line))
        lines.append("" if inside or fence else line)
        inside ^= fence
    return "\n".join(lines)
