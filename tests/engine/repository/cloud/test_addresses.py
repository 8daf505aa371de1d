"""Addresses of object stores are read as Triton reads them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InternalError
from trireme.engine.repository.cloud.addresses import StoreAddress, is_store_address, parse_address, shown_address

WORD = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True)
PARTS = st.lists(WORD, max_size=3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket", ("s3", "bucket", "", "", "")),
        ("s3://bucket/", ("s3", "bucket", "", "", "")),
        ("s3://bucket//a///b/", ("s3", "bucket", "a/b", "", "")),
        ("s3://localhost:4566/bucket/a", ("s3", "bucket", "a", "http://localhost:4566", "")),
        ("s3://http://10.0.0.1:80/bucket", ("s3", "bucket", "", "http://10.0.0.1:80", "")),
        ("s3://https://a.b:443/bucket/x/y/", ("s3", "bucket", "x/y", "https://a.b:443", "")),
        ("s3://bucket/a b/ü", ("s3", "bucket", "a b/ü", "", "")),
        ("gs://bucket/a/b", ("gs", "bucket", "a/b", "", "")),
        ("gs://bucket", ("gs", "bucket", "", "", "")),
        ("as://account/container", ("as", "container", "", "", "account")),
        ("as://account/container/a//b/", ("as", "container", "a/b", "", "account")),
        ("as://account.blob.core.windows.net/container/a", ("as", "container", "a", "", "account")),
    ],
)
def test_address_is_read(text: str, expected: tuple[str, ...]) -> None:
    scheme, bucket, prefix, endpoint, account = expected
    assert parse_address(text) == StoreAddress(text, scheme, bucket, prefix, endpoint, account)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://", "No bucket name found in path: s3://"),
        ("s3:///", "No bucket name found in path: s3:///"),
        ("s3://host:1/", "No bucket name found in path: s3://host:1/"),
        ("gs:///path", "No bucket name found in path: gs:///path"),
        ("as://account", "Invalid azure storage path: as://account, expected as://<account>/<container>/<path>"),
        ("as://account//a", "Invalid azure storage path: as://account//a, expected"),
        ("s3://https://host/b", "Invalid S3 path: s3://https://host/b, expected s3://https://<host>:<port>/<bucket>"),
    ],
)
def test_malformed_address_is_refused(text: str, said: str) -> None:
    with pytest.raises(InternalError, match=f"^{re.escape(said)}"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as://account/container/a//b?sv=1&sig=secret", "as://account/container/a//b"),
        ("s3://bucket/a?secret", "s3://bucket/a"),
        ("gs://bucket/a@b?secret", "gs://bucket/a@b"),
    ],
)
def test_a_token_is_neither_used_nor_shown(text: str, shown: str) -> None:
    """Only the choice of the credential still sees it."""
    address = parse_address(text)
    assert (address.text, shown_address(text), address.given) == (shown, shown, text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:secret@host:9000/bucket/a", "s3://host:9000/bucket/a"),
        ("s3://https://user:secret@host:9000/bucket", "s3://https://host:9000/bucket"),
        ("gs://secret@bucket/a", "gs://bucket/a"),
        ("as://user:secret@account/container?sig=secret", "as://account/container"),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(text: str, shown: str) -> None:
    with pytest.raises(InternalError, match=f"^Invalid path: {re.escape(shown)}, a user or a password does not belong"):
        parse_address(text)


@pytest.mark.parametrize("text", ["as://account?sig=secret", "s3://https://h?secret"])
def test_a_malformed_address_shows_no_token(text: str) -> None:
    with pytest.raises(InternalError) as caught:
        parse_address(text)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("text", ["/models", "models", "s3:/bucket", "https://host/bucket", "S3://bucket", ""])
def test_other_paths_are_local(text: str) -> None:
    assert not is_store_address(text)


@given(bucket=WORD, parts=PARTS, slashes=st.integers(1, 3), port=st.none() | st.integers(1, 65535))
def test_slashes_and_endpoints_do_not_change_bucket_and_prefix(
    bucket: str, parts: list[str], slashes: int, port: int | None
) -> None:
    path = ("/" * slashes).join([bucket, *parts]) + "/" * (slashes - 1)
    for protocol in ("", "http://", "https://"):
        if port is None and protocol:
            continue
        host = "" if port is None else f"{protocol}host.name:{port}/"
        found = parse_address(f"s3://{host}{path}")
        assert (found.bucket, found.prefix) == (bucket, "/".join(parts))
        assert found.endpoint == ("" if port is None else f"{protocol or 'http://'}host.name:{port}")
