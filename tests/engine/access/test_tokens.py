"""Tokens: what is accepted, and every way in which one is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from trireme.engine.access.callers import Right
from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import Credential, CredentialKind
from trireme.engine.access.rules import read_rules
from trireme.engine.access.tokens import FETCH_AGAIN_S, KeysWanted, read_jwks
from trireme.engine.errors import InvalidArgumentError, UnauthenticatedError

joserfc_jwt = pytest.importorskip("joserfc.jwt")
from joserfc.jwk import ECKey, RSAKey  # noqa: E402

RULES = """
[[issuers]]
name = "corp"
issuer = "https://id.example"
audience = "trireme"
jwks = "keys.json"
leeway-seconds = 10

[[callers]]
name = "ml"
infer = ["*"]
tokens = [{ issuer = "corp", subject = "svc-*", claims = { groups = ["ml-*", "all"] } }]

[[callers]]
name = "scoped"
read = ["*"]
tokens = [{ issuer = "corp", claims = { scope = "read" } }]
"""
NOW_S = 1_000_000.0


@pytest.fixture(scope="module")
def rsa() -> Any:
    return RSAKey.generate_key(2048, {"kid": "r1"})


@pytest.fixture(scope="module")
def ec() -> Any:
    return ECKey.generate_key("P-256", {"kid": "e1"})


def jwks(*keys: Any, **members: str) -> bytes:
    return json.dumps({"keys": [{**key.as_dict(private=False), **members} for key in keys]}).encode()


def control(*keys: Any, text: str = RULES, **members: str) -> AccessControl:
    access = AccessControl(read_rules(text, "f"), bytes(32), 0.0)
    if keys:
        issuer = access.issuer("corp")
        assert issuer is not None
        access.keys_fetched(issuer, read_jwks(jwks(*keys, **members)), 0.0)
    return access


def token(key: Any, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> Credential:
    all_claims = {
        "iss": "https://id.example",
        "aud": "trireme",
        "exp": NOW_S + 100,
        "sub": "svc-1",
        "groups": ["x", "ml-a"],
        **claims,
    }
    all_claims = {name: value for name, value in all_claims.items() if value is not None}
    wanted = {"alg": algorithm, "kid": key.kid} if header is None else header
    return Credential(
        CredentialKind.BEARER, joserfc_jwt.encode(wanted, all_claims, key, algorithms=[wanted["alg"]]).encode()
    )


def unsigned(header: dict[str, Any], claims: Any, signature: bytes = b"") -> Credential:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return Credential(CredentialKind.BEARER, b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts))


def refusal(access: AccessControl, credential: Credential, wall_s: float = NOW_S) -> str:
    with pytest.raises(UnauthenticatedError) as caught:
        access.identify(credential, 5.0, wall_s)
    return caught.value.message


def test_a_token_is_recognised_until_it_expires(rsa: Any, ec: Any) -> None:
    access = control(rsa, ec)
    for key, algorithm in ((rsa, "RS256"), (ec, "ES256")):
        credential = token(key, algorithm)
        caller = access.identify(credential, 5.0, NOW_S)
        assert caller.name == "ml"
        assert caller.may(Right.INFER, "x")
        assert caller.expires_s == 5.0 + 110.0
        assert access.recognise(credential, 114.9) is caller
        assert access.recognise(credential, 115.0) is None


def test_the_first_caller_whose_claims_fit_is_it(rsa: Any) -> None:
    access = control(rsa)
    assert access.identify(token(rsa, groups="all"), 5.0, NOW_S).name == "ml"
    assert access.identify(token(rsa, groups="other", scope="write read"), 5.0, NOW_S).name == "scoped"
    assert refusal(access, token(rsa, groups=3, scope="readable")) == "the token of issuer 'corp' fits no caller"
    assert refusal(access, token(rsa, sub="other")) == "the token of issuer 'corp' fits no caller"


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"exp": NOW_S - 10}, "the token has expired"),
        ({"exp": None}, "the token has no exp: it would hold for ever"),
        ({"exp": "later"}, "the token's exp is no time"),
        ({"exp": True}, "the token's exp is no time"),
        ({"nbf": NOW_S + 11}, "the token is not valid yet"),
        ({"nbf": []}, "the token's nbf is no time"),
        ({"aud": "other"}, "the token is for another audience"),
        ({"aud": None}, "the token is for another audience"),
        ({"aud": ["a", "b"]}, "the token is for another audience"),
        ({"iss": "https://other"}, "the token's issuer 'https://other' is not known"),
        ({"iss": None}, "the token's issuer 'None' is not known"),
        ({"iss": {}}, "the token's issuer '{}' is not known"),
    ],
)
def test_claims_are_checked(rsa: Any, claims: dict[str, Any], message: str) -> None:
    assert refusal(control(rsa), token(rsa, **claims)) == message


@pytest.mark.parametrize("claims", [{"exp": NOW_S - 9}, {"nbf": NOW_S + 10}, {"aud": ["a", "trireme"]}])
def test_clocks_may_differ_a_little(rsa: Any, claims: dict[str, Any]) -> None:
    assert control(rsa).identify(token(rsa, **claims), 5.0, NOW_S).name == "ml"


def test_a_token_without_a_signature_is_refused(rsa: Any) -> None:
    claims = {"iss": "https://id.example", "aud": "trireme", "exp": NOW_S + 100, "sub": "svc-1", "groups": "all"}
    access = control(rsa)
    for algorithm in ("none", "None", "NONE", "nOnE"):
        assert f"algorithm '{algorithm}' is not allowed" in refusal(access, unsigned({"alg": algorithm}, claims))
    assert "is not allowed" in refusal(access, unsigned({}, claims))
    assert refusal(access, unsigned({"alg": "RS256", "kid": "r1"}, claims)) == "the token's signature is wrong"


def test_a_public_key_is_no_secret(rsa: Any) -> None:
    """The old trick: a token signed by HMAC with the issuer's public key, in any of its forms."""
    access = control(rsa)
    credential = token(rsa)
    claims = credential.value.split(b".")[1]
    for secret in (rsa.as_pem(private=False), json.dumps(rsa.as_dict(private=False)).encode()):
        header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"r1"}').rstrip(b"=")
        signature = hmac.digest(secret, header + b"." + claims, hashlib.sha256)
        forged = b".".join((header, claims, base64.urlsafe_b64encode(signature).rstrip(b"=")))
        assert "algorithm 'HS256' is not allowed" in refusal(access, Credential(CredentialKind.BEARER, forged))


def test_a_key_of_another_kind_or_for_another_algorithm_is_not_used(rsa: Any, ec: Any) -> None:
    named = {"alg": "RS256", "kid": "e1"}
    assert "no key 'e1' for RS256" in refusal(control(ec), token(rsa, header=named))
    assert "no key 'r1' for RS256" in refusal(control(rsa, alg="RS512"), token(rsa))
    assert "algorithm 'RS512' is not allowed" in refusal(control(rsa), token(rsa, header={"alg": "RS512"}))


def test_a_key_that_comes_with_the_token_is_not_looked_at(rsa: Any) -> None:
    own = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "kid": "r1", "jwk": own.as_dict(private=False)}
    assert refusal(control(rsa), token(own, header=header)) == "the token's signature is wrong"


def test_a_changed_token_is_refused(rsa: Any) -> None:
    credential = token(rsa, sub="svc-1")
    header, _, signature = credential.value.split(b".")
    claims = token(rsa, sub="svc-2").value.split(b".")[1]
    changed = Credential(CredentialKind.BEARER, b".".join((header, claims, signature)))
    assert refusal(control(rsa), changed) == "the token's signature is wrong"


@pytest.mark.parametrize(
    "value", [b"a", b"a.b.c", b"..", b"e30.e30", b"W10.e30.", b"\xff.\xff.\xff", b"e30.e30.e30.e30"]
)
def test_what_is_no_token(rsa: Any, value: bytes) -> None:
    assert "token" in refusal(control(rsa), Credential(CredentialKind.BEARER, value))


def test_a_token_without_a_key_id_is_checked_with_all_that_fit(rsa: Any, ec: Any) -> None:
    access = control(ec, RSAKey.generate_key(2048, {"kid": "r0"}), rsa)
    assert access.identify(token(rsa, header={"alg": "RS256"}), 5.0, NOW_S).name == "ml"
    claims = {"iss": "https://id.example", "aud": "trireme", "exp": NOW_S + 100}
    assert refusal(access, unsigned({"alg": "RS256", "kid": 3}, claims)) == "the token's key id has to be a text"


def test_a_key_that_is_not_known_is_asked_for_every_now_and_then(rsa: Any) -> None:
    new = RSAKey.generate_key(2048, {"kid": "r2"})
    access = control(rsa)
    assert "no key 'r2' for RS256" in refusal(access, token(new))
    later_s = FETCH_AGAIN_S
    with pytest.raises(KeysWanted) as caught:
        access.identify(token(new), later_s, NOW_S)
    issuer = access.issuer(caught.value.issuer)
    assert issuer is not None
    access.keys_failed(issuer, later_s)
    with pytest.raises(UnauthenticatedError):
        access.identify(token(new), later_s, NOW_S)
    assert access.identify(token(rsa), later_s, NOW_S).name == "ml"
    access.keys_fetched(issuer, read_jwks(jwks(rsa, new)), later_s + 1)
    assert access.identify(token(new), later_s + 1, NOW_S).name == "ml"
    assert access.generation == 1
    assert access.updates == {"rules_applied": 0, "rules_refused": 0, "keys_fetched": 2, "keys_failed": 1}


def test_a_key_that_is_taken_away_takes_its_tokens_along(rsa: Any, ec: Any) -> None:
    access = control(rsa, ec)
    access.identify(token(rsa), 5.0, NOW_S)
    issuer = access.issuer("corp")
    assert issuer is not None
    access.keys_fetched(issuer, read_jwks(jwks(ec)), 5.0)
    assert access.generation == 2
    assert access.recognise(token(rsa), 5.0) is None


def test_keys_are_due_at_first_and_again_and_outlive_new_rules(rsa: Any) -> None:
    access = control()
    issuer = access.issuer("corp")
    assert issuer is not None
    assert access.keys_due(0.0) == [issuer]
    access.keys_failed(issuer, 0.0)
    assert access.keys_due(29.9) == []
    assert access.keys_due(30.0) == [issuer]
    access.keys_fetched(issuer, read_jwks(jwks(rsa)), 30.0)
    assert access.keys_due(329.9) == []
    assert access.keys_due(330.0) == [issuer]
    access.apply(read_rules(RULES + "[anonymous]", "f"), 31.0)
    assert access.issuer("corp") is issuer
    access.apply(read_rules(RULES.replace("keys.json", "others.json"), "f"), 31.0)
    changed = access.issuer("corp")
    assert changed is not None
    assert changed.keys == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"{}", "no JSON object"),
        (b'{"keys": 3}', "no list of up to 100"),
        (json.dumps({"keys": [{}] * 101}).encode(), "no list of up to 100"),
        (b'{"keys": []}', "no key that signatures"),
        (b'{"keys": [3, {}, {"kty": "oct", "k": "AAAA"}, {"kty": []}]}', "no key that signatures"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB"}, {"kty": "EC", "crv": "x", "x": "A", "y": "A"}]}', "no key that"),
    ],
)
def test_what_is_no_set_of_keys(text: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_jwks(text)


def test_weak_keys_and_those_for_encryption_are_left_out(rsa: Any) -> None:
    weak = {
        "kty": "RSA",
        "e": "AQAB",
        "n": base64.urlsafe_b64encode(b"\x80" + bytes(126) + b"\x01").decode().rstrip("="),
    }
    for entry in (weak, {**rsa.as_dict(private=False), "use": "enc"}):
        with pytest.raises(InvalidArgumentError, match="no key that signatures"):
            read_jwks(json.dumps({"keys": [entry]}).encode())
