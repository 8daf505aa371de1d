"""What a front end knows of access rules, and what the engine makes of what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from wired import wired

from trireme.actors.access_gate import AccessCall, LocalAccess
from trireme.engine.access.callers import Right
from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import Credential, CredentialKind
from trireme.engine.access.keys import make_key
from trireme.engine.access.rules import AccessRules, CallerRule, KeyRule
from trireme.engine.errors import PermissionDeniedError, RefusalReason, UnauthenticatedError
from trireme.engine.memory.regions import Regions
from trireme.engine.request import InferenceRequest
from trireme.front_ends.access import (
    AUTHORISE,
    RemoteAccess,
    answer_authorise,
    hear_denied,
    read_authorise,
    write_access,
)
from trireme.front_ends.calls import EngineCalls
from trireme.front_ends.link import LinkError
from trireme.front_ends.requests import RequestReader, RequestWriter
from trireme.python_backend.child.codec import Payload

KEY, DIGEST = make_key("team1", "s" * 43, b"salt" * 4)
CREDENTIAL = Credential(CredentialKind.API_KEY, KEY.encode())


def rules(*infer: str, expires_s: float | None = None) -> AccessRules:
    key = KeyRule("team1", DIGEST, expires_s)
    return AccessRules((CallerRule("team", {Right.INFER: infer}, keys=(key,)),))


@dataclass
class Hands:
    """A clock in the test's hands."""

    s: float = 100.0

    def now_s(self) -> float:
        return self.s

    def now_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return int(self.s * 1000)


@dataclass
class Link:
    """A front end's access, and the engine's behind it.

    Attributes:
        asked: how often the engine was asked.
    """

    control: AccessControl
    clock: Hands = field(default_factory=Hands)
    asked: int = 0

    def __post_init__(self) -> None:
        self.engine = LocalAccess(self.control, self.clock)
        self.elsewhere = Hands(5.0)
        self.remote = RemoteAccess(self.ask, self.tell, self.elsewhere)
        self.announce()

    def announce(self) -> None:
        self.remote.update(list(write_access(self.engine)))

    async def ask(self, name: str, arguments: list[Any], payload: Payload) -> Any:
        assert name == AUTHORISE
        self.asked += 1
        sent = wired(arguments, payload)
        return orjson.loads(orjson.dumps(await answer_authorise(self.engine, *read_authorise(*sent))))

    def tell(self, head: Any) -> None:
        hear_denied(self.engine, orjson.loads(orjson.dumps(head)))


def link(*infer: str, expires_s: float | None = None) -> Link:
    return Link(AccessControl(rules(*infer, expires_s=expires_s), bytes(32), 100.0))


async def test_what_the_engine_has_said_is_remembered_until_there_are_new_rules() -> None:
    ends = link("a*")
    remote = ends.remote
    assert remote.recognise(CREDENTIAL) is None
    caller = await remote.authorise(CREDENTIAL, AccessCall("x"))
    assert (caller.name, remote.recognise(CREDENTIAL), ends.asked) == ("team", caller, 1)
    assert caller.may(Right.INFER, "ab")
    assert not caller.may(Right.READ, "ab")
    ends.control.apply(rules("b*"), 100.0)
    assert remote.recognise(CREDENTIAL) is caller
    ends.announce()
    assert remote.recognise(CREDENTIAL) is None
    again = await remote.authorise(CREDENTIAL, AccessCall("x", Right.INFER, "b"))
    assert (again.number, again.generation) == (caller.number, 2)


async def test_callers_expire_on_the_front_ends_own_clock() -> None:
    ends = link("a*", expires_s=110.0)
    caller = await ends.remote.authorise(CREDENTIAL, AccessCall("x"))
    assert caller.expires_s == 15.0
    ends.elsewhere.s = 15.0
    assert ends.remote.recognise(CREDENTIAL) is None
    ends.clock.s = 110.0
    with pytest.raises(UnauthenticatedError):
        await ends.remote.authorise(CREDENTIAL, AccessCall("x"))


async def test_refusals_of_front_ends_are_counted_by_the_engine() -> None:
    ends = link("a*")
    caller = await ends.remote.authorise(CREDENTIAL, AccessCall("x"))
    call = AccessCall("infer", Right.INFER, "b", False, "grpc", "10.0.0.1")
    with pytest.raises(PermissionDeniedError):
        ends.remote.check(caller, call)
    with pytest.raises(PermissionDeniedError):
        await ends.remote.authorise(CREDENTIAL, call)
    (usage,) = ends.control.usages()
    assert usage.refused == {RefusalReason.PERMISSION_DENIED: 2}
    with pytest.raises(UnauthenticatedError):
        await ends.remote.authorise(Credential(CredentialKind.BEARER, b"x" * 20_000), call)


def test_the_engine_looks_at_rights_again() -> None:
    """The front end may not have heard of new rules yet, or not be what it was."""
    ends = link("a*")
    caller = ends.control.caller_of(1)
    ends.engine.check_sent(InferenceRequest("ab", caller=caller))
    with pytest.raises(PermissionDeniedError):
        ends.engine.check_sent(InferenceRequest("b", caller=caller))
    with pytest.raises(UnauthenticatedError):
        ends.engine.check_sent(InferenceRequest("ab"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["API_KEY", 4, [None, False, "n", "m", "p", "a"]],
        ["API_KEY", -1, [None, False, "n", "m", "p", "a"]],
        ["KEY", 3, [None, False, "n", "m", "p", "a"]],
        [7, 3, [None, False, "n", "m", "p", "a"]],
        ["API_KEY", 3, ["all", False, "n", "m", "p", "a"]],
        ["API_KEY", 3, [["infer"], False, "n", "m", "p", "a"]],
        ["API_KEY", 3, [None, 0, "n", "m", "p", "a"]],
        ["API_KEY", 3, [None, False, "n", "m", "p"]],
        ["API_KEY", 3, [None, False, 1, "m", "p", "a"]],
    ],
)
def test_what_breaks_the_protocol_ends_the_link(arguments: list[Any]) -> None:
    calls: Any = EngineCalls(management=None, access=link().engine)  # type: ignore[arg-type] - is not asked
    with pytest.raises(LinkError):
        calls.prepare(AUTHORISE, arguments, memoryview(b"abc"))


def test_a_request_names_its_caller_once() -> None:
    """Its number stands in the spec, which requests that are alike do not repeat."""
    control = link("a*").control
    caller = control.caller_of(1)
    writer, reader = RequestWriter(), RequestReader(lambda _number: None, Regions(lambda: None), control.caller_of)
    requests = [InferenceRequest("a", caller=each) for each in (caller, caller, None, caller)]
    heads = [writer.write(number, each, 0)[0] for number, each in enumerate(requests)]
    assert [len(head) for head in heads] == [5, 4, 5, 4]
    read = [reader.read(*wired(head)).request.caller for head in heads]
    assert read == [caller, caller, None, caller]
    plain = reader.read_plain(*wired(heads[1]))
    assert plain is not None
    assert plain[0].caller is caller
    control.apply(rules("b"), 0.0)
    assert reader.read(*wired(heads[1])).request.caller is control.caller_of(1) is not caller
