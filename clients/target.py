"""Which server load is put on, and by which protocol."""

from __future__ import annotations

import enum
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ..engine.errors import InvalidArgumentError
from .tls import TlsFiles


class LoadProtocol(enum.Enum):
    """How requests go to the server.

    HTTP: tensors in binary.
    JSON: over HTTP, tensors as text.
    GRPC: unary calls.
    STREAM: over gRPC, those of a connection on one stream.
    """

    HTTP = "http"
    JSON = "json"
    GRPC = "grpc"
    STREAM = "stream"

    @property
    def is_http(self) -> bool:
        """Requests are those of HTTP/1.1."""
        return self in (LoadProtocol.HTTP, LoadProtocol.JSON)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A server.

    Attributes:
        api_key: what clients present; empty for nothing.
        tls: None for connections without.
    """

    host: str
    port: int
    protocol: LoadProtocol = LoadProtocol.HTTP
    api_key: str = ""
    tls: ssl.SSLContext | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, url: str, protocol: LoadProtocol | None = None, api_key: str = "", tls: TlsFiles | None = None
    ) -> LoadTarget:
        """Of `PROTOCOL://HOST:PORT`, or `HOST:PORT` with a protocol.

        Args:
            tls: for `https://` and `grpcs://` as well, and for the others where it names files; None for no TLS.

        Raises:
            InvalidArgumentError: it is none, the key cannot be sent, or a file for TLS cannot be read.
        """
        known = {each.value: each for each in LoadProtocol}
        expected = " or ".join(f"{each}://HOST:PORT" for each in ("http", "grpc"))
        if tls is not None:
            known |= {f"{each.value}s": each for each in LoadProtocol}
            expected += ", with TLS https:// or grpcs://"
        try:
            split = urlsplit(url if "://" in url else f"{(protocol or LoadProtocol.HTTP).value}://{url}")
            found = known[split.scheme]
            port = split.port or (8000 if found.is_http else 8001)
        except (KeyError, ValueError) as error:
            raise InvalidArgumentError(f"found {url!r}, expected {expected}") from error
        if not split.hostname or split.path not in ("", "/") or (protocol is not None and found is not protocol):
            raise InvalidArgumentError(f"found {url!r}, expected {expected}")
        if not (api_key.isascii() and api_key.isprintable()):
            raise InvalidArgumentError("the API key has characters that no header can have, expected printable ASCII")
        context = None
        if tls is not None and (tls.named or split.scheme != found.value):
            context = tls.context("http/1.1" if found.is_http else "h2")
        return cls(split.hostname, port, found, api_key, context)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What goes with each request, names in lower case."""
        return (("x-api-key", self.api_key),) if self.api_key else ()

    def __str__(self) -> str:
        return f"{self.protocol.value}{'' if self.tls is None else 's'}://{self.host}:{self.port}"
