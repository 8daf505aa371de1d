"""Text files of a model directory."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InternalError


def read_text(path: Path) -> str:
    """The text of a file. What is not UTF-8 becomes U+FFFD, so that a comment in another encoding does no harm.

    Raises:
        InternalError: ``failed to open text file for read <path>: <reason>``.
    """
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
    except ValueError as error:  # a NUL in the path
        reason = str(error)
    raise InternalError(f"failed to open text file for read {path}: {reason}")
