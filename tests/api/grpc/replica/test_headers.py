"""Which headers go on to a replica."""

from __future__ import annotations

import pytest

from trireme.api.grpc.replica.headers import may_pass


@pytest.mark.parametrize("name", ["x-user", "traceparent", "tracestate", "user_id", "x-forwarded-for"])
def test_headers_that_may_pass(name: str) -> None:
    assert may_pass(name, "some value, with=signs")


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "proxy-authorization", "cookie", "x-api-key"),
        *("connection", "te", "transfer-encoding", "upgrade", "host", "content-type", "content-length"),
        *(":path", "grpc-timeout", "grpc-encoding", "key-bin"),
    ],
)
def test_headers_that_stay(name: str) -> None:
    assert not may_pass(name, "value")


@pytest.mark.parametrize("value", ["", "ünit", "a\nb", "a\0", "\udc80", "x" * 4097])
def test_values_that_are_no_metadata(value: str) -> None:
    assert not may_pass("x-user", value)
