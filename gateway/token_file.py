"""A file with a bearer token."""

from __future__ import annotations

import re
from pathlib import Path

_TOKEN = re.compile(r"[!-~]+")


def read_token(path: Path) -> str:
    """The token. What is wrong is said without what is in the file, which may be a secret all the same. Blocks.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no token, or something else beside it, which no header can carry.
    """
    token = path.read_text("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"expected one token in {path}, and no more")
    return token
