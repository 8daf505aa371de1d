"""Metadata that becomes request parameters (grpc.md §6)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...engine.request import InferenceRequest
from ..request_parameters import check_forwarded_name


def forward_metadata(
    metadata: Iterable[tuple[str, str | bytes]], pattern: re.Pattern[str], request: InferenceRequest
) -> None:
    """Make parameters of the pairs in whose keys `pattern` is found. They come after the request's own parameters, and
    take the place of those of the same name.

    Raises:
        InvalidArgumentError: such a key means something to the server.
    """
    for key, value in metadata:
        if pattern.search(key) is not None:
            check_forwarded_name(key)
            request.parameters[key] = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
