"""Requests that are refused by their heads: for want of a key, or as they come from a web page.

A page of any site can have the browser that shows it send a POST to this server, with any body and a simple
Content-Type, from inside the network. It cannot keep the browser from saying so, by ``Origin`` and ``Sec-Fetch-Site``,
which programs (tritonclient, curl, perf_analyzer) do not send.

Rules:
 1. A call that can change the server (any POST but inference) with an ``Origin`` that is not allowed is refused. An
    origin that has the same host as the request is no exception: a site that points its own name at this server's
    address has that (DNS rebinding), and this server has no pages of its own.
 2. Without ``Origin``, such a call is refused if ``Sec-Fetch-Site`` says that a page sent it from elsewhere.
 3. If hosts are named, every request must have one of them as its ``Host``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..request_parameters import Restriction
from .exchange import TEXT, Answer, Headers, error_body, json_refusal

ANY_ORIGIN = "*"

ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[^\s/:@?#,]+)(?::[0-9]+)?")
"""An allowed origin: a scheme, a host, a port if it is not the usual one; ``null``; or any."""

HOST = re.compile(r"(?:\[[0-9a-f:.]+\]|[^\s/:@?#,]+)(?::[0-9]+)?")
"""An allowed host: a name or an address, for any port or for one."""

_FROM_HERE = (b"none", b"same-origin")


class RequestGuard:
    """Looks at every request as soon as its route is known, before its method and its body.

    Args:
        restrictions: which requests need a key in their headers (docs/reference/http.md#restricted-apis).
        origins: whose pages may make calls that change the server, in lower case; `ANY_ORIGIN` for all.
        hosts: what ``Host`` may be, in lower case; empty for anything.
    """

    def __init__(
        self, restrictions: Sequence[Restriction] = (), origins: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> None:
        self._any_origin = ANY_ORIGIN in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._hosts = frozenset(host.encode() for host in hosts)
        self._keys = {
            category: (each.key.lower().encode("utf-8", "surrogateescape"), each)
            for each in restrictions
            for category in each.categories
        }

    @property
    def guards_inference(self) -> bool:
        """Whether inference requests may be refused."""
        return bool(self._hosts) or "inference" in self._keys

    def refusal(self, category: str, method: str, headers: Headers) -> Answer | None:
        """What to answer to a request that is not allowed; None if it may pass. Of repeated keys the first counts."""
        if category in self._keys:
            key, restriction = self._keys[category]
            if not restriction.admits(next((given for name, given in headers if name == key), None)):
                return Answer(403, TEXT, error_body(f"This API is restricted, expecting header '{restriction.key}'"))
        if self._hosts and (refused := self._refused_host(headers)) is not None:
            return refused
        if method != "POST" or category == "inference" or self._any_origin:
            return None
        origins = [value.strip().lower() for name, value in headers if name == b"origin"]
        for origin in origins:
            if origin not in self._origins:
                return _forbidden(f"a call that can change the server came from the origin '{_shown(origin)}'")
        if origins:
            return None
        for name, value in headers:
            if name == b"sec-fetch-site" and value.strip().lower() not in _FROM_HERE:
                return _forbidden("a call that can change the server came from a page of another site")
        return None

    def _refused_host(self, headers: Headers) -> Answer | None:
        given = [value.strip().lower() for name, value in headers if name == b"host"]
        if given and all(host in self._hosts or _without_port(host) in self._hosts for host in given):
            return None
        shown = f"the host '{_shown(given[0])}'" if given else "no host"
        message = f"the request is for {shown}, expected one of those that --http-allowed-hosts names"
        return json_refusal(403, message)


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host


def _forbidden(what: str) -> Answer:
    return json_refusal(403, f"{what}, expected none or one that --http-allowed-origins names")


def _shown(value: bytes) -> str:
    return value[:200].decode("utf-8", "replace")
