"""The command `trireme`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ...actors.server import server_version
from .serve import serve


def main(words: Sequence[str] | None = None) -> int:
    """Run a sub-command; `serve` reads its options itself, for it has tritonserver's (see `getopt`).

    Args:
        words: the command line after the command's name; that of the process by default.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["serve"]:
        return serve(words[1:])
    parser = argparse.ArgumentParser(prog="trireme", description="An inference server that speaks Triton's protocols.")
    parser.add_argument("--version", action="version", version=f"trireme {server_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser("serve", help="serve the models of a repository; see `trireme serve --help`", add_help=False)
    parser.parse_args(words)
    return 0
