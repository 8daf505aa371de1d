"""Request logs as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..engine.errors import InvalidArgumentError
from ..engine.logs.request_log import LoggedRequest, read_request_log


def read_log(path: Path) -> Sequence[LoggedRequest]:
    """The arrivals of a request log.

    Raises:
        InvalidArgumentError: it cannot be read, or is none.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return read_request_log(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"request log '{path}' cannot be read: {error}") from error
