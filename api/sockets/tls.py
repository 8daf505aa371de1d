"""TLS for a listener: which files, and a context made of them with errors that name the file at fault."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...engine.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files. With `client_ca`, clients must present a certificate that one of its authorities has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def server_context(options: TlsOptions, protocols: Sequence[str]) -> ssl.SSLContext:
    """A context for TLS 1.2 and later that offers `protocols` by ALPN.

    Raises:
        InvalidArgumentError: a file is missing or unreadable, holds no certificate or key, or the key is not the
            certificate's.
    """
    for what, path in (("certificate", options.certificate), ("key", options.key), ("client CA", options.client_ca)):
        if path is not None:
            _check_readable(what, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(list(protocols))
    try:
        # An encrypted key would make OpenSSL ask for its password on the terminal.
        context.load_cert_chain(options.certificate, options.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgumentError(
                f"TLS key {options.key} does not belong to certificate {options.certificate}"
            ) from error
        raise InvalidArgumentError(
            f"TLS certificate {options.certificate} or key {options.key} is not valid PEM: {error.reason or error}"
        ) from error
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except ssl.SSLError as error:
            raise InvalidArgumentError(
                f"TLS client CA {options.client_ca} is not valid PEM: {error.reason or error}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(what: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InvalidArgumentError(f"cannot read TLS {what} {path}: {error.strerror}") from error


def _no_password() -> bytes:
    raise InvalidArgumentError("the TLS key is encrypted; only keys without a password are supported")
