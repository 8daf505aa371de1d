"""What `trireme serve` and its kin print about their options: tritonserver's usage text, a shorter help with the
options that matter first, and what is said of a command line that is wrong."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .flags import Flag, Group, UsageError

_FAILED = 1
_INDENT = 72
"""Width of the text behind a tab."""

FIRST = (
    "model-repository",
    "http-port",
    "grpc-port",
    "metrics-port",
    "http-address",
    "model-control-mode",
    "load-model",
    "exit-on-error",
    "log-verbose",
    "access-config",
)
"""The ten that matter first."""


class ServerProgram(NamedTuple):
    """A server's command line, as help shows it.

    Attributes:
        example: a command line to copy.
        first: options to explain before the others.
    """

    name: str
    groups: Sequence[Group]
    example: str
    first: Sequence[str] = FIRST


def answer_usage_error(error: UsageError, program: ServerProgram) -> int:
    """Print the help that was asked for, on standard output, or what is wrong with the command line: the reason and
    where there is more. Returns the exit code."""
    if error.help_wanted:
        everything = error.help_wanted == "help-all"
        sys.stdout.write(usage_text(program.name, program.groups) if everything else help_text(program, _columns()))
        return 0
    sys.stderr.write(f"{program.name}: {error.message}\nsee: {program.name} --help\n")
    return _FAILED


def answer_as_triton(error: UsageError, name: str, groups: Sequence[Group]) -> int:
    """Print as tritonserver does: all options, and the message if there is one, on standard error; the exit code."""
    complaint = f"{name}: {error.complaint}\n" if error.complaint else ""
    sys.stderr.write(f"{complaint}{usage_text(name, groups)}\n{error.message}\n")
    return _FAILED


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else 80


def help_text(program: ServerProgram, columns: int) -> str:
    """Those that matter first, explained, and the names of all others, by group; no line is longer than `columns`."""
    flags = {flag.name: flag for group in program.groups for flag in group.flags}
    first = [flags[name] for name in program.first if name in flags]
    lines = [f"Usage: {program.name} [options]", "", f"  {program.example}", "", "What matters first:"]
    for flag in first:
        lines.append(f"  --{flag.name} {flag.kind.placeholder}" if flag.kind else f"  --{flag.name}")
        lines += textwrap.wrap(_help(flag), columns, initial_indent="      ", subsequent_indent="      ")
    lines += ["", f"All others, which `{program.name} --help-all` explains:"]
    for group in program.groups:
        names = " ".join(f"--{flag.name}" for flag in group.flags if flag not in first)
        if group.title and names:
            lines.append(f"  {group.title}:")
            lines += textwrap.wrap(
                names, columns, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False
            )
    return "\n".join(lines) + "\n"


def usage_text(command: str, groups: Iterable[Group]) -> str:
    """Every flag with its value and help, grouped; laid out as tritonserver does."""
    return "\n".join(_usage_lines(command, groups)) + "\n"


def _usage_lines(command: str, groups: Iterable[Group]) -> Iterator[str]:
    yield f"Usage: {command} [options]"
    for group in groups:
        if group.title:
            yield from ("", f"{group.title}:")
        for flag in group.flags:
            yield f"  --{flag.name} {flag.kind.placeholder}" if flag.kind else f"  --{flag.name}"
            yield from textwrap.wrap(_help(flag), _INDENT, initial_indent="\t", subsequent_indent="\t")


def _help(flag: Flag) -> str:
    text = flag.help
    if flag.instead:
        text = f"DEPRECATED, use {flag.instead}. {text}"
    if flag.missing:
        effect = "No effect" if flag.tolerated else "Refused"
        text = f"{text} {effect} in this version: {flag.missing}."
    if flag.default not in (None, "", ()) and flag.kind is not None:
        default = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
        text = f"{text} Default is {default}."
    return text
