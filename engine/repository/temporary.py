"""Temporary folders that the next server removes, if the one that made them was killed.

Rules:
 1. A folder belongs to a server for as long as that holds a lock (``flock``) on the file `LOCK` in it. The kernel
    releases it when the process ends, however that happens.
 2. The lock is taken before the file gets its name, so a folder with such a file that is not locked has no owner.
 3. Only folders of the same user are looked at, in the directory for temporary files or the one that is named, with the
    names that are given here; links never.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

logger = logging.getLogger("trireme.temporary")

PREFIX = "trireme-"
LOCK = ".trireme-lock"


class TemporaryFolder:
    """An empty folder. It is there until `remove()`, which may be called again, until this object is gone, or until the
    process ends; of a process that was killed, until a server starts.

    Args:
        kind: what it is for; part of its name.
        directory: where it is made, if not where temporary files are.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, kind: str, directory: Path | None = None) -> None:
        root = tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=directory)
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, root, ignore_errors=True)
            lock = _locked(root)
            undo.callback(os.close, lock)
            self.path = Path(root) / "contents"
            self.path.mkdir()
            undo.pop_all()
        self.remove = weakref.finalize(self, _remove, root, lock)

    def share(self) -> None:
        """Let other users read what is in it, if they know its path."""
        self.path.chmod(0o755)
        self.path.parent.chmod(0o711)


def _remove(root: str, lock: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    os.close(lock)


def _locked(root: str) -> int:
    """The descriptor of a locked file in `root`, whose name it gets once it is locked (rule 2)."""
    path = os.path.join(root, LOCK)
    unnamed = f"{path}.new"
    lock = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unnamed, path)
        undo.pop_all()
    return lock


def remove_abandoned(directory: Path | None = None) -> list[Path]:
    """Remove the folders of servers that are gone; those that were removed. Takes time: not for the event loop.

    Args:
        directory: where they were made, if not where temporary files are.
    """
    directory = directory or Path(tempfile.gettempdir())
    try:
        found = sorted(entry.name for entry in os.scandir(directory) if entry.name.startswith(PREFIX))
    except OSError:
        return []
    return [directory / name for name in found if _remove_if_abandoned(directory / name)]


def _remove_if_abandoned(root: Path) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            status = os.lstat(root)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                return False
            lock = os.open(root / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is gone, it is none of ours, or its owner lives
            return False
        shutil.rmtree(root, ignore_errors=True)
    logger.info("removed '%s', which a server that was killed had left behind", root)
    return True
