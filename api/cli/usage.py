"""The usage text, from the flag table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from .flags import Flag, Group

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
