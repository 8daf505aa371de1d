"""What a server lets every client do: logged at start."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from .flags import ParsedFlags


def open_management(flags: ParsedFlags) -> Iterator[str]:
    """One line if every client on the network can load models; see docs/security.md."""
    if flags["model-control-mode"] != "explicit":
        return
    places = [
        f"{title} at {flags[f'{protocol}-address']}:{flags[f'{protocol}-port']}"
        for title, protocol, restricted in (
            ("HTTP", "http", "http-restricted-api"),
            ("gRPC", "grpc", "grpc-restricted-protocol"),
        )
        if flags[f"allow-{protocol}"] and _is_public(flags[f"{protocol}-address"]) and not _guards(flags, restricted)
    ]
    if places:
        code = ", and with them code that this server runs" if flags["allow-code-upload"] else ""
        yield (
            f"clients that reach {' or '.join(places)} can load models{code}: restrict this by --http-address and "
            "--grpc-address, by --http-restricted-api and --grpc-restricted-protocol (model-repository), or by "
            "--allow-code-upload=false"
        )


def _guards(flags: ParsedFlags, name: str) -> bool:
    return any("model-repository" in restriction.categories for restriction in flags[name])


def _is_public(address: str) -> bool:
    """Whether other machines may reach it; a name that is not known to be this machine's own may be anything."""
    if address.lower() == "localhost":
        return False
    try:
        return not ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return True
