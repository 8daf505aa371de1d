"""How sub-commands read their words, and how they complain: one line that names what is wrong, and one that says what
to do about it. `trireme serve` and its kin read tritonserver's options instead (`flags`)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

FAILED, USAGE, UNREACHABLE = 1, 2, 3
"""Exit codes: it could not be done; the command line is wrong; no server answers."""

_NEAREST = 2


class CommandError(Exception):
    """What a person is told, what they can do about it (may be empty), and the exit code."""

    def __init__(self, text: str, remedy: str = "", code: int = FAILED) -> None:
        super().__init__(text)
        self.text, self.remedy, self.code = text, remedy, code

    def lines(self, command: str) -> str:
        """All of it, each line ended."""
        return f"{command}: {self.text}\n" + (f"  {self.remedy}\n" if self.remedy else "")


def nearest(word: str, allowed: Sequence[str]) -> list[str]:
    """At most two that `word` may have been meant for, the likeliest first."""
    return get_close_matches(word, allowed, n=_NEAREST, cutoff=0.5)


class CommandParser(argparse.ArgumentParser):
    """An `argparse` parser that names the nearest option instead of all that there are."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As `argparse` has it, but what this parser does not know is its own error, not that of the one above it."""
        given, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._nearest(rest[0])}")
        return given, rest

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, and where there is more. Exits with 2."""
        self.exit(USAGE, f"{self.prog}: {message}\nsee: {self.prog} --help\n")

    def _nearest(self, word: str) -> str:
        found = nearest(word.partition("=")[0], list(self._option_string_actions)) if word.startswith("-") else []
        return f"; nearest: {' '.join(map(repr, found))}" if found else ""

    def sub_commands(self) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
        """Name, help and parser of each, in order."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                texts = {each.dest: each.help or "" for each in action._choices_actions}
                for name, parser in action.choices.items():
                    yield name, texts.get(name, ""), parser
