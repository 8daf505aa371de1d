"""`trireme completion`: a script that completes sub-commands, their options and their values in bash, zsh or fish; made
from the parsers and the flag table.

The script asks nothing of Trireme while a person types: it is a table and a few lines of shell.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .parser import CommandParser

SHELLS = ("bash", "zsh", "fish")


class Option(NamedTuple):
    """What can be completed: the option's name with its dashes, what it is for, whether a value follows, and the values
    that there are, if they are known."""

    name: str
    text: str
    takes_value: bool = True
    values: tuple[str, ...] = ()


Commands = dict[str, tuple[str, list[Option]]]
"""By name: what the sub-command does, and its options."""


def add_completion_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser(
        "completion",
        help="print a script for the shell that completes commands, options and values",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="in .bashrc:\n"
        '    eval "$(trireme completion bash)"\n'
        "in .zshrc, after compinit:\n"
        '    eval "$(trireme completion zsh)"\n'
        "for fish, once:\n"
        "    trireme completion fish > $HOME/.config/fish/completions/trireme.fish",
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=_print_script)


def _print_script(given: argparse.Namespace) -> int:
    from .main import command_parser

    script = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[given.shell]
    sys.stdout.write(script(all_commands(command_parser(None))))
    return 0


def all_commands(parser: CommandParser) -> Commands:
    """Every sub-command; those below one (``key new``) lend it their options."""
    from .flag_table import GROUPS
    from .gateway import GATEWAY_GROUPS
    from .init import STARTERS
    from .main import SERVERS

    found: Commands = {}
    tables = {"serve": GROUPS, "tritonserver": GROUPS, "gateway": GATEWAY_GROUPS}
    for name, text, below in parser.sub_commands():
        options = _flag_options(tables[name]) if name in SERVERS else _parser_options(below)
        found[name] = text, sorted(set(options))
    text, options = found["init"]
    kinds = *(each.kind for each in STARTERS), "all"
    found["init"] = text, [each._replace(values=kinds) if each.name == "--with" else each for each in options]
    return found


def _flag_options(groups: Iterable[Any]) -> Iterator[Option]:
    for flag in (flag for group in groups for flag in group.flags):
        values = ("true", "false") if flag.kind and flag.kind.placeholder == "<boolean>" else ()
        if flag.kind and flag.kind.expected.startswith("one of: "):
            values = tuple(flag.kind.expected.removeprefix("one of: ").split(", "))
        yield Option(f"--{flag.name}", _first_sentence(flag.help), flag.kind is not None, values)
    yield Option("--help-all", "Explain all options.", False)


def _parser_options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, below in action.choices.items():
                yield Option(name, "", False)
                yield from _parser_options(below)
            continue
        choices = tuple(map(str, action.choices or ()))
        for name in action.option_strings:
            if name.startswith("--"):
                text = (action.help or "").replace("%(default)s", str(action.default))
                yield Option(name, _first_sentence(text), action.nargs != 0, choices)
        if not action.option_strings:
            yield from (Option(choice, "", False) for choice in choices)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].partition("; ")[0].rstrip(".")


# ---- the scripts ----


def bash_script(commands: Commands) -> str:
    """A function for ``complete -F``."""
    lines = [
        "# Completion of trireme for bash.",
        "_trireme() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local command="${COMP_WORDS[1]}" words',
        '    if [ "$before" = "=" ]; then before="${COMP_WORDS[COMP_CWORD-2]}"; fi',
        '    if [ "$word" = "=" ]; then word=""; fi',
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f'        COMPREPLY=($(compgen -W {shlex.quote(" ".join(commands))} -- "$word"))',
        "        return",
        "    fi",
        '    case "$command $before" in',
    ]
    for name, (_, options) in commands.items():
        for option in options:
            if option.values and option.takes_value:
                values = shlex.quote(" ".join(option.values))
                lines.append(
                    f"        '{name} {option.name}') COMPREPLY=($(compgen -W {values} -- \"$word\")); return ;;"
                )
    lines += ["    esac", '    case "$command" in']
    for name, (_, options) in commands.items():
        lines.append(f"        {name}) words={shlex.quote(' '.join(option.name for option in options))} ;;")
    lines += [
        "    esac",
        '    case "$word" in',
        '        -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;',
        '        *) COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word")) ;;',
        "    esac",
        "}",
        "complete -o filenames -F _trireme trireme",
    ]
    return "\n".join(lines) + "\n"


def _zsh_text(text: str) -> str:
    for special in "\\[]:":
        text = text.replace(special, f"\\{special}")
    return text.replace("'", "'\\''")


def zsh_script(commands: Commands) -> str:
    """Arguments for ``_arguments``, by sub-command."""
    lines = [
        "#compdef trireme",
        "# Completion of trireme for zsh.",
        "_trireme() {",
        "    local -a commands",
        "    if (( CURRENT == 2 )); then",
        "        commands=(",
        *(f"            '{name}:{_zsh_text(text)}'" for name, (text, _) in commands.items()),
        "        )",
        "        _describe command commands",
        "        return",
        "    fi",
        '    local command="${words[2]}"',
        "    shift words",
        "    (( CURRENT-- ))",
        '    case "$command" in',
    ]
    for name, (_, options) in commands.items():
        lines.append(f"        {name}) _arguments \\")
        words = []
        for option in options:
            if not option.name.startswith("-"):
                words.append(option.name)
                continue
            value = f":value:({' '.join(option.values)})" if option.values else ":value:_files"
            equals, value = ("=", value) if option.takes_value else ("", "")
            lines.append(f"            '*{option.name}{equals}[{_zsh_text(option.text)}]{value}' \\")
        # a space: without it `_arguments` hands options of its own to `_alternative`, which takes none of them
        choices = f' _alternative "words\\:word\\:({" ".join(words)})" "files\\:file\\:_files"' if words else "_files"
        lines.append(f"            '*:argument:{choices}' ;;")
    lines += ["    esac", "}", "compdef _trireme trireme"]
    return "\n".join(lines) + "\n"


def fish_script(commands: Commands) -> str:
    """A ``complete`` for each option."""
    lines = ["# Completion of trireme for fish.", "complete -c trireme -n __fish_use_subcommand -f"]
    for name, (text, _) in commands.items():
        lines.append(f"complete -c trireme -n __fish_use_subcommand -a {name} -d {shlex.quote(text)}")
    for name, (_, options) in commands.items():
        where = f"complete -c trireme -n '__fish_seen_subcommand_from {name}'"
        for option in options:
            about = f" -d {shlex.quote(option.text)}" if option.text else ""
            if not option.name.startswith("-"):
                lines.append(f"{where} -a {option.name}{about}")
                continue
            value = f" -x -a {shlex.quote(' '.join(option.values))}" if option.values else " -r"
            lines.append(f"{where} -l {option.name[2:]}{value if option.takes_value else ''}{about}")
    return "\n".join(lines) + "\n"
