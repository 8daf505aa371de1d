"""Access control: who a credential belongs to, and whether a caller may do something now.

Rules:
 1. What a credential was found to be is remembered by a keyed digest of it, until it expires or the rules change.
    Nothing is remembered of a credential that was refused.
 2. A credential that is not known is refused, also where anonymous callers may do something: who presents a key wants
    to know that it is wrong. A certificate that fits no caller counts as no credential: clients present those unasked.
 3. New rules replace the old ones as a whole, or not at all. Callers are recognised anew
    (`Caller.generation`); requests that were admitted go on, and count for their caller's limits.
 4. A caller is counted under its number as long as its name is in the rules, or a request of it is in flight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Final

from ..errors import PermissionDeniedError, RefusalReason, TriremeError, UnauthenticatedError, shown
from ..memo import Memo
from .callers import ALL_MODELS, Caller, Right
from .credentials import Credential, CredentialKind, read_names
from .keys import PREFIX, UNKNOWN_KEY, split_key
from .limits import CallerUsage
from .rules import AccessRules, CallerRule, KeyRule
from .tokens import Issuer, VerificationKey, check_token, fits_rule, is_for, read_token

_REMEMBERED = 4096
_DIGEST_BYTES = 16
MAX_CREDENTIAL_BYTES: Final = 16 << 10

_NOT_KNOWN = "the API key is not known"


class AccessControl:
    """Decides by one set of rules, until there is a new one. On the event loop's thread only.

    Args:
        memo_key: 32 random bytes, which digests of credentials are made with.

    Attributes:
        generation: of the rules, from 1 on.
        anonymous: the caller without a credential; None if there are no rights for it.
        open_health: see `AccessRules`.
        unidentified: refusals of requests of which it is not known whose they are, by reason.
        updates: how often rules and keys were replaced, or new ones refused.
        followers: called whenever there are new rules.
    """

    def __init__(self, rules: AccessRules, memo_key: bytes, now_s: float) -> None:
        self.generation = 0
        self.anonymous: Caller | None = None
        self.open_health = True
        self.unidentified: dict[RefusalReason, int] = {}
        self.updates = dict.fromkeys(("rules_applied", "rules_refused", "keys_fetched", "keys_failed"), 0)
        self._digests = {
            kind: hashlib.blake2b(key=memo_key, digest_size=_DIGEST_BYTES, person=kind.name.encode())
            for kind in CredentialKind
        }
        self._memo: Memo[Caller] = Memo(_REMEMBERED, _DIGEST_BYTES)
        self._next_number = 1
        self._usages: dict[int, CallerUsage] = {}
        self._numbered: dict[int, Caller] = {}
        self._callers: list[tuple[CallerRule, Caller]] = []
        self._keys: dict[str, tuple[KeyRule, Caller]] = {}
        self._rules = rules
        self.followers: list[Callable[[], object]] = []
        self._issuers: dict[str, Issuer] = {}
        self._replace(rules, now_s)

    # ---- rules ----

    def apply(self, rules: AccessRules, now_s: float) -> None:
        """Decide by these rules from now on (rules 3 and 4)."""
        self.updates["rules_applied"] += 1
        self._replace(rules, now_s)

    def _replace(self, rules: AccessRules, now_s: float) -> None:
        self._rules = rules
        self.generation += 1
        self.open_health = rules.open_health
        self._memo.clear()
        wanted = rules.callers if rules.anonymous is None else (*rules.callers, rules.anonymous)
        kept = {usage.name: usage for usage in self._usages.values()}
        made = [(rule, self._make_caller(rule, kept, now_s)) for rule in wanted]
        self._numbered = {caller.number: caller for _, caller in made}
        self._usages = {
            usage.number: usage for usage in kept.values() if usage.number in self._numbered or usage.in_flight
        }
        self.anonymous = None if rules.anonymous is None else made.pop()[1]
        self._callers = made
        self._keys = {key.key_id: (key, caller) for rule, caller in made for key in rule.keys}
        self._issuers = {
            name: known if (known := self._issuers.get(name)) is not None and known.rule == rule else Issuer(rule)
            for name, rule in rules.issuers.items()
        }
        for follower in self.followers:
            follower()

    def _make_caller(self, rule: CallerRule, kept: dict[str, CallerUsage], now_s: float) -> Caller:
        usage = kept.get(rule.name)
        if usage is None:
            usage = kept[rule.name] = CallerUsage(rule.name, self._next_number)
            self._next_number += 1
        usage.limit(rule.limits, now_s)
        return Caller(rule.name, usage.number, rule.patterns, self.generation)

    # ---- keys of issuers ----

    def keys_due(self, now_s: float) -> list[Issuer]:
        """The issuers whose keys are to be fetched by now."""
        return [issuer for issuer in self._issuers.values() if issuer.due_s <= now_s]

    def issuer(self, name: str) -> Issuer | None:
        return self._issuers.get(name)

    def keys_fetched(self, issuer: Issuer, keys: tuple[VerificationKey, ...], now_s: float) -> None:
        """An issuer has these keys. If one was taken away, callers are recognised anew: it may have been stolen."""
        self.updates["keys_fetched"] += 1
        if issuer.fetched(keys, now_s) and self._issuers.get(issuer.rule.name) is issuer:
            self._replace(self._rules, now_s)

    def keys_failed(self, issuer: Issuer, now_s: float) -> None:
        """The keys of an issuer could not be fetched, or not be read: those that are known hold on."""
        self.updates["keys_failed"] += 1
        issuer.failed(now_s)

    # ---- who ----

    def recognise(self, credential: Credential, now_s: float) -> Caller | None:
        """The caller, if it can be told at once; None says to ask `identify`."""
        if credential.kind is CredentialKind.NONE:
            return self.anonymous
        caller = self._memo.get(self._digest(credential))
        return None if caller is None or caller.expired(now_s) else caller

    def identify(self, credential: Credential, now_s: float, wall_s: float) -> Caller:
        """The caller.

        Args:
            wall_s: the time since the Unix epoch, which dates in rules and tokens are compared with.

        Raises:
            UnauthenticatedError: it belongs to no caller, or has expired.
            KeysWanted: fetch the keys of an issuer, and ask again.
        """
        caller = self.recognise(credential, now_s)
        if caller is None:
            try:
                caller = self._find(credential, now_s, wall_s)
            except UnauthenticatedError:
                self.note_refusal(None, RefusalReason.UNAUTHENTICATED)
                raise
            self._memo.remember(self._digest(credential), caller)
        return caller

    def _digest(self, credential: Credential) -> bytes:
        digest = self._digests[credential.kind].copy()
        digest.update(credential.value)
        return digest.digest()

    def _find(self, credential: Credential, now_s: float, wall_s: float) -> Caller:
        if len(credential.value) > MAX_CREDENTIAL_BYTES:
            raise UnauthenticatedError(
                f"the {credential.kind.value} is too long: {MAX_CREDENTIAL_BYTES} bytes are the most"
            )
        match credential.kind:
            case CredentialKind.CERTIFICATE:
                return self._of_certificate(credential.value)
            case CredentialKind.API_KEY | CredentialKind.BEARER if credential.value.startswith(PREFIX):
                return self._of_key(credential.value, now_s, wall_s)
            case CredentialKind.API_KEY:
                raise UnauthenticatedError(_NOT_KNOWN)
            case CredentialKind.BEARER:
                return self._of_token(credential.value, now_s, wall_s)
        return self._without_credential()

    def _without_credential(self) -> Caller:
        if self.anonymous is None:
            raise UnauthenticatedError(
                "a credential is needed: an API key or a token in the header Authorization (Bearer), an API key in "
                "X-API-Key, or a client certificate"
            )
        return self.anonymous

    def _of_key(self, value: bytes, now_s: float, wall_s: float) -> Caller:
        parts = split_key(value)
        if parts is None:
            raise UnauthenticatedError(_NOT_KNOWN)
        rule, caller = self._keys.get(parts[0], (None, None))
        admitted = (UNKNOWN_KEY if rule is None else rule.digest).admits(parts[1])
        if rule is None or caller is None or not admitted:
            raise UnauthenticatedError(_NOT_KNOWN)
        if rule.expires_s is None:
            return caller
        if wall_s >= rule.expires_s:
            raise UnauthenticatedError(f"the API key '{rule.key_id}' has expired")
        return caller.until(now_s + rule.expires_s - wall_s)

    def _of_token(self, value: bytes, now_s: float, wall_s: float) -> Caller:
        if not self._issuers:
            raise UnauthenticatedError("the bearer token is no API key of this server")
        token = read_token(value)
        named = token.claims.get("iss")
        issuers = [each for each in self._issuers.values() if each.rule.issuer == named]
        if not issuers:
            raise UnauthenticatedError(f"the token's issuer '{shown(str(named))}' is not known")
        issuer = next((each for each in issuers if is_for(token.claims, each.rule.audience)), None)
        if issuer is None:
            raise UnauthenticatedError("the token is for another audience")
        remaining_s = check_token(value, token, issuer, now_s, wall_s)
        for rule, caller in self._callers:
            if any(fits_rule(each, issuer.rule.name, token.claims) for each in rule.tokens):
                return caller.until(now_s + remaining_s)
        raise UnauthenticatedError(f"the token of issuer '{issuer.rule.name}' fits no caller")

    def _of_certificate(self, value: bytes) -> Caller:
        names = read_names(value)
        for rule, caller in self._callers:
            for certificate in rule.certificates:
                if all(
                    any(name in wanted for name in names.get(kind, ())) for kind, wanted in certificate.names.items()
                ):
                    return caller
        return self._without_credential()

    # ---- what, and how much ----

    def check(self, caller: Caller, right: Right, model: str = ALL_MODELS) -> None:
        """Check a right on a model; without one, on all models.

        Raises:
            PermissionDeniedError: the caller does not have it.
        """
        try:
            caller.check(right, model)
        except PermissionDeniedError:
            self.note_refusal(caller, RefusalReason.PERMISSION_DENIED)
            raise

    def caller_of(self, number: int) -> Caller | None:
        """The caller of this number, as the rules are now; None if it is not in them."""
        return self._numbered.get(number)

    def admit(self, caller: Caller, nbytes: int, now_s: float) -> CallerUsage:
        """Count a request in.

        Args:
            nbytes: that it holds.

        Returns:
            Where it is counted, to be told when it is answered or given up (`CallerUsage.complete`).

        Raises:
            LimitExceededError: a limit of the caller does not allow it now.
            UnauthenticatedError: what the caller was recognised by has expired, or it is not in the rules any more.
        """
        expires_s = caller.expires_s
        if expires_s is not None and now_s >= expires_s:
            self.note_refusal(caller, RefusalReason.UNAUTHENTICATED)
            raise UnauthenticatedError(f"the credential of caller '{caller.name}' has expired")
        number = caller.number
        if number not in self._numbered:
            self.note_refusal(None, RefusalReason.UNAUTHENTICATED)
            raise UnauthenticatedError(f"caller '{caller.name}' is not in the access rules any more")
        usage = self._usages[number]
        try:
            usage.admit(nbytes, now_s)
        except TriremeError:
            self.note_refusal(caller, RefusalReason.CALLER_LIMIT)
            raise
        return usage

    # ---- metrics ----

    def note_refusal(self, caller: Caller | None, reason: RefusalReason) -> None:
        """Count a request that was refused: for its caller, or if that is not known."""
        usage = None if caller is None else self._usages.get(caller.number)
        counts = self.unidentified if usage is None else usage.refused
        counts[reason] = counts.get(reason, 0) + 1

    def usages(self) -> Iterator[CallerUsage]:
        """Of the callers in the rules, and of others with requests in flight."""
        return iter(self._usages.values())
