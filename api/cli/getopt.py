"""The command line's grammar: GNU long options, as tritonserver reads them (docs/reference/command-line.md#grammar).

argparse cannot be talked into it: it refuses values that start with a dash, matches options to values before it has
read any of them (so another error would come first), words its errors its own way, and exits by itself. The grammar
needs fewer lines than taming it would:

Rule 1: words are read from left to right; the first error ends it.
Rule 2: ``--name value`` and ``--name=value`` are the same; the value may start with dashes, or be empty.
Rule 3: a name may be shortened as long as only one flag starts that way; a full name always wins.
Rule 4: ``--`` ends the options. A word that is no option is an error, but only once all options are read.
Rule 5: there are no one-letter options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .flags import Flag, ParsedFlags
from .values import BadValueError


class UsageError(Exception):
    """The command line cannot be read; or it asked for help, which ends the same way.

    Attributes:
        complaint: a line that comes before the usage text; empty for none.
        message: lines that come after it; empty for none.
    """

    def __init__(self, message: str = "", *, complaint: str = "") -> None:
        super().__init__(message or complaint)
        self.message = message
        self.complaint = complaint


def parse(words: Iterable[str], flags: Mapping[str, Flag]) -> ParsedFlags:
    """Read a command line.

    Raises:
        UsageError: it does not follow the rules, a value is bad, or it contains ``--help``.
    """
    parsed = ParsedFlags(flags)
    leftover: list[str] = []
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
    if leftover:
        raise UsageError(f"Unexpected argument: {leftover[0]}")
    return parsed


def _read_option(word: str, remaining: Iterator[str], parsed: ParsedFlags) -> None:
    name, has_value, text = word[2:].partition("=")
    flag = _find(name, word, parsed.flags)
    if flag.kind is None:
        if has_value:
            raise UsageError(complaint=f"option '--{flag.name}' doesn't allow an argument")
        if flag.name == "help":
            raise UsageError
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
        raise UsageError(f'Bad option: "{option}".\n{error.message}') from error


def _find(name: str, word: str, flags: Mapping[str, Flag]) -> Flag:
    if name in flags:
        return flags[name]
    candidates = [flag for flag in flags.values() if flag.name.startswith(name)]
    if not candidates:
        raise UsageError(complaint=f"unrecognized option '{word}'")
    if len(candidates) > 1:
        possibilities = " ".join(f"'--{flag.name}'" for flag in candidates)
        raise UsageError(complaint=f"option '{word}' is ambiguous; possibilities: {possibilities}")
    return candidates[0]
