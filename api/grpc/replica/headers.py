"""Which headers of a client's go with its request to a replica, as metadata of the call.

Rules:
 1. Only those that the front end has found a reason for: the trace context, and the header that a route is sticky by
    (`InferenceRequest.passed_on`).
 2. Never credentials: they are the gateway's to check, and it has its own. Never what is about one connection, or what
    gRPC itself says.
 3. A value that gRPC cannot carry as text, or a very long one, stays here.
"""

from __future__ import annotations

import re

TRACE_HEADERS = frozenset(("traceparent", "tracestate"))

_CREDENTIALS = {"authorization", "proxy-authorization", "cookie", "x-api-key"}
_CONNECTION = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
_MESSAGE = {"host", "expect", "content-type", "content-length", "content-encoding", "accept-encoding", "user-agent"}
_NEVER = frozenset(_CREDENTIALS | _CONNECTION | _MESSAGE)
_TEXT = re.compile(r"[\x20-\x7e]{1,4096}")


def may_pass(name: str, value: str) -> bool:
    """Whether this header may go with a request.

    Args:
        name: in lower case.
    """
    if name in _NEVER or name.startswith((":", "grpc-")) or name.endswith("-bin"):
        return False
    return _TEXT.fullmatch(value) is not None
