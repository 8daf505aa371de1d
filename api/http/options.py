"""What the HTTP front end is told at start: plain values, one field a flag (docs/reference/command-line.md#flags)."""

from __future__ import annotations

from dataclasses import dataclass

from ..restrictions import Restriction
from .json_limits import DEFAULT_MAX_VALUES


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of an `HttpApplication`; the flag's name where it is not obvious.

    Attributes:
        max_input_bytes: ``--http-max-input-size``, bound on bodies that are JSON, on one tensor given as JSON, on raw
            and compressed requests and what these unpack to, and on load requests. Binary tensors are not bounded by it
            (docs/reference/http.md#request-bodies).
        max_management_bytes: ``--http-max-management-size``, bound on the bodies of all other calls, and on load
            requests without files.
        header_forward_pattern: ``--http-header-forward-pattern``, a regular expression; headers whose name it matches
            become request parameters (docs/reference/http-inference.md#header-forwarding). Empty: none does.
        allow_client_shm: whether clients may register shared-memory regions (docs/reference/shared-memory.md#regions).
        restrictions: ``--http-restricted-api``: which requests need which header
            (docs/reference/http.md#restricted-apis).
        max_json_values: most values that a JSON text may have, besides plain data of tensors in large arrays.
        max_compression_ratio: most bytes that one byte of a compressed body may become; 0 for any number.
        allowed_origins, allowed_hosts: ``--http-allowed-…``: see `OriginGuard`.
    """

    max_input_bytes: int = 67_108_864
    max_management_bytes: int = 1 << 20
    header_forward_pattern: str = ""
    allow_client_shm: bool = False
    restrictions: tuple[Restriction, ...] = ()
    max_json_values: int = DEFAULT_MAX_VALUES
    max_compression_ratio: float = 1_000.0
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
