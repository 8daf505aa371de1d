"""Credentials come from where Triton takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InternalError, InvalidArgumentError, NotFoundError
from trireme.engine.repository.cloud.addresses import StoreAddress, parse_address
from trireme.engine.repository.cloud.credentials import (
    StoreCredential,
    find_credential,
    match_credential,
    read_credentials,
)

S3 = {"secret_key": "s", "key_id": "k", "region": "r", "session_token": "t", "profile": "p"}
DOCUMENT = {
    "gs": {"": "/gs.json", "gs://two": "/two.json"},
    "s3": {"": {"secret_key": "s0", "key_id": "k0"}, "s3://two": S3, "s3://two/deep": {"profile": "deep"}},
    "as": {"as://account/c": {"account_str": "a", "account_key": "k"}, "": {"auth_type": "default", "client_id": "c"}},
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(DOCUMENT))
    return {"TRITON_CLOUD_CREDENTIAL_PATH": str(path), "AWS_ACCESS_KEY_ID": "of the environment"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gs://one", StoreCredential(path="/gs.json")),
        ("gs://two/models", StoreCredential(path="/two.json")),
        ("s3://one/x", StoreCredential(secret="s0", key_id="k0")),
        ("s3://two/x", StoreCredential(key_id="k", secret="s", region="r", session_token="t", profile="p")),
        ("s3://two/deeper", StoreCredential(profile="deep")),
        ("as://account/c/models", StoreCredential(account="a", account_key="k")),
        ("as://account/d", StoreCredential(auth_type="default", client_id="c")),
    ],
)
def test_the_longest_name_in_the_file_counts(environment: dict[str, str], text: str, expected: StoreCredential) -> None:
    assert find_credential(parse_address(text), environment) == expected


@given(names=st.lists(st.text("ab/", max_size=6), unique=True), rest=st.text("ab/", max_size=8))
def test_of_all_names_that_the_address_begins_with_the_longest_counts(names: list[str], rest: str) -> None:
    address = StoreAddress("s3://", "s3", "bucket", given=f"s3://{rest}")
    credentials = {f"s3://{name}": StoreCredential(key_id=name) for name in names}
    beginning = [name for name in names if rest.startswith(name)]
    if beginning:
        assert match_credential(address, credentials).key_id == max(beginning, key=len)
    else:
        with pytest.raises(NotFoundError, match="Cannot match credential for path  s3://"):
            match_credential(address, credentials)


def test_without_a_file_the_environment_counts() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "t",
        "AWS_DEFAULT_REGION": "r",
        "AWS_PROFILE": "p",
        "GOOGLE_APPLICATION_CREDENTIALS": "/gs.json",
        "AZURE_STORAGE_ACCOUNT": "a",
        "AZURE_STORAGE_KEY": "ak",
        "AZURE_STORAGE_AUTH_TYPE": "default",
        "AZURE_STORAGE_CLIENT_ID": "c",
    }
    s3 = StoreCredential(key_id="k", secret="s", session_token="t", region="r", profile="p")
    azure = StoreCredential(account="a", account_key="ak", auth_type="default", client_id="c")
    assert find_credential(parse_address("s3://b"), environment) == s3
    assert find_credential(parse_address("gs://b"), environment) == StoreCredential(path="/gs.json")
    assert find_credential(parse_address("as://x/b"), environment) == azure
    assert find_credential(parse_address("as://x/b"), {}) == StoreCredential()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "failed to parse the cloud credential file F"),
        ("[]", "the cloud credential file F: the file must be an object"),
        ('{"s3": []}', 'the cloud credential file F: "s3" must be an object'),
        ('{"s3": {"": "x"}}', 'the cloud credential file F: "s3" "" must be an object'),
        ('{"s3": {"": {"key_id": 1}}}', 'the cloud credential file F: "s3" "" "key_id" must be a string'),
    ],
)
def test_a_malformed_file_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        read_credentials(text.encode(), "F", "s3")


def test_google_wants_a_path() -> None:
    with pytest.raises(InvalidArgumentError, match='"gs" "" must be a string'):
        read_credentials(b'{"gs": {"": {}}}', "F", "gs")


def test_a_file_that_is_missing_is_an_error() -> None:
    with pytest.raises(InternalError, match=r"failed to open the cloud credential file .*: No such file"):
        find_credential(parse_address("s3://b"), {"TRITON_CLOUD_CREDENTIAL_PATH": "/nowhere/credentials.json"})


def test_what_is_secret_is_not_printed() -> None:
    assert "abc" not in repr(StoreCredential(secret="abc", account_key="abc"))
