"""Which server a sub-command asks: its options, and the connection."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .parser import USAGE, CommandError

if TYPE_CHECKING:
    from ...clients.tls import TlsFiles
    from .remote import ServerConnection

_PORTS = {"http": 8000, "https": 8000, "grpc": 8001, "grpcs": 8001}
_LONGEST_TIMEOUT_S = 1e6


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Where the server is, and what it wants to see."""
    parser.add_argument(
        "--url",
        default="http://localhost:8000",
        help="http:// or grpc://HOST:PORT, with TLS https:// or grpcs://; default %(default)s",
    )
    add_tls_options(parser)
    parser.add_argument(
        "--api-key", default=os.environ.get("TRIREME_API_KEY", ""), help="by default the variable TRIREME_API_KEY"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="sent along, such as a restricted API's key"
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for an answer; default 60")


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Files for TLS, as Triton's clients name them."""
    parser.add_argument(
        "--ssl-root-certificates", default="", metavar="FILE", help="authorities to trust, PEM; default this machine's"
    )
    parser.add_argument("--ssl-private-key", default="", metavar="FILE", help="the client's key, PEM")
    parser.add_argument("--ssl-certificate-chain", default="", metavar="FILE", help="the client's certificate, PEM")


def tls_files(given: argparse.Namespace) -> TlsFiles:
    """What the options name."""
    from ...clients.tls import TlsFiles

    return TlsFiles(given.ssl_root_certificates, given.ssl_private_key, given.ssl_certificate_chain)


def server_address(option: str, text: str, default_port: int = 0) -> tuple[str, str, int]:
    """Scheme, host and port of a URL; a text without a scheme is one of HTTP.

    Args:
        option: whose value it is.
        default_port: if it names none; by default that of its protocol.

    Raises:
        CommandError: it is none.
    """
    try:
        split = urlsplit(text if "://" in text else f"http://{text}")
        if split.scheme in _PORTS and split.hostname:
            return split.scheme, split.hostname, split.port or default_port or _PORTS[split.scheme]
    except ValueError:
        pass
    raise CommandError(
        f"{option} is {text}", "write http://HOST:PORT, https://HOST:PORT, grpc://HOST:PORT or grpcs://HOST:PORT", USAGE
    )


def connect_to(given: argparse.Namespace) -> ServerConnection:
    """The server that the options name; nothing is sent yet."""
    url = given.url if "://" in given.url else f"http://{given.url}"
    scheme, host, port = server_address("--url", given.url)
    if not 0 < given.timeout <= _LONGEST_TIMEOUT_S:
        raise CommandError(
            f"--timeout is {given.timeout:g}", f"write seconds above 0, {_LONGEST_TIMEOUT_S:.0f} at most", USAGE
        )
    headers = [("x-api-key", given.api_key)] if given.api_key else []
    if not _is_header_text(given.api_key):
        raise CommandError("--api-key has characters that no key has", "write it in printable ASCII", USAGE)
    for text in given.header:
        name, colon, value = text.partition(":")
        if not (colon and name.strip() and _is_header_text(text)):
            raise CommandError(f"--header is {text}", "write NAME:VALUE, in printable ASCII", USAGE)
        headers.append((name.strip().lower(), value.strip()))
    return _connection(scheme, url, host, port, headers, given)


def _connection(
    scheme: str, url: str, host: str, port: int, headers: list[tuple[str, str]], given: argparse.Namespace
) -> ServerConnection:
    from ...engine.errors import InvalidArgumentError

    files, grpc = tls_files(given), scheme.startswith("grpc")
    try:
        secure = files.named or scheme.endswith("s")
        tls = files.context("h2" if grpc else "http/1.1") if secure else None
    except InvalidArgumentError as error:
        raise CommandError(error.message, "correct the options that begin with --ssl-", USAGE) from error
    if grpc:
        from .remote_grpc import GrpcRemote

        return GrpcRemote(url, host, port, headers, given.timeout, tls)
    from .remote import HttpRemote

    return HttpRemote(url, host, port, headers, given.timeout, tls)


def _is_header_text(text: str) -> bool:
    """Whether HTTP and gRPC can send it in a header."""
    return text.isascii() and text.isprintable()
