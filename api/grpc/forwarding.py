"""Metadata that becomes request parameters (docs/reference/grpc.md#header-forwarding)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.request import InferenceRequest
from ..request_parameters import HeaderPattern, check_forwarded_name

if TYPE_CHECKING:
    from .call_head import CallHead
    from .streaming import StreamingCall


def forward_metadata(call: CallHead | StreamingCall, pattern: HeaderPattern, request: InferenceRequest) -> None:
    """Make parameters of the call's metadata in whose keys `pattern` is found; as in Triton, the user agent is part of
    it. They come after the request's own parameters, and take the place of those of the same name.

    Raises:
        InvalidArgumentError: such a key means something to the server.
    """
    pairs = call.metadata.items()
    for key, value in pairs if call.user_agent is None else (("user-agent", call.user_agent), *pairs):
        if pattern.matches(key):
            check_forwarded_name(key)
            request.parameters[key] = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
