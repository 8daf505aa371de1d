"""TLS for the load client: whom it trusts, and what it says of itself."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from ..engine.errors import InvalidArgumentError


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM; empty for none.

    Attributes:
        root_certificates: of the authorities that are trusted; by default those that this machine trusts.
        private_key, certificate_chain: of the client, for servers that ask for a certificate.
    """

    root_certificates: str = ""
    private_key: str = ""
    certificate_chain: str = ""

    @property
    def named(self) -> bool:
        """There is one."""
        return bool(self.root_certificates or self.private_key or self.certificate_chain)

    def context(self, protocol: str) -> ssl.SSLContext:
        """For connections of a protocol as ALPN names it: ``h2`` or ``http/1.1``.

        Raises:
            InvalidArgumentError: a file cannot be read, or there is a key without a certificate.
        """
        if self.private_key and not self.certificate_chain:
            raise InvalidArgumentError("there is a private key without a certificate chain")
        try:
            context = ssl.create_default_context(cafile=self.root_certificates or None)
            if self.certificate_chain:
                context.load_cert_chain(self.certificate_chain, self.private_key or None)
        except OSError as error:  # those of TLS, too
            raise InvalidArgumentError(f"the files for TLS cannot be read: {error.strerror or error}") from error
        context.set_alpn_protocols([protocol])
        return context
