"""The command `trireme`: which sub-commands there are, and what each is started by.

A sub-command is a line of `COMMANDS`: its name, and the function that adds it to those of `argparse`
(``commands.add_parser(...)``, ``set_defaults(run=...)``, and `run` gets the parsed words and returns the exit code).
What fails is raised as a `CommandError`. Packages add others through the entry-point group `ENTRY_POINT_GROUP`, whose
entries name such a function. `SERVERS` read their words themselves: they have tritonserver's options (see `flags`).

What a sub-command needs is imported when it runs: importing the server takes most of its start, and a Ctrl-C may come
at any time.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .parser import CommandParser

SERVERS = {
    "serve": "serve the models of a repository",
    "gateway": "serve what a fleet of servers has",
    "tritonserver": "as serve, with tritonserver's usage text and exit codes for start scripts",
}

COMMANDS = {
    "init": "init:add_init_command",
    "check": "check:add_check_command",
    "export": "export:add_export_command",
    "infer": "infer:add_infer_command",
    "bench": "bench:add_bench_command",
    "top": "top:add_top_command",
    "route": "route:add_route_command",
    "cluster": "cluster:add_cluster_command",
    "request-log": "request_log:add_request_log_command",
    "key": "key:add_key_command",
    "openapi": "openapi:add_openapi_command",
    "completion": "completion:add_completion_command",
}
"""By name: module of this package, and function in it. In the order in which help shows them."""

ENTRY_POINT_GROUP = "trireme.commands"

_INTERRUPTED, _PIPE_CLOSED = 130, 141
"""Exit codes as a shell has them for a process that a signal ended."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a sub-command. The words are the command line after the command's name, by default that of the process.
    Returns the exit code."""
    if words is None:
        exit_code = _main(sys.argv[1:])
        if exit_code == _INTERRUPTED or _threads_given_up():
            _leave(exit_code)
        return exit_code
    return _main(words)


def _main(words: Sequence[str]) -> int:
    if words == ["sagemaker"]:
        try:
            words = _sagemaker_words()
        except ValueError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    if words and words[0] in SERVERS:
        return _serve(words[0], words[1:])
    return _run(words)


# ---- sub-commands that ask and answer ----


def _run(words: Sequence[str]) -> int:
    from .parser import FAILED, USAGE, CommandError

    name = "trireme"
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - the shell's `>&-` closes it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the terminal's encoding lacks, as in a chart
    try:
        parser = command_parser(words[0] if words else None)
        if not words:
            sys.stderr.write(parser.format_help())
            return USAGE
        given = parser.parse_args(words)
        name = f"trireme {words[0]}"
        exit_code = given.run(given)
        sys.stdout.flush()
        return exit_code
    except CommandError as error:
        sys.stderr.write(error.lines(name))
        return error.code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BaseExceptionGroup as group:  # of a nursery: some commands run a server
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        return _INTERRUPTED
    except BrokenPipeError:  # who read the output has seen enough
        _drop_output()
        return _PIPE_CLOSED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        sys.stderr.write(f"{name}: cannot write: {error.strerror}\n  make room, or write elsewhere\n")
        return FAILED


def _drop_output() -> None:
    """What has not been written yet never is, so that the end of the process does not try again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_parser(name: str | None) -> CommandParser:
    """The parser of the sub-command with this name; of all of them, if there is none."""
    from ...engine.version import VERSION
    from .parser import CommandParser, nearest

    parser = CommandParser(prog="trireme", description="An inference server that speaks Triton's protocols.")
    parser.add_argument("--version", action="version", version=f"trireme {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    if name in COMMANDS:
        _load(COMMANDS[name])(commands)
        return parser
    for server, text in SERVERS.items():
        commands.add_parser(server, help=f"{text}; see `trireme {server} --help`", add_help=False)
    commands.add_parser("sagemaker", help="serve as SageMaker's environment variables say")
    for place in COMMANDS.values():
        _load(place)(commands)
    for add in _installed():
        add(commands)
    if name is not None and not name.startswith("-") and name not in commands.choices:
        near = " ".join(map(repr, nearest(name, list(commands.choices))))
        parser.error(f"there is no command '{name}'" + (f"; nearest: {near}" if near else ""))
    return parser


def _load(place: str) -> Callable[[Any], None]:
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), function)


def _installed() -> Iterator[Callable[[Any], None]]:
    """Those of the entry-point group, which this package does not import by name."""
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:  # the other commands are there all the same
            sys.stderr.write(f"trireme: the command '{point.name}' cannot be loaded ({point.value}): {error}\n")
            continue
        yield found


# ---- servers ----


def _serve(name: str, words: Sequence[str]) -> int:
    try:
        return _import_command(name)(words)
    except KeyboardInterrupt:  # before there is an event loop, or after its end
        sys.stdout.write(f"Signal ({signal.SIGINT.value}) received.\n")
        return 0


def _sagemaker_words() -> list[str]:
    """The command line that the environment means, part of which goes on in it. ValueError if it means none."""
    import tempfile
    from pathlib import Path

    from ...engine.gpu.discovery import find_gpus
    from .sagemaker import launch

    several = Path(tempfile.gettempdir()) / "sagemaker"
    words, settings = launch(os.environ, several, lambda: len(find_gpus(os.environ)))
    os.environ.update(settings)
    return ["tritonserver", *words]


def _import_command(name: str) -> Callable[[Sequence[str]], int]:
    """What runs one of `SERVERS`. Imports leave next to nothing for the garbage collector, which would look for it in
    all that they make, again and again, now and while models load: a sixth of the time until the server is ready."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        if name == "gateway":
            from .gateway import run_gateway_command as run
        elif name == "tritonserver":
            from .serve import serve_as_triton as run
        else:
            from .serve import serve as run
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
    return run


def _threads_given_up() -> bool:
    """Whether a thread may still be inside of a backend: one of an instance that hung, or did not end in time.

    Daemon threads are those of instances, that of a log which is not read, and trio's idle ones, which hold nothing.
    """
    return any(each.daemon and not each.name.startswith("Trio thread") for each in threading.enumerate())


def _leave(exit_code: int) -> NoReturn:
    """End the process without the interpreter's and the libraries' cleaning up.

    They would take down what the thread inside of the backend is using: ONNX Runtime aborts the process then. After an
    interrupt that may be any thread, one that loads a model included.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or not read any more
            stream.flush()
    os._exit(exit_code)
