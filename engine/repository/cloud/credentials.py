"""Credentials for object stores, from where Triton takes them.

With ``TRITON_CLOUD_CREDENTIAL_PATH``, a JSON file says which credential is for which addresses; the one with the
longest name that an address begins with counts. Without it, these variables of the environment do:

    S3      AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_DEFAULT_REGION, AWS_PROFILE
    Google  GOOGLE_APPLICATION_CREDENTIALS
    Azure   AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY, AZURE_STORAGE_AUTH_TYPE, AZURE_STORAGE_CLIENT_ID

What is left open is taken from where the cloud's own tools would (`settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ...errors import InternalError, InvalidArgumentError, NotFoundError
from .addresses import StoreAddress

FILE_VARIABLE = "TRITON_CLOUD_CREDENTIAL_PATH"


@dataclass(frozen=True, slots=True)
class StoreCredential:
    """What proves to a store who asks; what does not belong to a cloud, or is not given, is empty.

    Attributes:
        key_id, secret, session_token: S3.
        region, profile: S3.
        path: Google: of a file with an authorized user or a service account.
        account, account_key: Azure; an account takes the place of the address's.
        auth_type: Azure: ``managed_identity``, ``default``; else the key, or none, counts.
        client_id: Azure: of a managed identity that a user has assigned.
    """

    key_id: str = ""
    secret: str = ""
    session_token: str = ""
    region: str = ""
    profile: str = ""
    path: str = ""
    account: str = ""
    account_key: str = ""
    auth_type: str = ""
    client_id: str = ""

    def __repr__(self) -> str:
        return "StoreCredential(...)"


_IN_FILE = {
    "s3": {
        "secret_key": "secret",
        "key_id": "key_id",
        "region": "region",
        "session_token": "session_token",
        "profile": "profile",
    },
    "as": {
        "account_str": "account",
        "account_key": "account_key",
        "auth_type": "auth_type",
        "client_id": "client_id",
    },
}
_IN_ENVIRONMENT = {
    "s3": {
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ACCESS_KEY_ID": "key_id",
        "AWS_DEFAULT_REGION": "region",
        "AWS_SESSION_TOKEN": "session_token",
        "AWS_PROFILE": "profile",
    },
    "gs": {"GOOGLE_APPLICATION_CREDENTIALS": "path"},
    "as": {
        "AZURE_STORAGE_ACCOUNT": "account",
        "AZURE_STORAGE_KEY": "account_key",
        "AZURE_STORAGE_AUTH_TYPE": "auth_type",
        "AZURE_STORAGE_CLIENT_ID": "client_id",
    },
}


def find_credential(address: StoreAddress, environment: Mapping[str, str]) -> StoreCredential:
    """The credential for an address. Reads the credential file, if there is one, anew.

    Raises:
        InternalError: the file cannot be read.
        InvalidArgumentError: it is not of the form that Triton documents.
        NotFoundError: it has no credential for the address.
    """
    path = environment.get(FILE_VARIABLE)
    if path is None:
        names = _IN_ENVIRONMENT[address.scheme]
        return StoreCredential(**{field: environment.get(name, "") for name, field in names.items()})
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise InternalError(f"failed to open the cloud credential file {path}: {error.strerror}") from error
    return match_credential(address, read_credentials(text, path, address.scheme))


def match_credential(address: StoreAddress, credentials: Mapping[str, StoreCredential]) -> StoreCredential:
    """The one with the longest name that the address begins with; NotFoundError if there is none."""
    names = [name for name in credentials if address.given.startswith(name)]
    if not names:
        raise NotFoundError(f"Cannot match credential for path  {address.text}")
    return credentials[max(names, key=len)]


def read_credentials(text: bytes, path: str, scheme: str) -> dict[str, StoreCredential]:
    """What a credential file has for a cloud, by name.

    Raises:
        InvalidArgumentError: it is not of the form that Triton documents.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(f"failed to parse the cloud credential file {path}: {error}") from error
    found = _object(document, path, "the file").get(scheme, {})
    credentials = {}
    for name, given in _object(found, path, f'"{scheme}"').items():
        where = f'"{scheme}" "{name}"'
        if scheme == "gs":
            credentials[name] = StoreCredential(path=_string(given, path, where))
            continue
        fields = _object(given, path, where)
        values = {
            field: _string(fields.get(key, ""), path, f'{where} "{key}"') for key, field in _IN_FILE[scheme].items()
        }
        credentials[name] = StoreCredential(**values)
    return credentials


def _object(value: Any, path: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"the cloud credential file {path}: {where} must be an object")
    return value


def _string(value: Any, path: str, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"the cloud credential file {path}: {where} must be a string")
    return value
