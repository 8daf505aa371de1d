"""Which right a call needs, and who a request says it is from."""

from __future__ import annotations

import pytest

from trireme.api.access import identity_of, needed, readable
from trireme.api.request_parameters import RESTRICTABLE
from trireme.engine.access.callers import Caller, Right
from trireme.engine.access.credentials import Credential, CredentialKind

KEY, BEARER, CERTIFICATE = CredentialKind.API_KEY, CredentialKind.BEARER, CredentialKind.CERTIFICATE


@pytest.mark.parametrize(
    ("headers", "certificate", "credential"),
    [
        ([], b"", Credential(CredentialKind.NONE, b"")),
        ([(b"x-api-key", b" a "), (b"x-api-key", b"b")], b"", Credential(KEY, b"a")),
        ([(b"x-api-key", b"a"), (b"authorization", b"bEARER  b ")], b"", Credential(BEARER, b"b")),
        ([(b"authorization", b"Basic b"), (b"x-api-key", b"a")], b"dns=c", Credential(KEY, b"a")),
        ([(b"authorization", b"Bearerb")], b"dns=c", Credential(CERTIFICATE, b"dns=c")),
    ],
)
def test_a_token_goes_before_a_key_and_a_key_before_a_certificate(
    headers: list[tuple[bytes, bytes]], certificate: bytes, credential: Credential
) -> None:
    assert identity_of(headers, certificate).credential == credential


def test_every_category_has_its_right() -> None:
    for category in (*RESTRICTABLE, "metrics"):
        if category != "inference":
            assert needed(category, "m")[:2] == (Right.READ, "m")
    assert needed("inference", "m", changes=True) == (Right.INFER, "m", False)
    assert needed("model-repository", "m", changes=True) == (Right.MANAGE, "m", False)
    assert needed("shared-memory", changes=True) == (Right.MANAGE, "", False)
    assert needed("logging", changes=True) == (Right.ADMIN, "", False)
    assert needed("trace", "m", changes=True) == (Right.ADMIN, "m", False)
    anyone = {each for each in (*RESTRICTABLE, "metrics") if each != "inference" and needed(each)[2]}
    assert anyone == {"health", "metadata", "model-repository"}


def test_an_index_shows_what_the_caller_may_read() -> None:
    rows = [{"name": "a"}, {"name": "b", "version": "1"}]
    assert readable(None, rows) == rows
    assert readable(Caller("x", 1, {Right.READ: ("b*",)}, 1), rows) == rows[1:]
