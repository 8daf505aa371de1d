"""Certificates for tests of TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
import trustme

from trireme.api.sockets.transport import TlsOptions


class Authority:
    """A certificate authority with a server certificate, as files, and client certificates, as PEM."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.root = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.root)
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        issued = self.ca.issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        issued.private_key_pem.write_to_path(self.key)

    @property
    def options(self) -> TlsOptions:
        return TlsOptions(self.certificate, self.key)

    @property
    def mutual_options(self) -> TlsOptions:
        return TlsOptions(self.certificate, self.key, client_ca=self.root)

    def context(self, *protocols: str) -> ssl.SSLContext:
        """For a client of the standard library that offers protocols, if any."""
        context = ssl.create_default_context(cafile=self.root)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    def credentials(self, issuer: trustme.CA | None = None) -> grpc.ChannelCredentials:
        root = self.ca.cert_pem.bytes()
        if issuer is None:
            return grpc.ssl_channel_credentials(root)
        client = issuer.issue_cert("client@localhost")
        return grpc.ssl_channel_credentials(root, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
