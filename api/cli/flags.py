"""What a flag is, and how a command line is read.

The command line's grammar is that of GNU long options, as tritonserver reads them
(docs/reference/command-line.md#grammar). argparse cannot be talked into it: it refuses values that start with a dash,
matches options to values before it has read any of them (so another error would come first), words its errors its own
way, and exits by itself. The grammar needs fewer lines than taming it would:

Rule 1: words are read from left to right; the first error ends it.
Rule 2: ``--name value`` and ``--name=value`` are the same; the value may start with dashes, or be empty.
Rule 3: a name may be shortened as long as only one flag starts that way; a full name always wins.
Rule 4: ``--`` ends the options. A word that is no option is an error, unless the program takes such words, but only
        once all options are read.
Rule 5: there are no one-letter options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from .values import BadValueError, Kind


@dataclass(frozen=True, slots=True)
class Flag:
    """One row of the flag table.

    Attributes:
        name: without the dashes.
        kind: what value it takes; None for a flag that takes none.
        help: for the usage text.
        default: its value when it is not given. A repeatable flag's value is a tuple, empty then.
        repeatable: every value counts, not just the last.
        missing: why it has no effect in this version; empty for a flag that works. Giving it is an error.
        idle: the value that asks for nothing, which is no error.
        tolerated: giving it is a warning only: it sizes something that is not there, no request is answered otherwise,
            and tritonserver's start scripts set it.
        instead: a deprecated flag's replacement.
        deprecated: what is said of it at start, before its replacement.
    """

    name: str
    kind: Kind | None
    help: str
    default: Any = None
    repeatable: bool = False
    missing: str = ""
    idle: Any = None
    tolerated: bool = False
    instead: str = ""
    deprecated: str = "has been deprecated!"


class Group:
    """Flags that the usage text shows together."""

    def __init__(self, title: str, *flags: Flag) -> None:
        self.title, self.flags = title, flags


@dataclass(slots=True)
class ParsedFlags:
    """The values of all flags: what was given, in the order of the command line, else the default.

    Attributes:
        operands: words that are no options.
    """

    flags: Mapping[str, Flag]
    given: dict[str, list[Any]] = field(default_factory=dict)
    operands: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any) -> None:
        self.given.setdefault(name, []).append(value)

    def __contains__(self, name: str) -> bool:
        """Whether the flag was given."""
        return name in self.given

    def __getitem__(self, name: str) -> Any:
        """The flag's value; a tuple of all of them for a repeatable flag."""
        flag = self.flags[name]
        if flag.repeatable:
            return tuple(self.given.get(name, ()))
        return self.given[name][-1] if name in self.given else flag.default

    def without_effect(self) -> Iterable[Flag]:
        """Flags that ask for something that this version has not got, in the order of the command line."""
        for name, values in self.given.items():
            flag = self.flags[name]
            if flag.missing and any(value != flag.idle for value in values):
                yield flag


class UsageError(Exception):
    """The command line cannot be read; or it asked for help, which ends the same way. `complaint` is a line that comes
    before the usage text, as getopt's; `message` lines that come after it, where a terminal shows them; either may be
    empty. `help_wanted` is the option that asked for help, one of `HELP_OPTIONS`, or empty."""

    def __init__(self, message: str = "", *, complaint: str = "", help_wanted: str = "") -> None:
        super().__init__(message or complaint)
        self.message = message or complaint
        self.complaint = complaint
        self.help_wanted = help_wanted


HELP_OPTIONS = ("help", "help-all")
"""The second one is not in the flag table: beginnings of ``--help`` stand for that, as in tritonserver."""


def parse(words: Iterable[str], flags: Mapping[str, Flag], *, operands: bool = False) -> ParsedFlags:
    """Read a command line. UsageError if it does not follow the rules, a value is bad, or it contains ``--help``.

    Args:
        operands: there may be words that are no options.
    """
    parsed = ParsedFlags(flags)
    leftover = parsed.operands
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            leftover.extend(remaining)
        elif word.startswith("--"):
            _read_option(word, remaining, parsed)
        elif len(word) > 1 and word.startswith("-"):
            raise UsageError(complaint=f"invalid option -- '{word[1]}'")
        else:
            leftover.append(word)
    if leftover and not operands:
        raise UsageError(f"Unexpected argument: {leftover[0]}")
    return parsed


def is_app(word: str) -> bool:
    """Whether a word that is no option means a Python file with models, or one of its models: ``app.py:name``."""
    return word.partition(":")[0].endswith(".py")


def _read_option(word: str, remaining: Iterator[str], parsed: ParsedFlags) -> None:
    name, has_value, text = word[2:].partition("=")
    if name in HELP_OPTIONS and not has_value:
        raise UsageError(help_wanted=name)
    flag = _find(name, word, parsed.flags)
    if flag.kind is None:
        if has_value:
            raise UsageError(complaint=f"option '--{flag.name}' doesn't allow an argument")
        if flag.name in HELP_OPTIONS:
            raise UsageError(help_wanted=flag.name)
        parsed.add(flag.name, True)
        return
    if not has_value:
        following = next(remaining, None)
        if following is None:
            raise UsageError(complaint=f"option '--{flag.name}' requires an argument")
        text = following
    try:
        parsed.add(flag.name, flag.kind.read(text))
    except BadValueError as error:
        option = f"--{flag.name} {error.part}".rstrip()
        told = error.complete or not flag.kind.expected
        expected = "" if told else f"\n--{flag.name} takes {flag.kind.expected}"
        raise UsageError(f'Bad option: "{option}".\n{error.message}{expected}') from error


def _find(name: str, word: str, flags: Mapping[str, Flag]) -> Flag:
    if name in flags:
        return flags[name]
    candidates = [flag for flag in flags.values() if flag.name.startswith(name)]
    if not candidates:
        complaint = f"unrecognized option '{word}'"
        nearest = "".join(f" '--{near}'" for near in get_close_matches(name, flags, n=2))
        raise UsageError(f"{complaint}; nearest:{nearest}" if nearest else complaint, complaint=complaint)
    if len(candidates) > 1:
        possibilities = " ".join(f"'--{flag.name}'" for flag in candidates)
        raise UsageError(complaint=f"option '{word}' is ambiguous; possibilities: {possibilities}")
    return candidates[0]
