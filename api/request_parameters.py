"""What both protocols agree on about requests: how large they may be, which names of parameters are taken, which
headers become parameters, and what clients are not allowed to do: changes of shared memory, and calls that need a key
(``--http-restricted-api`` and ``--grpc-restricted-protocol``: docs/reference/http.md#restricted-apis,
docs/reference/grpc.md#restricted-protocols).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.errors import InvalidArgumentError, UnsupportedError

MAX_PARTS = 8_192
"""Inputs, outputs, raw contents and parameters that a request may have, all together; and files of a load request."""

MAX_TEXT_BYTES = 1 << 20
"""Of a name, an id, or the string of a parameter: one call makes it."""

RESERVED_PREFIX = "triton_"
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
"""Names that mean something to the server, besides all that begin with `RESERVED_PREFIX`."""


HeaderPattern = Callable[[str], bool]
"""Whether a regular expression is found in a header's name; bytes that are not UTF-8 are surrogates there."""


def compile_forward_pattern(pattern: str) -> HeaderPattern | None:
    """``--http-header-forward-pattern`` or ``--grpc-header-forward-pattern``; None if it is empty.

    A regular expression of RE2, matched anywhere in a header's name and without regard to case, unless it says
    otherwise: ``(?-i)``. The time that a match takes grows with the length of the name only, whatever the expression.

    Raises:
        InvalidArgumentError: it is not a regular expression.
    """
    if not pattern:
        return None
    import re2  # only servers that forward headers need it

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        search: Callable[[bytes], object] = re2.compile(pattern.encode(), options).search
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if isinstance(error, re2.error) else error
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise InvalidArgumentError(f"invalid header forward pattern '{pattern}': {shown}") from error
    return lambda name: search(name.encode("utf-8", "surrogateescape")) is not None


def check_forwarded_name(name: str) -> None:
    """A header may not pose as a parameter that means something to the server
    (docs/reference/http-inference.md#header-forwarding, docs/reference/grpc.md#header-forwarding).

    Raises:
        InvalidArgumentError: this one does.
    """
    if name in RESERVED or name.startswith(RESERVED_PREFIX):
        raise InvalidArgumentError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")


# ---- what is not allowed ----

RESTRICTABLE = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""Categories of calls that a restriction can name."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """Calls of these categories need this header with this value."""

    categories: tuple[str, ...]
    key: str
    value: str

    def admits(self, given: bytes | None) -> bool:
        """Whether this is the value; how long that takes does not tell how much of it is right.

        Args:
            given: of the header; None if there is none.
        """
        return given is not None and hmac.compare_digest(given, self.value.encode("utf-8", "surrogateescape"))

    def sealed(self) -> Restriction:
        """The same, for a process that is not to know the value."""
        salt = secrets.token_bytes(16)
        return SealedRestriction(
            self.categories, self.key, "", salt, _digest(salt, self.value.encode("utf-8", "surrogateescape"))
        )


@dataclass(frozen=True, slots=True)
class SealedRestriction(Restriction):
    """A restriction that knows a digest of the value instead."""

    salt: bytes
    digest: bytes

    def admits(self, given: bytes | None) -> bool:
        return given is not None and hmac.compare_digest(_digest(self.salt, given), self.digest)


def _digest(salt: bytes, value: bytes) -> bytes:
    return hashlib.sha256(salt + value).digest()


def refuse_region_changes(allow_client_shm: bool) -> None:
    """Clients register and unregister shared memory only where they are allowed to
    (docs/reference/shared-memory.md#regions).

    Raises:
        UnsupportedError: they are not.
    """
    if not allow_client_shm:
        raise UnsupportedError(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        )
