"""Files of a model directory: where the names in a configuration lead, and what is in them."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InternalError


def path_within(directory: Path, folder: str, name: str) -> Path | None:
    """Where a file name in a model's configuration leads; None if that is not below the model's directory.

    ``..`` is taken out before anything is opened, so a link cannot change where it leads to. A link itself is followed
    wherever it leads: only who may write to the repository can make one, and clients who send files cannot.

    Args:
        directory: the model's.
        folder: which one of its folders the name is relative to; empty for the directory itself.
        name: as the configuration gives it.
    """
    relative = os.path.normpath(os.path.join(folder, name))
    if os.path.isabs(relative) or relative.split(os.sep)[0] == os.pardir or "\0" in name:
        return None
    return directory / relative


def read_bytes(path: Path) -> bytes:
    """The contents of a file.

    Raises:
        InternalError: ``failed to open text file for read <path>: <reason>``.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
    except ValueError as error:  # a NUL in the path
        reason = str(error)
    raise InternalError(f"failed to open text file for read {path}: {reason}")


def read_text(path: Path) -> str:
    """The text of a file. What is not UTF-8 becomes U+FFFD, so that a comment in another encoding does no harm.

    Raises:
        InternalError: see `read_bytes`.
    """
    return read_bytes(path).decode(errors="replace")
