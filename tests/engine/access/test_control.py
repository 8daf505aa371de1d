"""Access control: who a credential belongs to, and what its caller may do; over reloads, too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.access.callers import Right
from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import NO_CREDENTIAL, Credential, CredentialKind, certificate_names
from trireme.engine.access.keys import make_key
from trireme.engine.access.rules import AccessRules, read_rules
from trireme.engine.errors import (
    LimitExceededError,
    PermissionDeniedError,
    RefusalReason,
    UnauthenticatedError,
)

KEYS = {name: make_key(f"{name}key", name * 40, b"12345678") for name in "abc"}


def rules(text: str) -> AccessRules:
    for name, (_, digest) in KEYS.items():
        text = text.replace(f"<{name}>", f'keys = [{{ id = "{name}key", hash = "{digest}" }}]')
    return read_rules(text, "f")


def control(text: str) -> AccessControl:
    return AccessControl(rules(text), bytes(32), 0.0)


def key(name: str, kind: CredentialKind = CredentialKind.API_KEY) -> Credential:
    return Credential(kind, KEYS[name][0].encode())


def certificate(name: str) -> Credential:
    return Credential(CredentialKind.CERTIFICATE, certificate_names({"subject": ((("commonName", name),),)}))


TWO = """
[[callers]]
name = "a"
read = ["*"]
<a>
[[callers]]
name = "b"
infer = ["m"]
certificates = [{ common-name = "b-*" }]
limits = { in-flight = 1 }
<b>
"""


@pytest.mark.parametrize("kind", [CredentialKind.API_KEY, CredentialKind.BEARER])
def test_a_key_is_recognised_and_remembered(kind: CredentialKind) -> None:
    access = control(TWO)
    assert access.recognise(key("a", kind), 0.0) is None
    caller = access.identify(key("a", kind), 0.0, 0.0)
    assert (caller.name, caller.generation) == ("a", 1)
    assert access.recognise(key("a", kind), 0.0) is caller
    assert access.identify(key("b", kind), 0.0, 0.0).name == "b"
    assert access.unidentified == {}


@pytest.mark.parametrize(
    ("credential", "message"),
    [
        (NO_CREDENTIAL, "a credential is needed"),
        (key("c"), "API key is not known"),
        (Credential(CredentialKind.API_KEY, KEYS["a"][0].encode()[:-1]), "the API key is not known"),
        (Credential(CredentialKind.API_KEY, KEYS["a"][0].encode().replace(b"akey", b"bkey")), "API key is not known"),
        (Credential(CredentialKind.API_KEY, b"x"), "the API key is not known"),
        (Credential(CredentialKind.API_KEY, b"trk_x"), "the API key is not known"),
        (Credential(CredentialKind.BEARER, b"x"), "the bearer token is no API key of this server"),
        (Credential(CredentialKind.BEARER, bytes(1 << 15)), "the bearer token is too long"),
        (Credential(CredentialKind.CERTIFICATE, KEYS["a"][0].encode()), "a credential is needed"),
        (certificate("c-1"), "a credential is needed"),
    ],
)  # fmt: skip
def test_a_credential_of_no_caller_is_refused_each_time(credential: Credential, message: str) -> None:
    access = control(TWO)
    for _ in range(2):
        assert access.recognise(credential, 0.0) is None
        with pytest.raises(UnauthenticatedError, match=message):
            access.identify(credential, 0.0, 0.0)
    assert access.unidentified == {RefusalReason.UNAUTHENTICATED: 2}


def test_the_first_caller_that_a_certificate_fits_is_it() -> None:
    access = control(TWO.replace("<a>", 'certificates = [{ common-name = "b-1" }]'))
    assert access.identify(certificate("b-1"), 0.0, 0.0).name == "a"
    assert access.identify(certificate("b-2"), 0.0, 0.0).name == "b"


def test_without_a_credential_there_is_the_anonymous_caller() -> None:
    access = control(TWO + '[anonymous]\ninfer = ["demo"]')
    caller = access.recognise(NO_CREDENTIAL, 0.0)
    assert caller is not None
    assert caller.name == "anonymous"
    assert access.identify(certificate("c-1"), 0.0, 0.0) is caller
    access.check(caller, Right.INFER, "demo")
    with pytest.raises(UnauthenticatedError):
        access.identify(key("c"), 0.0, 0.0)


def test_a_key_ends_when_the_file_says() -> None:
    ending = KEYS["a"][1]
    text = f'[[callers]]\nname = "a"\nkeys = [{{ id = "akey", hash = "{ending}", expires = 1970-01-02 }}]'
    access = control(text)
    caller = access.identify(key("a"), 1000.0, 86_390.0)
    assert caller.expires_s == 1010.0
    assert access.recognise(key("a"), 1009.9) is caller
    assert access.recognise(key("a"), 1010.0) is None
    access.admit(caller, 0, 1009.0)
    with pytest.raises(UnauthenticatedError, match="the credential of caller 'a' has expired"):
        access.admit(caller, 0, 1010.0)
    with pytest.raises(UnauthenticatedError, match="the API key 'akey' has expired"):
        access.identify(key("a"), 1010.0, 86_400.0)


def test_rights_are_checked_and_refusals_counted() -> None:
    access = control(TWO)
    caller = access.identify(key("b"), 0.0, 0.0)
    access.check(caller, Right.INFER, "m")
    with pytest.raises(PermissionDeniedError, match="caller 'b' does not have the right 'infer' on model 'n'"):
        access.check(caller, Right.INFER, "n")
    with pytest.raises(PermissionDeniedError, match="caller 'b' does not have the right 'read' on all models"):
        access.check(caller, Right.READ)
    access.admit(caller, 0, 0.0)
    with pytest.raises(LimitExceededError):
        access.admit(caller, 0, 0.0)
    usage = next(each for each in access.usages() if each.name == "b")
    assert usage.refused == {RefusalReason.PERMISSION_DENIED: 2, RefusalReason.CALLER_LIMIT: 1}
    assert (usage.requests, usage.in_flight) == (1, 1)


def test_new_rules_forget_credentials_and_keep_what_is_in_flight() -> None:
    access = control(TWO)
    caller = access.identify(key("b"), 0.0, 0.0)
    flying = access.admit(caller, 0, 0.0)
    access.apply(rules(TWO.replace('infer = ["m"]', "")), 0.0)
    assert access.generation == 2
    assert access.recognise(key("b"), 0.0) is None
    again = access.identify(key("b"), 0.0, 0.0)
    assert again.number == caller.number
    assert not again.may(Right.INFER, "m")
    with pytest.raises(LimitExceededError):
        access.admit(again, 0, 0.0)
    flying.complete()
    access.admit(again, 0, 0.0)


def test_a_caller_that_is_not_in_the_rules_any_more_may_nothing_and_its_requests_end_well() -> None:
    access = control(TWO)
    caller = access.identify(key("b"), 0.0, 0.0)
    flying = access.admit(caller, 0, 0.0)
    without = TWO[: TWO.index('[[callers]]\nname = "b"')]
    access.apply(rules(without), 0.0)
    with pytest.raises(UnauthenticatedError, match="caller 'b' is not in the access rules any more"):
        access.admit(caller, 0, 0.0)
    with pytest.raises(UnauthenticatedError):
        access.identify(key("b"), 0.0, 0.0)
    access.apply(rules(TWO), 0.0)
    back = access.identify(key("b"), 0.0, 0.0)
    with pytest.raises(LimitExceededError):  # its request is still in flight
        access.admit(back, 0, 0.0)
    flying.complete()
    access.apply(rules(without), 0.0)
    assert {usage.name for usage in access.usages()} == {"a"}


STEP = st.sampled_from(["admit a", "admit b", "complete", "with b", "without b"])


@given(st.lists(STEP, max_size=40))
def test_whatever_is_reloaded_each_request_counts_once_and_is_given_back_once(steps: list[str]) -> None:
    access = control(TWO)
    without = rules(TWO[: TWO.index('[[callers]]\nname = "b"')])
    flying: list = []
    for step in steps:
        if step == "complete":
            if flying:
                flying.pop(0).complete()
        elif step == "with b":
            access.apply(rules(TWO), 0.0)
        elif step == "without b":
            access.apply(without, 0.0)
        else:
            try:
                caller = access.identify(key(step[-1]), 0.0, 0.0)
                usage = access.admit(caller, 0, 0.0)
            except (UnauthenticatedError, LimitExceededError):
                pass
            else:
                flying.append(usage)
        counts = {usage.name: usage.in_flight for usage in access.usages()}
        names = [usage.name for usage in flying]
        assert counts["a"] == names.count("a")
        assert counts.get("b", 0) == names.count("b") <= 1
