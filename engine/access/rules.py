"""The access file: who the callers are, what they may do, and how much (docs/access.md#the-file)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final
from urllib.parse import urlsplit

from ..strict_toml import FileTable, read_strictly, shown_value
from .callers import Patterns, Right
from .credentials import CERTIFICATE_NAMES
from .keys import DIGEST_FORM, ID_FORM, KeyDigest, is_key_id, read_digest
from .limits import UNLIMITED, CallerLimits
from .patterns import NamePatterns, pattern_fault

ANONYMOUS: Final = "anonymous"
"""The name of callers that present nothing."""

MOST_CALLERS = 10_000
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
)
"""Of signatures: those that need a public key only. With the others, who can check a token can make one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,63}")
_NAME_FORM = "1 to 64 characters of A-Z, a-z, 0-9 and ._@:/-, the first of which is a letter or digit"
_PATTERNS = "a list of patterns, such as ['resnet*']"
_TABLES = "a list of tables"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """An API key of a caller.

    Attributes:
        expires_s: when it ends, since the Unix epoch; None for never.
    """

    key_id: str
    digest: KeyDigest
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class TokenRule:
    """Tokens that a caller is recognised by: of an issuer, with claims that match.

    Attributes:
        claims: patterns by claim, `sub` for the subject. All have to match; of a list, one of its texts has to.
    """

    issuer: str
    claims: Mapping[str, NamePatterns]


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """Certificates that a caller is recognised by.

    Attributes:
        names: patterns by kind of name (`CERTIFICATE_NAMES`). All have to match, each with one name of its kind.
    """

    names: Mapping[str, NamePatterns]


@dataclass(frozen=True, slots=True)
class IssuerRule:
    """Who issues tokens, and where its keys are.

    Attributes:
        issuer, audience: what a token's `iss` has to be, and its `aud` has to have.
        jwks: a file, relative to the access file, or an address.
        leeway_s: by which clocks may differ.
        refresh_s: after so long, keys are fetched anew.
    """

    name: str
    issuer: str
    audience: str
    jwks: str
    algorithms: tuple[str, ...]
    leeway_s: float = 30.0
    refresh_s: float = 300.0

    @property
    def is_remote(self) -> bool:
        return "://" in self.jwks


@dataclass(frozen=True, slots=True)
class CallerRule:
    """One caller, or all that are anonymous."""

    name: str
    patterns: Patterns
    limits: CallerLimits = UNLIMITED
    keys: tuple[KeyRule, ...] = ()
    tokens: tuple[TokenRule, ...] = ()
    certificates: tuple[CertificateRule, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the file says.

    Attributes:
        callers: in its order. The first whose certificates or tokens match is the one.
        anonymous: what may be done without a credential; None for nothing.
        issuers: by name.
        open_health: whether health is told to everyone.
    """

    callers: tuple[CallerRule, ...]
    anonymous: CallerRule | None = None
    issuers: Mapping[str, IssuerRule] = field(default_factory=dict)
    open_health: bool = True


def read_rules(text: str, name: str) -> AccessRules:
    """Read an access file.

    Args:
        name: of the file, for errors.

    Raises:
        InvalidArgumentError: something in it is not as it should be; says where, what was found, what is expected.
    """
    return read_strictly(text, name, _read)


def _read(root: FileTable) -> AccessRules:
    open_health = root.get("open-health", bool, "true or false")
    issuers: dict[str, IssuerRule] = {}
    for section in root.tables("issuers", _TABLES):
        issuer = _read_issuer(section)
        if issuer.name in issuers:
            raise section.fault("name", f"'{issuer.name}' twice", "a name of its own for each issuer")
        issuers[issuer.name] = issuer
    callers: dict[str, CallerRule] = {}
    key_ids: set[str] = set()
    for section in root.tables("callers", _TABLES):
        caller = _read_caller(section, issuers, key_ids)
        if caller.name in callers:
            raise section.fault("name", f"'{caller.name}' twice", "a name of its own for each caller")
        if len(callers) == MOST_CALLERS:
            raise section.fault(None, "too many callers", f"{MOST_CALLERS} at most")
        callers[caller.name] = caller
    section = root.table("anonymous", "a table")
    anonymous = None if section is None else CallerRule(ANONYMOUS, _read_rights(section), _read_limits(section))
    root.finish()
    if not callers and anonymous is None:
        raise root.fault(None, "no caller", "[[callers]] or [anonymous]")
    return AccessRules(tuple(callers.values()), anonymous, issuers, open_health is not False)


def _read_caller(section: FileTable, issuers: Mapping[str, IssuerRule], key_ids: set[str]) -> CallerRule:
    name = _read_name(section)
    if name == ANONYMOUS:
        raise section.fault(
            "name", f"'{ANONYMOUS}'", "another name; callers without a credential have a table [anonymous]"
        )
    keys = []
    for inner in section.tables("keys", _TABLES):
        key = _read_key(inner)
        if key.key_id in key_ids:
            raise inner.fault("id", f"'{key.key_id}' twice", "an id of its own for each key")
        key_ids.add(key.key_id)
        keys.append(key)
    caller = CallerRule(
        name,
        _read_rights(section),
        _read_limits(section),
        tuple(keys),
        tuple(_read_token(inner, issuers) for inner in section.tables("tokens", _TABLES)),
        tuple(_read_certificate(inner) for inner in section.tables("certificates", _TABLES)),
    )
    if not (caller.keys or caller.tokens or caller.certificates):
        section.finish()  # first: a misspelt key may be why
        raise section.fault(None, f"nothing that caller '{name}' is recognised by", "keys, tokens or certificates")
    return caller


def _read_name(section: FileTable) -> str:
    name = section.need("name", str, _NAME_FORM)
    if not _NAME.fullmatch(name):
        raise section.fault("name", shown_value(name), _NAME_FORM)
    return name


def _read_rights(section: FileTable) -> Patterns:
    found = {right: section.texts(right.value, _model_pattern_fault, _PATTERNS) for right in Right}
    return {right: patterns for right, patterns in found.items() if patterns}


def _model_pattern_fault(pattern: str) -> str | None:
    return "no model's name has a /" if "/" in pattern else pattern_fault(pattern)


def _read_limits(section: FileTable) -> CallerLimits:
    limits = section.table("limits", "a table of limits")
    if limits is None:
        return UNLIMITED
    requests = limits.number("requests-per-second")
    nbytes = limits.number("bytes-per-second")
    burst, bytes_burst = limits.number("burst"), limits.number("bytes-burst")
    in_flight = limits.number("in-flight", whole=True)
    for key, value, rate in (("burst", burst, requests), ("bytes-burst", bytes_burst, nbytes)):
        if value is not None and rate is None:
            needed = "requests-per-second" if key == "burst" else "bytes-per-second"
            raise limits.fault(key, f"{key} alone", f"{needed} beside it")
        if value is not None and value < 1:
            raise limits.fault(key, shown_value(value), "a number of 1 or more")
    return CallerLimits(
        requests,
        max(1.0, burst or requests or 1.0),
        None if in_flight is None else int(in_flight),
        nbytes,
        max(1.0, bytes_burst or nbytes or 1.0),
    )


def _read_key(section: FileTable) -> KeyRule:
    key_id = section.need("id", str, ID_FORM)
    if not is_key_id(key_id):
        raise section.fault("id", shown_value(key_id), ID_FORM)
    digest = read_digest(section.need("hash", str, DIGEST_FORM))
    if digest is None:
        raise section.fault("hash", "another form", DIGEST_FORM)  # not shown: it may be the key itself
    expected = "a date, or a time with an offset, such as 2030-01-31T00:00:00Z"
    expires = section.get("expires", (date, datetime), expected)
    if expires is None:
        return KeyRule(key_id, digest, None)
    if not isinstance(expires, datetime):
        expires = datetime(expires.year, expires.month, expires.day, tzinfo=UTC)
    elif expires.tzinfo is None:
        raise section.fault("expires", str(expires), expected)
    return KeyRule(key_id, digest, expires.timestamp())


def _read_token(section: FileTable, issuers: Mapping[str, IssuerRule]) -> TokenRule:
    issuer = section.need("issuer", str, "the name of an issuer")
    if issuer not in issuers:
        raise section.fault(
            "issuer", shown_value(issuer), f"a name of [[issuers]]: {', '.join(issuers) or 'there is none'}"
        )
    claims = {}
    if subject := _read_patterns(section, "subject"):
        claims["sub"] = subject
    table = section.table("claims", "a table of patterns by claim")
    if table is not None:
        claims |= {claim: found for claim in table.keys if (found := _read_patterns(table, claim))}
    return TokenRule(issuer, claims)


def _read_certificate(section: FileTable) -> CertificateRule:
    names = {kind: found for kind in CERTIFICATE_NAMES if (found := _read_patterns(section, kind))}
    if not names:
        section.finish()
        raise section.fault(None, "no name", f"one of {', '.join(CERTIFICATE_NAMES)}")
    return CertificateRule(names)


def _read_patterns(section: FileTable, key: str) -> NamePatterns | None:
    """A pattern, or a list of them."""
    expected = "a pattern, or a list of patterns"
    found = section.get(key, (str, list), expected)
    if isinstance(found, list):
        patterns = section.texts(key, pattern_fault, expected)
        if not patterns:
            raise section.fault(key, "an empty list", expected)
        return NamePatterns(patterns)
    if found is None:
        return None
    if fault := pattern_fault(found):
        raise section.fault(key, f"{shown_value(found)} ({fault})", expected)
    return NamePatterns((found,))


def _read_issuer(section: FileTable) -> IssuerRule:
    jwks_form = "a file, or an address that begins with https://"
    jwks = section.need("jwks", str, jwks_form)
    if "://" in jwks and not _is_safe(jwks):
        raise section.fault("jwks", shown_value(jwks), jwks_form)
    expected = f"a list of {', '.join(ALGORITHMS)}"
    algorithms = section.texts("algorithms", lambda each: None if each in ALGORITHMS else "it is not allowed", expected)
    if "algorithms" in section and not algorithms:
        raise section.fault("algorithms", "an empty list", expected)
    leeway = section.get("leeway-seconds", (int, float), "a number from 0 to 300")
    if leeway is not None and not 0 <= leeway <= 300:
        raise section.fault("leeway-seconds", shown_value(leeway), "a number from 0 to 300")
    refresh = section.number("refresh-seconds", least=9.0)
    return IssuerRule(
        _read_name(section),
        section.need("issuer", str, "the tokens' iss"),
        section.need("audience", str, "what the tokens' aud has"),
        jwks,
        algorithms or ("RS256", "ES256"),
        30.0 if leeway is None else float(leeway),
        300.0 if refresh is None else float(refresh),
    )


def _is_safe(address: str) -> bool:
    """Whether keys may be fetched from there: over TLS, or from this machine."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1"))
    )
