"""Who may do more by the console than look: a page that is on the metrics port must not open what that port has not
offered before.

Rules, for what the page asks under ``/console/v2`` (requests to models, load and unload, settings):
 1. With ``--console=view`` no client may. With ``full`` everyone who reaches the port may, and with ``auto`` clients of
    this machine, or, where there are access rules, everyone: they say who may do what, in either case.
 2. A client is of this machine if its address is, and no header says that a proxy has passed the request on.
 3. The page sends `HEADER`. No form and no page of another site can add it without asking first, which is refused.
 4. ``Origin``, if it is there, has the same host as the request, and ``Sec-Fetch-Site`` does not say otherwise.
 5. The host is an address, ``localhost``, or one that ``--http-allowed-hosts`` names. A site that points its own name
    at this server's address (DNS rebinding) has passed rules 3 and 4, but has a name.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Sequence

from ..http.exchange import Answer, Headers, json_refusal

HEADER = b"x-trireme-console"

_PASSED_ON = (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via")
_FROM_HERE = (b"none", b"same-origin")


class ConsoleMode(enum.Enum):
    """``--console``."""

    AUTO = "auto"
    FULL = "full"
    VIEW = "view"
    OFF = "off"


class ConsoleGuard:
    """Looks at what a page asks for.

    Args:
        has_rules: there are access rules.
        hosts: what ``Host`` may be besides, in lower case.
    """

    def __init__(self, mode: ConsoleMode, has_rules: bool, hosts: Sequence[str] = ()) -> None:
        self._mode = mode
        self._has_rules = has_rules
        self._hosts = frozenset(host.encode() for host in hosts)

    def why_not(self, address: str, headers: Headers) -> str:
        """Why a client can only look (rules 1 and 2); empty if it may do more."""
        if self._mode is ConsoleMode.VIEW:
            return "this server's console only shows (--console=view)"
        if self._mode is ConsoleMode.FULL or self._has_rules:
            return ""
        if _is_local(address) and not any(name in _PASSED_ON for name, _ in headers):
            return ""
        return (
            "from another machine the console only shows: open it on the server's machine, or start the server with "
            "--access-config, which says who may do what, or with --console=full"
        )

    def refusal(self, address: str, headers: Headers) -> Answer | None:
        """What to answer to a request that is not allowed; None if it may pass."""
        if why := self.why_not(address, headers):
            return json_refusal(403, why)
        given = {name: value.strip().lower() for name, value in reversed(headers)}
        if HEADER not in given:
            return json_refusal(403, f"the header {HEADER.decode()} is missing, which the console's own page sends")
        host = given.get(b"host", b"")
        origin = given.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != host:
            return json_refusal(403, "the request came from a page of another origin than the console's")
        if given.get(b"sec-fetch-site", b"none") not in _FROM_HERE:
            return json_refusal(403, "the request came from a page of another site")
        name = _without_port(host)
        if not (_is_address(name) or name == b"localhost" or name in self._hosts or host in self._hosts):
            shown = host[:200].decode("utf-8", "replace")
            return json_refusal(
                403,
                f"the request is for the host '{shown}', expected an address, localhost, or a host that "
                "--http-allowed-hosts names",
            )
        return None


def _is_local(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return (name if colon and port.isdigit() else host).strip(b"[]")


def _is_address(name: bytes) -> bool:
    try:
        ipaddress.ip_address(name.decode("ascii", "replace"))
    except ValueError:
        return False
    return True
