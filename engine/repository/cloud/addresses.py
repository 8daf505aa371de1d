"""Addresses of repositories in object stores, as Triton reads them.

    s3://bucket/path                            Amazon S3
    s3://host:port/bucket/path                  another store with its protocol, over HTTP
    s3://https://host:port/bucket/path          the same over HTTPS (http:// is allowed, too)
    gs://bucket/path                            Google Cloud Storage
    as://account/container/path                 Azure Storage; account may be <account>.blob.core.windows.net

The path may be left out, or end with a slash, or have several slashes in a row. What is secret does not belong into an
address; a token that is in one all the same (``?sig=…``) is not used, and neither shown nor stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ...errors import InternalError

SCHEMES = ("s3://", "gs://", "as://")

_ENDPOINT = re.compile(r"(http://|https://|)([0-9a-zA-Z.-]+:[0-9]+)(/.*|)")
_AZURE = re.compile(r"([^/]+)/([^/]+)(?:/(.*))?")
_AZURE_DOMAIN = ".blob.core.windows.net"
_USER = re.compile(r"^([a-z0-9]+://(?:https?://)?)[^/?]*@")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a repository is.

    Attributes:
        text: as it may be shown.
        given: as it was given; credentials are chosen by it.
        scheme: ``s3``, ``gs`` or ``as``.
        bucket: in Azure Storage, the container.
        prefix: of the names of its objects, without a slash at either end; empty for the whole bucket.
        endpoint: URL of the store, without a slash at the end; empty for the cloud's own.
        account: of Azure Storage; else empty.
    """

    text: str
    scheme: str
    bucket: str
    prefix: str = ""
    endpoint: str = ""
    account: str = ""
    given: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


def is_store_address(text: str) -> bool:
    """Whether a repository is in an object store, and not in the file system."""
    return text.startswith(SCHEMES)


def shown_address(text: str) -> str:
    """An address, or a path of the file system, without a query, and without a user and a password."""
    return _USER.sub(r"\1", text).partition("?")[0] if is_store_address(text) else text


def parse_address(text: str) -> StoreAddress:
    """Read an address, for which `is_store_address` holds.

    Raises:
        InternalError: it names no bucket, or an endpoint without a port; or a user.
    """
    shown = shown_address(text)
    if _USER.match(text):
        raise InternalError(f"Invalid path: {shown}, a user or a password does not belong into an address")
    return replace(_parsed(shown, text), given=text)


def _parsed(text: str, given: str) -> StoreAddress:
    scheme, _, rest = given.partition("://")
    match scheme:
        case "as":
            return _azure(text, rest.partition("?")[0])
        case "s3":
            return _s3(text, rest)
        case _:
            bucket, _, path = rest.partition("/")
            return StoreAddress(text, scheme, _bucket(text, bucket), _joined(path))


def _s3(text: str, rest: str) -> StoreAddress:
    found = _ENDPOINT.fullmatch(rest.lstrip("/"))
    if found is None:
        if rest.startswith(("http://", "https://")):
            raise InternalError(
                f"Invalid S3 path: {text}, expected s3://{rest.partition(':')[0]}://<host>:<port>/<bucket>/<path>"
            )
        bucket, _, path = _joined(rest).partition("/")
        return StoreAddress(text, "s3", _bucket(text, bucket), path)
    protocol, host, path = found.groups()
    bucket, _, prefix = _joined(path).partition("/")
    return StoreAddress(text, "s3", _bucket(text, bucket), prefix, f"{protocol or 'http://'}{host}")


def _azure(text: str, rest: str) -> StoreAddress:
    found = _AZURE.fullmatch(rest)
    if found is None:
        raise InternalError(f"Invalid azure storage path: {text}, expected as://<account>/<container>/<path>")
    account, container, path = found.groups()
    return StoreAddress(text, "as", container, _joined(path or ""), account=account.removesuffix(_AZURE_DOMAIN))


def _bucket(text: str, bucket: str) -> str:
    if not bucket:
        raise InternalError(f"No bucket name found in path: {text}")
    return bucket


def _joined(path: str) -> str:
    """Without slashes at the ends, and with one where there are several."""
    return "/".join(part for part in path.split("/") if part)
