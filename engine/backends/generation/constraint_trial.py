"""A constraint is read in a process of its own first.

What a client gives may take any time, memory or depth of recursion to read, whatever its length: a process that is
limited in all of that (`trial_process`) ends, and not the server. What can be read there is read here as well.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import CancelledError, InternalError, InvalidArgumentError
from . import trial_process
from .asked_constraints import CONSTRAINT

_SECONDS = 2
"""Of computing time."""

_PATIENCE_S = 20.0
"""Until it is over, on a machine that has much else to do."""

_MEMORY_BYTES = 256 << 20
_STACK_BYTES = 2 << 20
"""A quarter of what threads of the server usually have."""


class ConstraintTrial:
    """One trial; it may be cancelled from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """No request waits for it any more."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def run(self, library: Any, grammar: str, limits: Mapping[str, int | bool], tokens: Mapping[str, int]) -> None:
        """Read a grammar.

        Args:
            library: llguidance.
            tokens: texts that are a token by themselves.

        Raises:
            InvalidArgumentError: it is wrong, or takes too much.
            CancelledError: the trial was cancelled.
            InternalError: there can be no such process.
        """
        given: dict[str, Any] = {"grammar": grammar, "limits": {**limits}, "tokens": {**tokens}}
        given |= {"seconds": _SECONDS, "nbytes": _MEMORY_BYTES, "stack": _STACK_BYTES}
        code, said, last_words = self._outcome(str(Path(library.__file__).parents[1]), json.dumps(given).encode())
        if self._cancelled:
            raise CancelledError("the constraint is not wanted any more")
        if code in (None, -signal.SIGXCPU, -signal.SIGKILL):
            raise _too_much("time")
        if code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
            raise _too_much("memory")
        if code:
            raise InternalError(f"the process that reads constraints has failed ({code}): {last_words}")
        wrong = json.loads(said)
        if wrong:
            raise InvalidArgumentError(f"the constraint cannot be used: {in_a_line(wrong[0])}", about=CONSTRAINT)

    def _outcome(self, where: str, given: bytes) -> tuple[int | None, bytes, str]:
        """What the process ended with, None if it was not waited for any longer; and what it has said."""
        with self._lock:
            if self._cancelled:
                return None, b"", ""
            try:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-I", trial_process.__file__, where],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            except OSError as error:
                raise InternalError(f"there can be no process that reads constraints: {error}") from error
        with process:
            try:
                said, last_words = process.communicate(given, _PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return None, b"", ""
        return process.returncode, said, in_a_line(last_words.decode(errors="replace")[-400:])


def _too_much(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the constraint cannot be used: reading it takes more {what} than it may", about=CONSTRAINT
    )


def in_a_line(text: str) -> str:
    """What llguidance says, as errors show it."""
    return " ".join(text.split("\n<", 1)[0].split())[:400]
