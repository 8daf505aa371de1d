"""Tokens (JWT): who issued them, whether that is true, and what they claim.

Rules:
 1. A token is signed with one of the algorithms that its issuer's rule allows, all of which need a public key only. The
    header chooses among these and among the issuer's keys, and has no other say: a key, or an address of one, that
    comes with a token is not looked at.
 2. A key is used for algorithms of its own kind (RSA or an elliptic curve), and if it names one, for that alone.
 3. `iss`, `aud`, `exp` and `nbf` are checked, with the leeway of the rule. A token has to have the first three.
 4. A token whose key is not known makes the issuer's keys be fetched, unless they were within the last
    `FETCH_AGAIN_S`. A set of keys that cannot be read changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import InvalidArgumentError, UnauthenticatedError, shown
from ..plugins import import_package
from .rules import IssuerRule, TokenRule

FETCH_AGAIN_S: Final = 30.0
MAX_JWKS_BYTES: Final = 1 << 20
MOST_KEYS: Final = 100
_LEAST_RSA_BITS = 2048
_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC"}
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


class KeysWanted(Exception):
    """A token can be judged when the keys of its issuer have been fetched.

    Attributes:
        issuer: the name of its rule.
    """

    def __init__(self, issuer: str) -> None:
        super().__init__(issuer)
        self.issuer = issuer


def require_library() -> None:
    """Import what checks signatures, which takes a while. Raises UnavailableError if it is not installed."""
    _library("jws")


def _library(module: str) -> Any:
    return import_package(f"joserfc.{module}", "access rules with issuers of tokens need", "access")


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key of an issuer.

    Attributes:
        kid: its id; empty if it has none.
        algorithm: that it is for; empty for any of its kind.
        value: the library's.
        content: what identifies it.
    """

    kid: str
    kind: str
    curve: str
    algorithm: str
    content: str
    value: Any = field(repr=False, compare=False)

    def fits(self, algorithm: str) -> bool:
        return (
            self.kind == _KINDS[algorithm[:2]]
            and self.algorithm in ("", algorithm)
            and self.curve == _CURVES.get(algorithm, "")
        )


def read_jwks(text: bytes) -> tuple[VerificationKey, ...]:
    """The keys of a JSON Web Key Set that signatures can be checked with; others are left out.

    Raises:
        InvalidArgumentError: there is none, or it is no such set.
    """
    try:
        found = json.loads(text)
        listed = found["keys"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgumentError("it is no JSON object with a list of keys") from error
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise InvalidArgumentError(f"its keys are no list of up to {MOST_KEYS}")
    keys = tuple(key for each in listed if isinstance(each, dict) and (key := _read_key(each)) is not None)
    if not keys:
        raise InvalidArgumentError(
            "it has no key that signatures can be checked with (RSA of 2048 bits or more, or EC)"
        )
    return keys


def _read_key(entry: dict[str, Any]) -> VerificationKey | None:
    kind = entry.get("kty")
    wanted = {"RSA": ("n", "e"), "EC": ("crv", "x", "y")}.get(kind) if isinstance(kind, str) else None
    if wanted is None or entry.get("use", "sig") != "sig":
        return None
    public = {name: value for name in wanted if isinstance(value := entry.get(name), str)}
    kid, algorithm = entry.get("kid", ""), entry.get("alg", "")
    if len(public) < len(wanted) or not isinstance(kid, str) or not isinstance(algorithm, str):
        return None
    try:
        if kind == "RSA" and int.from_bytes(_decoded(public["n"].encode())).bit_length() < _LEAST_RSA_BITS:
            return None
        value = _library("jwk").import_key({**public, "kty": str(kind)})
    except (_library("errors").JoseError, ValueError, TypeError, KeyError):
        return None
    return VerificationKey(kid, str(kind), public.get("crv", ""), algorithm, json.dumps(public), value)


@dataclass(slots=True)
class Issuer:
    """An issuer, and what is known of its keys.

    Attributes:
        looked_s: when they were fetched last, or that failed; None for never.
        due_s: when to fetch them again.
    """

    rule: IssuerRule
    keys: tuple[VerificationKey, ...] = ()
    looked_s: float | None = None
    due_s: float = float("-inf")

    def fetched(self, keys: tuple[VerificationKey, ...], now_s: float) -> bool:
        """These are its keys from now on. Whether one of the old ones is not among them."""
        lost = bool({(key.kid, key.content) for key in self.keys} - {(key.kid, key.content) for key in keys})
        self.keys, self.looked_s, self.due_s = keys, now_s, now_s + self.rule.refresh_s
        return lost

    def failed(self, now_s: float) -> None:
        """They could not be fetched."""
        self.looked_s, self.due_s = now_s, now_s + FETCH_AGAIN_S

    def find_keys(self, kid: str | None, algorithm: str, now_s: float) -> list[VerificationKey]:
        """The keys that a token may be signed with: of its id, or if it names none, all that fit.

        Raises:
            KeysWanted, UnauthenticatedError: there is none (rule 4).
        """
        found = [key for key in self.keys if kid in (None, key.kid) and key.fits(algorithm)]
        if not found:
            if self.looked_s is None or now_s - self.looked_s >= FETCH_AGAIN_S:
                raise KeysWanted(self.rule.name)
            named = "without an id" if kid is None else f"'{shown(kid)}'"
            raise UnauthenticatedError(f"issuer '{self.rule.name}' has no key {named} for {algorithm}")
        return found


@dataclass(frozen=True, slots=True)
class Token:
    """What a token says; whether that is true remains to be checked."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]


def read_token(value: bytes) -> Token:
    """Raises UnauthenticatedError: it is no signed token."""
    parts = value.split(b".")
    try:
        if len(parts) != 3:
            raise ValueError
        header, claims = (json.loads(_decoded(part)) for part in parts[:2])
    except (ValueError, RecursionError) as error:
        raise UnauthenticatedError("the bearer token is neither an API key nor a signed JWT") from error
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise UnauthenticatedError("the token's header and claims have to be JSON objects")
    return Token(header, claims)


def _decoded(part: bytes) -> bytes:
    try:
        return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError from error


def check_token(value: bytes, token: Token, issuer: Issuer, now_s: float, wall_s: float) -> float:
    """Check who signed a token, and until when it holds (rules 1 to 3).

    Returns:
        How long from now on, in seconds.

    Raises:
        KeysWanted, UnauthenticatedError
    """
    rule = issuer.rule
    algorithm, kid = token.header.get("alg"), token.header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in rule.algorithms:
        allowed = ", ".join(rule.algorithms)
        raise UnauthenticatedError(f"the token's algorithm '{shown(str(algorithm))}' is not allowed; {allowed} are")
    if kid is not None and not isinstance(kid, str):
        raise UnauthenticatedError("the token's key id has to be a text")
    remaining_s = _check_times(token.claims, rule, wall_s)  # first: it costs less than a signature
    for key in issuer.find_keys(kid, algorithm, now_s):
        try:
            _library("jws").deserialize_compact(value, key.value, algorithms=[algorithm])
        except (_library("errors").JoseError, ValueError, TypeError):
            continue
        return remaining_s
    raise UnauthenticatedError("the token's signature is wrong")


def _check_times(claims: Mapping[str, Any], rule: IssuerRule, wall_s: float) -> float:
    expires, begins = _seconds(claims, "exp"), _seconds(claims, "nbf")
    if expires is None:
        raise UnauthenticatedError("the token has no exp: it would hold for ever")
    if wall_s >= expires + rule.leeway_s:
        raise UnauthenticatedError("the token has expired")
    if begins is not None and wall_s < begins - rule.leeway_s:
        raise UnauthenticatedError("the token is not valid yet")
    return expires + rule.leeway_s - wall_s


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise UnauthenticatedError(f"the token's {name} is no time")
    return float(value)


def is_for(claims: Mapping[str, Any], audience: str) -> bool:
    """Whether `aud`, a text or a list of them, has the audience."""
    found = claims.get("aud")
    return audience == found or (isinstance(found, list) and audience in found)


def fits_rule(rule: TokenRule, issuer: str, claims: Mapping[str, Any]) -> bool:
    """Whether a token of that issuer has what a rule asks for."""
    return rule.issuer == issuer and all(
        any(text in patterns for text in _texts(name, claims.get(name))) for name, patterns in rule.claims.items()
    )


def _texts(name: str, value: object) -> list[str]:
    """The texts of a claim. Scopes are words in one text."""
    if isinstance(value, str):
        return value.split(" ") if name == "scope" else [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
