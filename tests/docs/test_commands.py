"""Every `trireme` command in a block of a document is one that there is, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from references import ROOT

from trireme.api.cli.completion import all_commands
from trireme.api.cli.main import command_parser

WRONG_ON_PURPOSE = frozenset({"errors" + ".md"})
"""Pages whose commands are mistakes."""
DOCUMENTS = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.name not in WRONG_ON_PURPOSE]
COMMANDS = {
    name: {option.name for option in options} for name, (_, options) in all_commands(command_parser(None)).items()
}
COMMAND = re.compile(r"^(?:    )?(?:\$ )?(?:\.venv/bin/)?(trireme (?:[^\n\\]|\\\n)*)", re.MULTILINE)
BLOCK = re.compile(r"^```(?:console|sh)?\n(.*?)^```$|((?:^(?:    [^\n]*)?\n)+)", re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, up to what the shell does with it."""
    for block in BLOCK.finditer(text):
        for command in COMMAND.findall(block[1] or block[2] or ""):
            line = re.split(r" [|>&;] ?|\|\|", command.replace("\\\n", ""))[0]
            yield shlex.split(line, comments=True)


def mistakes(words: list[str]) -> Iterator[str]:
    name = words[1] if len(words) > 1 else "--help"
    if name.startswith(("-", "COMMAND", "[")):
        return
    if name not in COMMANDS:
        yield f"there is no 'trireme {name}'"
        return
    known = COMMANDS[name] | {"--help"}
    own = words[: words.index("--")] if "--" in words else words
    given = [word.partition("=")[0] for word in own[2:] if re.match(r"--[a-z]", word)]
    yield from (f"'trireme {name}' has no {option}" for option in given if option not in known)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_are_there(page: Path) -> None:
    found = [(words, list(mistakes(words))) for words in commands(page.read_text(encoding="utf-8"))]
    assert [(shlex.join(words), wrong) for words, wrong in found if wrong] == []


def test_commands_are_found_and_mistakes_noticed() -> None:
    page = "a\n\n    trireme serve --id x \\\n      --no-such 1   # why\n\n```console\n$ trireme sing a\n```\n"
    assert [list(mistakes(words)) for words in commands(page)] == [
        ["'trireme serve' has no --no-such"],
        ["there is no 'trireme sing'"],
    ]
    number = sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in DOCUMENTS)
    assert number > 60
