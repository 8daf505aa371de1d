"""What a client presents to say who it is."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


class CredentialKind(enum.Enum):
    """Where a credential comes from."""

    __hash__ = object.__hash__

    NONE = "no credential"
    API_KEY = "API key"  # header `X-API-Key`
    BEARER = "bearer token"  # header `Authorization: Bearer`: an API key, or a JWT
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Credential:
    """What a client presented.

    Attributes:
        value: the key or token as it was sent; of a certificate what `certificate_names` makes of it.
    """

    kind: CredentialKind
    value: bytes

    def __repr__(self) -> str:
        """Without the value, which must not get into a log."""
        return f"<Credential {self.kind.value}, {len(self.value)} bytes>"


NO_CREDENTIAL: Final = Credential(CredentialKind.NONE, b"")

_OF_SUBJECT = {"commonName": "common-name", "organizationName": "organization", "organizationalUnitName": "unit"}
_ALTERNATIVE = {"DNS": "dns", "URI": "uri", "email": "email", "IP Address": "ip"}

CERTIFICATE_NAMES: Final = (*_OF_SUBJECT.values(), *_ALTERNATIVE.values())
"""What of a certificate the access file may ask for."""


def certificate_names(certificate: Mapping[str, Any]) -> bytes:
    """The names of a client's certificate, in the form in which a `Credential` has them: one `kind=name` a line.

    Args:
        certificate: as `ssl.SSLSocket.getpeercert` gives it, which has to have been verified.
    """
    return "\n".join(f"{kind}={name}" for kind, name in _names(certificate)).encode("utf-8", "backslashreplace")


def read_names(value: bytes) -> dict[str, list[str]]:
    """The names in a certificate's credential, by kind."""
    names: dict[str, list[str]] = {}
    for line in value.decode("utf-8", "replace").split("\n"):
        kind, _, name = line.partition("=")
        names.setdefault(kind, []).append(name)
    return names


def _names(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pairs = [(_OF_SUBJECT.get(kind), name) for part in certificate.get("subject", ()) for kind, name in part]
    pairs += [(_ALTERNATIVE.get(kind), name) for kind, name in certificate.get("subjectAltName", ())]
    for kind, name in pairs:
        # A line break within a name would pose as another name.
        if kind is not None and isinstance(name, str) and name.isprintable():
            yield kind, name
