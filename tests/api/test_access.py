"""Which right a call needs, and who a request says it is from."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from trireme.actors.access_gate import AccessCall, AccessGate, LocalAccess
from trireme.api.access import AccessChecks, identity_of, needed, readable
from trireme.api.request_parameters import RESTRICTABLE
from trireme.engine.access.callers import Caller, Right
from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import Credential, CredentialKind
from trireme.engine.access.keys import make_key
from trireme.engine.access.rules import read_rules
from trireme.engine.clock import SystemClock
from trireme.engine.errors import TriremeError, UnauthenticatedError

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


class Gate(AccessGate):
    """Knows a caller whose credential ends after 10 s; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 0.0
        self.generation = 1

    @property
    def open_health(self) -> bool:
        return True

    def now_s(self) -> float:
        return self.now

    def recognise(self, credential: Credential) -> Caller | None:
        self.asked += 1
        return Caller("x", 1, {}, self.generation, 10.0) if self.now < 10.0 else None

    async def authorise(self, credential: Credential, call: AccessCall) -> Caller:
        raise UnauthenticatedError("it has expired")

    def check(self, caller: Caller, call: AccessCall) -> None:
        call.check(caller)


async def test_a_caller_is_asked_about_again_when_rules_are_new_or_its_credential_has_ended() -> None:
    gate = Gate()
    counted: list[TriremeError] = []
    checks, identity = AccessChecks(gate, "http", counted.append), identity_of([(b"x-api-key", b"k")])
    for _ in range(3):
        assert checks.known(identity) is not None
    assert gate.asked == 1
    gate.generation = 2
    assert await checks.identify(identity, "x", "") is checks.known(identity) is not None
    assert gate.asked == 2
    gate.now = 10.0
    assert checks.known(identity) is None
    with pytest.raises(UnauthenticatedError):
        await checks.identify(identity, "x", "")
    assert len(counted) == 1


def test_a_known_caller_costs_few_steps() -> None:
    """Who it is, whether it may, and three limits: every Python function on the way is paid for by every request."""
    limits = "[callers.limits]\nrequests-per-second = 1e6\nin-flight = 9\nbytes-per-second = 1e9\n"
    key, digest = make_key("key1", "s" * 64, bytes(16))
    text = f'[[callers]]\nname = "a"\ninfer = ["m"]\nkeys = [{{ id = "key1", hash = "{digest}" }}]\n{limits}'
    control = AccessControl(read_rules(text, "rules"), bytes(32), 0.0)
    gate, share = LocalAccess(control, SystemClock()), BudgetShare()
    refusals: list[TriremeError] = []
    checks, identity = AccessChecks(gate, "http", refusals.append), identity_of([(b"x-api-key", key.encode())])
    caller = control.identify(identity.credential, 0.0, 0.0)
    calls: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    for _ in range(2):
        calls.clear()
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            assert checks.known(identity) is caller
            assert caller.may(Right.INFER, "m")
            gate.admit(caller, 64, share).release(64)  # type: ignore[arg-type]
        finally:
            sys.setprofile(before)
    assert share.released == 64 * 2
    assert [each for each in calls if "BudgetShare" not in each] == [
        "AccessChecks.known",
        "Caller.may",
        "LocalAccess.admit",
        "AccessControl.admit",
        "CallerUsage.admit",
        "TokenBucket.refill",
        "TokenBucket.refill",
        "CallerPlace.__init__",
        "CallerPlace.release",
        "CallerUsage.complete",
    ]


class BudgetShare:
    """Of a request."""

    released = 0

    def release(self, nbytes: int) -> None:
        self.released += nbytes


def test_new_rules_make_a_gate_recognise_callers_anew() -> None:
    rules = read_rules('[anonymous]\ninfer = ["m"]\n', "rules")
    control = AccessControl(rules, bytes(32), 0.0)
    gate = LocalAccess(control, SystemClock())
    refusals: list[TriremeError] = []
    checks, identity = AccessChecks(gate, "http", refusals.append), identity_of([])
    first = checks.known(identity)
    assert first is not None
    control.apply(rules, 0.0)
    again = checks.known(identity)
    assert again is not None
    assert (first.generation, again.generation) == (1, 2)
