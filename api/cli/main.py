"""The command `trireme`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

# What a sub-command needs is imported when it runs: importing the server takes most of its start, and a Ctrl-C may come
# at any time.


def main(words: Sequence[str] | None = None) -> int:
    """Run a sub-command; `serve` and `gateway` read options themselves: they have tritonserver's (see `flags`).

    The words are the command line after the command's name, by default that of the process. Returns the exit code.
    """
    words = sys.argv[1:] if words is None else words
    if words == ["sagemaker"]:
        try:
            words = _sagemaker_words()
        except ValueError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    if words[:1] in (["serve"], ["gateway"]):
        try:
            exit_code = _import_command(words[0])(words[1:])
        except KeyboardInterrupt:  # before there is an event loop, or after its end
            sys.stdout.write(f"Signal ({signal.SIGINT.value}) received.\n")
            exit_code = 0
        if _threads_given_up():
            _leave(exit_code)
        return exit_code
    from ...engine.version import VERSION
    from ..http.openapi import document
    from .cluster import add_cluster_command
    from .route import add_route_command

    parser = argparse.ArgumentParser(prog="trireme", description="An inference server that speaks Triton's protocols.")
    parser.add_argument("--version", action="version", version=f"trireme {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser("serve", help="serve the models of a repository; see `trireme serve --help`", add_help=False)
    commands.add_parser(
        "gateway", help="serve what a fleet of servers has; see `trireme gateway --help`", add_help=False
    )
    commands.add_parser("sagemaker", help="serve as SageMaker's environment variables say")
    commands.add_parser("openapi", help="print the HTTP interface as an OpenAPI document")
    key = commands.add_parser("key", help="make API keys for the access file").add_subparsers(required=True)
    new = key.add_parser("new", help="make a key: print it, which is not done again, and the table with its digest")
    new.add_argument("--id", dest="key_id", help="what it is called in the access file; by default random")
    new.add_argument("--expires", help="when it ends: a date, or a time with an offset")
    new.set_defaults(new_key=True)
    add_route_command(commands)
    add_cluster_command(commands)
    given = parser.parse_args(words)
    if getattr(given, "new_key", False):
        return _print_key(given)
    if hasattr(given, "run"):
        return given.run(given)
    sys.stdout.write(json.dumps(document(), indent=2) + "\n")
    return 0


def _print_key(given: argparse.Namespace) -> int:
    """Print a new key on standard output, and what to do with it on standard error."""
    from .key import new_key

    try:
        key, table = new_key(given.key_id, given.expires)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{key}\n")
    sys.stdout.flush()
    sys.stderr.write(
        f"\nGive this key to its caller: it is not shown again. Paste this below the caller's [[callers]]:\n\n{table}"
    )
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
    return ["serve", *words]


def _import_command(name: str) -> Callable[[Sequence[str]], int]:
    """What runs `serve` or `gateway`. Imports leave next to nothing for the garbage collector, which would look for it
    in all that they make, again and again, now and while models load: a sixth of the time until the server is ready."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        if name == "gateway":
            from .gateway import run_gateway_command as run
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

    They would take down what the thread inside of the backend is using: ONNX Runtime aborts the process then.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or not read any more
            stream.flush()
    os._exit(exit_code)
