"""Commands in documents, those too that nothing runs, or that stand in a sentence: what they name is there.

Sub-commands of `trireme` and their options; scripts, folders and modules of the repository, with their options; targets
of `make`; the chart's values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
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
    text = page.read_text(encoding="utf-8")
    inline = (words for words in inline_commands(text) if words[0] == "trireme")
    found = [(words, list(mistakes(words))) for words in [*commands(text), *inline]]
    assert [(shlex.join(words), wrong) for words, wrong in found if wrong] == []


LINES = re.compile(r"^(?:\$ )?((?:[^\n]*\\\n)*[^\n]+)$", re.MULTILINE)
FENCES = re.compile(r"^```(?:console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDER = re.compile(r"^(?:\./)?((?:benchmarks|deploy|docs|model_repository|proto|tests)(?:/[\w.-]+)+)$")
MODULES = {"bench": "benchmarks/bench/command.py", "trireme.simulations": "simulations/command.py"}
"""Where the options of what `python -m` runs are."""
INLINE = re.compile(r"(?<!`)`((?:trireme|make|python|helm|docker) [^`:]+)`(?!`)")
TARGETS = frozenset(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of each line of a block that a shell would read."""
    for block in FENCES.findall(text):
        for line in LINES.findall(block):
            with suppress(ValueError):  # a line of an output, with a quotation mark
                yield shlex.split(line.replace("\\\n", ""), comments=True)


def inline_commands(text: str) -> Iterator[list[str]]:
    """The words of each command that stands in a sentence."""
    for command in INLINE.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        yield shlex.split(command.replace("\n", " "))


def wrong_names(words: list[str]) -> Iterator[str]:
    """What a command names that the repository has not."""
    named = [match[1] for match in map(FOLDER.match, words) if match]
    yield from (f"there is no {name}" for name in named if not (ROOT / name).exists())
    if words[:1] == ["make"] and len(words) > 1 and words[1] not in TARGETS:
        yield f"there is no target {words[1]}"
    scripts = [ROOT / name for name in named if name.endswith(".py") and (ROOT / name).exists()]
    scripts += [ROOT / MODULES[module] for option, module in pairwise(words) if option == "-m" and module in MODULES]
    for script in scripts:
        known = set(re.findall(r"\"(--[a-z-]+)\"", script.read_text()))
        yield from (
            f"{script.name} has no {word}" for word in words if re.match(r"--[a-z]", word) and word not in known
        )
    if words[:1] == ["helm"]:
        values = yaml.safe_load((ROOT / "deploy" / "helm" / "trireme" / "values.yaml").read_text())
        for option, given in pairwise(words):
            name = given.partition("=")[0]
            if option == "--set" and not _has(values, name.split(".")):
                yield f"the chart has no value {name}"


def _has(values: Any, keys: list[str]) -> bool:
    return not keys or (isinstance(values, dict) and keys[0] in values and _has(values[keys[0]], keys[1:]))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_commands_name_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = [(words, list(wrong_names(words))) for words in [*shell_commands(text), *inline_commands(text)]]
    assert [(shlex.join(words), wrong) for words, wrong in found if wrong] == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("make no-such", "there is no target no-such"),
        ("python benchmarks/none.py", "there is no benchmarks/none.py"),
        ("python benchmarks/soak.py --hours 1", "soak.py has no --hours"),
        ("python -m trireme.simulations --sneeds 3", "command.py has no --sneeds"),
        ("helm install x deploy/helm/trireme --set models.clam=x", "the chart has no value models.clam"),
        ("docker build --file deploy/Containerfiel .", "there is no deploy/Containerfiel"),
    ],
)
def test_wrong_names_are_noticed(command: str, wrong: str) -> None:
    assert [list(wrong_names(words)) for words in shell_commands(f"```console\n$ {command}\n```\n")] == [[wrong]]


def test_commands_are_found_and_mistakes_noticed() -> None:
    page = "a\n\n    trireme serve --id x \\\n      --no-such 1   # why\n\n```console\n$ trireme sing a\n```\n"
    assert [list(mistakes(words)) for words in commands(page)] == [
        ["'trireme serve' has no --no-such"],
        ["there is no 'trireme sing'"],
    ]
    number = sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in DOCUMENTS)
    assert number > 60
