"""What both protocols agree on about request parameters: whose names are taken, and which headers become parameters."""

from __future__ import annotations

import re

from ..engine.errors import InvalidArgumentError

RESERVED_PREFIX = "triton_"
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
"""Names that mean something to the server, besides all that begin with `RESERVED_PREFIX`."""


def compile_forward_pattern(pattern: str) -> re.Pattern[str] | None:
    """``--http-header-forward-pattern`` or ``--grpc-header-forward-pattern``; None if it is empty.

    Raises:
        InvalidArgumentError: it is not a regular expression.
    """
    if not pattern:
        return None
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise InvalidArgumentError(f"invalid header forward pattern '{pattern}': {error}") from error


def check_forwarded_name(name: str) -> None:
    """A header may not pose as a parameter that means something to the server (http.md §4.11, grpc.md §6).

    Raises:
        InvalidArgumentError: this one does.
    """
    if name in RESERVED or name.startswith(RESERVED_PREFIX):
        raise InvalidArgumentError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
