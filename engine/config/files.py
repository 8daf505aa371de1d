"""Text files of a model directory."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InternalError


def read_text(path: Path) -> str:
    """The text of a file, which must be UTF-8.

    Raises:
        InternalError: ``failed to open text file for read <path>: <reason>``.
    """
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text at byte {error.start}"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
    except ValueError as error:  # a NUL in the path
        reason = str(error)
    raise InternalError(f"failed to open text file for read {path}: {reason}")
