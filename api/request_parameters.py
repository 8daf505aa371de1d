"""What both protocols agree on about request parameters: whose names are taken, and which headers become parameters."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.errors import InvalidArgumentError

MAX_PARTS = 8_192
"""Inputs, outputs, raw contents and parameters that a request may have, all together; and files of a load request."""

MAX_TEXT_BYTES = 1 << 20
"""Of a name, an id, or the string of a parameter: one call makes it."""

RESERVED_PREFIX = "triton_"
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
"""Names that mean something to the server, besides all that begin with `RESERVED_PREFIX`."""


class HeaderPattern:
    """A regular expression of RE2, matched anywhere in a header's name and without regard to case, unless it says
    otherwise: ``(?-i)``. The time that a match takes grows with the length of the name only, whatever the expression.

    Raises:
        InvalidArgumentError: it is not a regular expression.
    """

    __slots__ = ("_found",)

    def __init__(self, pattern: str) -> None:
        import re2  # only servers that forward headers need it

        options = re2.Options()
        options.case_sensitive = False
        options.log_errors = False
        try:
            self._found: Callable[[bytes], object] = re2.compile(pattern.encode(), options).search
        except (re2.error, UnicodeEncodeError) as error:
            reason = error.args[0] if isinstance(error, re2.error) else error
            shown = reason.decode() if isinstance(reason, bytes) else reason
            raise InvalidArgumentError(f"invalid header forward pattern '{pattern}': {shown}") from error

    def matches(self, name: str) -> bool:
        """Whether it is found in a name; bytes that are not UTF-8 are surrogates there."""
        return self._found(name.encode("utf-8", "surrogateescape")) is not None


def compile_forward_pattern(pattern: str) -> HeaderPattern | None:
    """``--http-header-forward-pattern`` or ``--grpc-header-forward-pattern``; None if it is empty.

    Raises:
        InvalidArgumentError: it is not a regular expression.
    """
    return HeaderPattern(pattern) if pattern else None


def check_forwarded_name(name: str) -> None:
    """A header may not pose as a parameter that means something to the server
    (docs/reference/http-inference.md#header-forwarding, docs/reference/grpc.md#header-forwarding).

    Raises:
        InvalidArgumentError: this one does.
    """
    if name in RESERVED or name.startswith(RESERVED_PREFIX):
        raise InvalidArgumentError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
