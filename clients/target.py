"""Which server load is put on, and by which protocol."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..engine.errors import InvalidArgumentError


class LoadProtocol(enum.Enum):
    """How requests go to the server."""

    HTTP = "http"
    GRPC = "grpc"


_DEFAULT_PORTS = {LoadProtocol.HTTP: 8000, LoadProtocol.GRPC: 8001}


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A server.

    Attributes:
        api_key: what clients present; empty for nothing.
    """

    host: str
    port: int
    protocol: LoadProtocol = LoadProtocol.HTTP
    api_key: str = ""

    @classmethod
    def of(cls, url: str, protocol: LoadProtocol | None = None, api_key: str = "") -> LoadTarget:
        """Of `http://HOST:PORT`, `grpc://HOST:PORT`, or `HOST:PORT` with a protocol.

        Raises:
            InvalidArgumentError: it is none, or the key cannot be sent.
        """
        known = {each.value: each for each in LoadProtocol}
        try:
            split = urlsplit(url if "://" in url else f"{(protocol or LoadProtocol.HTTP).value}://{url}")
            found = known[split.scheme]
            port = split.port or _DEFAULT_PORTS[found]
        except (KeyError, ValueError) as error:
            raise InvalidArgumentError(f"found {url!r}, expected http://HOST:PORT or grpc://HOST:PORT") from error
        if not split.hostname or split.path not in ("", "/") or (protocol is not None and found is not protocol):
            raise InvalidArgumentError(f"found {url!r}, expected http://HOST:PORT or grpc://HOST:PORT")
        if not (api_key.isascii() and api_key.isprintable()):
            raise InvalidArgumentError("the API key has characters that no header can have, expected printable ASCII")
        return cls(split.hostname, port, found, api_key)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What goes with each request, names in lower case."""
        return (("x-api-key", self.api_key),) if self.api_key else ()

    def __str__(self) -> str:
        return f"{self.protocol.value}://{self.host}:{self.port}"
