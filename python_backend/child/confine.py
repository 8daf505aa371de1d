"""Confines a process before anything of a model's runs in it.

``python confine.py SERVER MEMORY [NAME=VALUE...] -- COMMAND...``

It runs in the server's own interpreter, with the server's variables, and then becomes the command, which inherits
everything and gets the variables that are given here; one without a value is removed:

 1. It ends with the server (PR_SET_PDEATHSIG), even if it hangs in foreign code; strictly: with the thread that started
    it, which therefore lives as long as the process.
 2. It can gain no privileges from what it executes, such as sudo (PR_SET_NO_NEW_PRIVS).
 3. When memory runs out, the system ends it before the server (oom_score_adj).
 4. It leaves no core file unless it asks for one, and has at most MEMORY bytes of private memory (0: no limit).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_OOM_SCORE = 500
"""On top of the server's own, of at most 1000."""


def confine(server: int, memory_bytes: int) -> None:
    """Confine this process, which `server` has started. OSError or ValueError if the system does not allow it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    for option, value in ((_PR_SET_PDEATHSIG, int(signal.SIGKILL)), (_PR_SET_NO_NEW_PRIVS, 1)):
        if prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl({option})")
    if os.getppid() != server:
        sys.exit("the server is gone")
    _prefer_for_the_oom_killer()
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _prefer_for_the_oom_killer() -> None:
    path = "/proc/self/oom_score_adj"
    try:
        with open(path) as file:
            score = int(file.read())
        with open(path, "w") as file:
            file.write(str(min(1000, score + _OOM_SCORE)))
    except OSError as error:  # a system without /proc, or one that is mounted read-only
        sys.stderr.write(f"cannot write {path}: {error}\n")


def variables(given: list[str]) -> dict[str, str]:
    """This process's variables, with the given ones on top."""
    pairs = (each.partition("=") for each in given)
    changed = {**os.environ, **{name: value for name, _, value in pairs}}
    return {name: value for name, value in changed.items() if value}


if __name__ == "__main__":
    confine(int(sys.argv[1]), int(sys.argv[2]))
    _end = sys.argv.index("--")
    _command = sys.argv[_end + 1 :]
    os.execvpe(_command[0], _command, variables(sys.argv[3:_end]))
