"""How a store is reached: from an address and a credential to the settings of the client library.

Rules:
 1. A key that is given is the only one used: no part of it, like a session's token, is taken from elsewhere.
 2. Without one, the cloud's own chain is asked: workload identity, the metadata service of the machine, and so on. If
    nothing answers there, the store is asked without a credential, as for public buckets.
 3. S3: a key before a profile. A profile without a static key, and the role, single sign-on or process that it names
    instead, are left to boto3, if that is installed.
 4. Azure: without a key and without AZURE_STORAGE_AUTH_TYPE, the chain is asked only if the environment has something
    for it; as in Triton there is no credential otherwise. A managed identity that is asked for is used whatever the
    environment has.
 5. Variables of Trireme's client library, and of Google's for emulators, name other endpoints: AWS_ENDPOINT_URL,
    AZURE_STORAGE_ENDPOINT, GOOGLE_BASE_URL, CLOUD_STORAGE_EMULATOR_ENDPOINT. An endpoint in an address comes before.
 6. Google: the library prefers some variables to a file that it is given, and cannot be told otherwise. With another
    account in one of them, a repository that has a file is not opened.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError
from .addresses import StoreAddress
from .credentials import StoreCredential

_AWS_CHAIN = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_PROFILE_CHAIN = ("role_arn", "sso_session", "sso_start_url", "credential_process")
_AZURE_CHAIN = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_USE_AZURE_CLI",
)
_GOOGLE_FIRST = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "SERVICE_ACCOUNT",
)
"""What the library takes before a file (rule 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """For the client library.

    Attributes:
        config: of the store, without what is secret.
        secret: what a request is signed with, as the library's credential provider gives it; None for the chain.
        profile: an S3 profile that boto3 has to look up; empty for none.
        anonymous: requests are not signed.
        then_anonymous: without a credential of the chain, requests are not signed.
        allow_http: the endpoint is not encrypted.
    """

    config: Mapping[str, Any]
    secret: Mapping[str, Any] | None = field(default=None, repr=False)
    profile: str = ""
    anonymous: bool = False
    then_anonymous: bool = False
    allow_http: bool = False


def store_settings(
    address: StoreAddress, credential: StoreCredential, environment: Mapping[str, str], home: Path
) -> StoreSettings:
    """What to reach a repository with. Reads the user's AWS files, if a profile is asked for or no key is given.

    Args:
        home: of the user, where ``.aws`` is.

    Raises:
        InvalidArgumentError: a setting makes no sense.
    """
    match address.scheme:
        case "s3":
            return _s3(address, credential, environment, home)
        case "gs":
            return _google(address, credential, environment)
        case _:
            return _azure(address, credential, environment)


def _s3(address: StoreAddress, given: StoreCredential, environment: Mapping[str, str], home: Path) -> StoreSettings:
    profile = {} if given.key_id and given.secret else _profile(given.profile or "default", environment, home)
    endpoint = address.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
    endpoint = endpoint or profile.get("endpoint_url", "")
    config: dict[str, Any] = {"bucket": address.bucket}
    if endpoint:
        config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint, "virtual_hosted_style_request": False}
    region = given.region or environment.get("AWS_REGION", "") or profile.get("region", "")
    if region:
        config["region"] = region
    allow_http = endpoint.startswith("http://")
    if given.key_id and given.secret:
        secret = _aws_secret(given.key_id, given.secret, given.session_token)
        return StoreSettings(config=config, secret=secret, allow_http=allow_http)
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        token = profile.get("aws_session_token", "")
        secret = _aws_secret(profile["aws_access_key_id"], profile["aws_secret_access_key"], token)
        return StoreSettings(config=config, secret=secret, allow_http=allow_http)
    if given.profile or not profile.keys().isdisjoint(_PROFILE_CHAIN):
        return StoreSettings(config=config, profile=given.profile or "default", allow_http=allow_http)
    no_metadata = environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    other = any(name in environment for name in _AWS_CHAIN)
    if no_metadata and not other:
        return StoreSettings(config=config, anonymous=True, allow_http=allow_http)
    return StoreSettings(config=config, then_anonymous=not other, allow_http=allow_http)


def _aws_secret(key_id: str, secret: str, token: str) -> dict[str, Any]:
    return {"access_key_id": key_id, "secret_access_key": secret, "token": token or None, "expires_at": None}


def _profile(name: str, environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """A section of the user's AWS files, both together; empty if there is none."""
    aws = home / ".aws"
    files = (
        (environment.get("AWS_CONFIG_FILE") or str(aws / "config"), name if name == "default" else f"profile {name}"),
        (environment.get("AWS_SHARED_CREDENTIALS_FILE") or str(aws / "credentials"), name),
    )
    found: dict[str, str] = {}
    for path, section in files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError) as error:
            line = f", line {number}" if (number := _line(error)) else ""
            raise InvalidArgumentError(
                f"failed to parse the AWS configuration {path}{line}: {type(error).__name__}"
            ) from None  # the library's text has lines of the file, which may be secret
        if parser.has_section(section):
            found |= parser.items(section)
    return found


def _line(error: Exception) -> int:
    """Where a file cannot be parsed; 0 if that is not known."""
    if isinstance(error, configparser.MissingSectionHeaderError):
        return error.lineno
    errors = getattr(error, "errors", ())
    return errors[0][0] if errors else 0


def _google(address: StoreAddress, given: StoreCredential, environment: Mapping[str, str]) -> StoreSettings:
    endpoint = environment.get("GOOGLE_BASE_URL", "")
    emulator = environment.get("CLOUD_STORAGE_EMULATOR_ENDPOINT", "")
    config: dict[str, Any] = {"bucket": address.bucket}
    if endpoint or emulator:
        config["base_url"] = (endpoint or emulator).rstrip("/")
    allow_http = (endpoint or emulator).startswith("http://")
    if given.path:
        for name in _GOOGLE_FIRST:
            if environment.get(name, given.path) != given.path:
                raise InvalidArgumentError(
                    f"the variable {name} would take the place of the credentials {given.path} for {address}: unset it"
                )
        config["application_credentials"] = given.path
        return StoreSettings(config=config, allow_http=allow_http)
    if emulator:
        return StoreSettings(config=config, anonymous=True, allow_http=allow_http)
    return StoreSettings(config=config, then_anonymous=True, allow_http=allow_http)


def _azure(address: StoreAddress, given: StoreCredential, environment: Mapping[str, str]) -> StoreSettings:
    endpoint = environment.get("AZURE_STORAGE_ENDPOINT") or environment.get("AZURE_ENDPOINT", "")
    config: dict[str, Any] = {"container_name": address.bucket, "account_name": given.account or address.account}
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
    allow_http = endpoint.startswith("http://")
    match given.auth_type:
        case "managed_identity":
            config["credential_type"] = "managed_identity"
            if given.client_id:
                config["client_id"] = given.client_id
        case "default":
            if given.client_id:
                config["client_id"] = given.client_id
        case "" | "key" if given.account_key:
            secret = {"access_key": given.account_key, "expires_at": None}
            return StoreSettings(config=config, secret=secret, allow_http=allow_http)
        case "" | "key":
            anonymous = not any(name in environment for name in _AZURE_CHAIN)
            return StoreSettings(config=config, anonymous=anonymous, allow_http=allow_http)
        case other:
            raise InvalidArgumentError(
                f"the authentication type '{other}' for {address} is unknown, expected key, managed_identity or default"
            )
    return StoreSettings(config=config, allow_http=allow_http)
