"""`trireme serve` for `soak.py`: the same server, which besides writes down how many trio tasks it has.

    python benchmarks/soak_server.py COUNT_FILE --model-repository ...

The number is at the beginning of the file, in 12 digits, and is renewed ten times a second.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

import trio

from trireme.api.cli.main import main

DIGITS = 12
INTERVAL_S = 0.1


class TaskCount(trio.abc.Instrument):
    """How many tasks there are, trio's own included."""

    def __init__(self) -> None:
        self.tasks = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks += 1

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.tasks -= 1

    def keep_writing(self, path: str) -> None:
        """Write the number down, for as long as the process lives."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        while True:
            os.pwrite(file, b"%0*d" % (DIGITS, self.tasks), 0)
            time.sleep(INTERVAL_S)


if __name__ == "__main__":
    count = TaskCount()
    threading.Thread(target=count.keep_writing, args=(sys.argv[1],), daemon=True, name="task count").start()
    trio.run = functools.partial(trio.run, instruments=[count])
    sys.exit(main(["serve", *sys.argv[2:]]))
