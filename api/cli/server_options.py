"""Which server a sub-command asks: its options, and the connection."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .parser import USAGE, CommandError

if TYPE_CHECKING:
    from .remote import ServerConnection

_PORTS = {"http": 8000, "https": 8000, "grpc": 8001}


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Where the server is, and what it wants to see."""
    parser.add_argument(
        "--url", default="http://localhost:8000", help="http://HOST:PORT or grpc://HOST:PORT; default %(default)s"
    )
    parser.add_argument(
        "--api-key", default=os.environ.get("TRIREME_API_KEY", ""), help="by default the variable TRIREME_API_KEY"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="sent along, such as a restricted API's key"
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for an answer; default 60")


def connect_to(given: argparse.Namespace) -> ServerConnection:
    """The server that the options name; nothing is sent yet."""
    url = given.url if "://" in given.url else f"http://{given.url}"
    try:
        split = urlsplit(url)
        port = split.port or _PORTS[split.scheme]
        host = (split.hostname or "") if split.scheme in _PORTS else ""
    except (ValueError, KeyError):
        host, port = "", 0
    if not host:
        raise CommandError(
            f"--url is {given.url}", "write http://HOST:PORT, https://HOST:PORT or grpc://HOST:PORT", USAGE
        )
    headers = [("x-api-key", given.api_key)] if given.api_key else []
    for text in given.header:
        name, colon, value = text.partition(":")
        if not colon:
            raise CommandError(f"--header is {text}", "write NAME:VALUE", USAGE)
        headers.append((name.strip().lower(), value.strip()))
    if split.scheme == "grpc":
        from .remote_grpc import GrpcRemote

        return GrpcRemote(url, host, port, headers, given.timeout)
    from .remote import HttpRemote

    return HttpRemote(url, host, port, headers, given.timeout, secure=split.scheme == "https")
