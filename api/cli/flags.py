"""What a flag is, what comes out of a command line, and how the usage text shows flags."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .values import Kind


@dataclass(frozen=True, slots=True)
class Flag:
    """One row of the flag table.

    Attributes:
        name: without the dashes.
        kind: what value it takes; None for a flag that takes none.
        help: for the usage text.
        default: its value when it is not given. A repeatable flag's value is a tuple, empty then.
        repeatable: every value counts, not just the last.
        missing: why it has no effect in this version; empty for a flag that works.
        idle: the value that asks for nothing, so that giving it needs no warning.
        refused: asking for what is missing is an error, because serving without it would mislead. Otherwise a warning.
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
    refused: bool = False
    instead: str = ""
    deprecated: str = "has been deprecated!"


@dataclass(frozen=True, slots=True)
class Group:
    """Flags that the usage text shows together."""

    title: str
    flags: tuple[Flag, ...]


@dataclass(slots=True)
class ParsedFlags:
    """The values of all flags: what was given, else the default.

    Attributes:
        flags: the table, by name.
        given: values by flag name, in the order of the command line, for the flags that were given.
    """

    flags: Mapping[str, Flag]
    given: dict[str, list[Any]] = field(default_factory=dict)

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


def by_name(groups: Iterable[Group]) -> dict[str, Flag]:
    return {flag.name: flag for group in groups for flag in group.flags}


_HELP_WIDTH = 72


def usage_text(command: str, groups: Iterable[Group]) -> str:
    """Every flag with its value and help, grouped; laid out as tritonserver does."""
    lines = [f"Usage: {command} [options]"]
    for group in groups:
        if group.title:
            lines += ["", f"{group.title}:"]
        for flag in group.flags:
            lines.append(f"  --{flag.name} {flag.kind.placeholder}" if flag.kind else f"  --{flag.name}")
            lines += textwrap.wrap(_help(flag), _HELP_WIDTH, initial_indent="\t", subsequent_indent="\t")
    return "\n".join(lines) + "\n"


def _help(flag: Flag) -> str:
    text = flag.help
    if flag.instead:
        text = f"DEPRECATED, use {flag.instead}. {text}"
    if flag.missing:
        effect = "Refused" if flag.refused else "No effect"
        text = f"{text} {effect} in this version: {flag.missing}."
    if flag.default not in (None, "", ()) and flag.kind is not None:
        default = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
        text = f"{text} Default is {default}."
    return text
