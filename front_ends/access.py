"""Access rules, as a front end in another process knows them.

Rules:
 1. It has no rules and no keys. Who presents a credential, and whether a call is allowed, is asked of the engine
    (`AUTHORISE`), which counts and logs. What it says of a caller is remembered under a keyed digest of the credential,
    until the rules change (`kinds.ACCESS`) or the caller expires.
 2. Whether a known caller may ask a model is decided here, and again by the engine (`LocalAccess.check_sent`), which is
    told the caller's number with the request. So no request passes by rules that were replaced.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from ..actors.access_gate import AccessCall, AccessGate, LocalAccess
from ..engine.access.callers import Caller, Right
from ..engine.access.credentials import Credential, CredentialKind
from ..engine.clock import Clock
from ..engine.errors import PermissionDeniedError
from ..engine.memo import Memo
from ..python_backend.child.codec import Payload
from .kinds import ACCESS, DENIED
from .link import LinkHead
from .slots import check_payload
from .values import broken, read_bool, read_integer, read_list, read_text, write_text

AUTHORISE = "authorise"
"""The call's name."""

_REMEMBERED = 4_096
_DIGEST_BYTES = 16


def write_access(access: LocalAccess) -> LinkHead:
    """What front ends are told of the rules."""
    return (ACCESS, access.generation, access.open_health)


def _write_call(call: AccessCall) -> list[Any]:
    right = None if call.right is None else call.right.value
    texts = [write_text(each) for each in (call.name, call.model, call.protocol, call.address)]
    return [right, call.any_model, *texts]


def _read_call(value: Any) -> AccessCall:
    """See `_write_call`. Raises LinkError: it is none."""
    right, any_model, name, model, protocol, address = read_list(value, 6, 6)
    texts = [read_text(each) for each in (name, model, protocol, address)]
    return AccessCall(texts[0], _read_right(right), texts[1], read_bool(any_model), *texts[2:])


def _read_right(value: Any) -> Right | None:
    if value is None:
        return None
    try:
        return Right(value)
    except (TypeError, ValueError):
        raise broken("a right", value) from None


class RemoteAccess(AccessGate):
    """See the module.

    Args:
        ask: makes a call of the engine (`calls`).
        tell: sends what must not be lost.
    """

    def __init__(
        self,
        ask: Callable[[str, list[Any], Payload], Awaitable[Any]],
        tell: Callable[[LinkHead], None],
        clock: Clock,
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._clock = clock
        self.generation = 0
        self._open_health = False
        self._key = secrets.token_bytes(32)
        self._callers: Memo[Caller] = Memo(_REMEMBERED, _DIGEST_BYTES)

    @property
    def open_health(self) -> bool:
        return self._open_health

    def now_s(self) -> float:
        return self._clock.now_s()

    def update(self, head: list[Any]) -> None:
        """There are these rules now (`kinds.ACCESS`). Raises LinkError: it says something else."""
        _, generation, open_health = read_list(head, 3, 3)
        self.generation, self._open_health = read_integer(generation), read_bool(open_health)
        self._callers.clear()

    def recognise(self, credential: Credential) -> Caller | None:
        caller = self._callers.get(self._digest(credential))
        return None if caller is None or caller.expired(self._clock.now_s()) else caller

    async def authorise(self, credential: Credential, call: AccessCall) -> Caller:
        payload = Payload()
        payload.add(credential.value)
        about = [credential.kind.name, len(credential.value), _write_call(call)]
        values = await self._ask(AUTHORISE, about, payload)
        if values[4] is not None:  # on another clock
            values[4] += self._clock.now_s()
        caller = Caller.of_plain(values)
        if caller.generation == self.generation:
            self._callers.remember(self._digest(credential), caller)
        return caller

    def check(self, caller: Caller, call: AccessCall) -> None:
        try:
            call.check(caller)
        except PermissionDeniedError:
            self._tell((DENIED, caller.number, _write_call(call)))
            raise

    def _digest(self, credential: Credential) -> bytes:
        person = credential.kind.name.encode()
        return hashlib.blake2b(credential.value, key=self._key, digest_size=_DIGEST_BYTES, person=person).digest()


# ---- the engine's end ----


def read_authorise(arguments: list[Any], payload: memoryview) -> tuple[Credential, AccessCall]:
    """What `AUTHORISE` asks. Raises LinkError: it asks nothing."""
    kind, nbytes, call = read_list(arguments, 3, 3)
    check_payload(payload, read_integer(nbytes))
    try:
        of_kind = CredentialKind[read_text(kind)]
    except KeyError:
        raise broken("a kind of credential", kind) from None
    return Credential(of_kind, bytes(payload[:nbytes])), _read_call(call)


async def answer_authorise(access: LocalAccess, credential: Credential, call: AccessCall) -> list[Any]:
    """The caller, by plain values, with the time that is left in place of the time when it expires.

    Raises:
        TriremeError: see `AccessGate.authorise`.
    """
    caller = await access.authorise(credential, call)
    values = caller.plain()
    if caller.expires_s is not None:
        values[4] = caller.expires_s - access.now_s()
    return values


def hear_denied(access: LocalAccess, head: list[Any]) -> None:
    """A front end has refused a caller (`kinds.DENIED`). Raises LinkError: it says something else."""
    _, number, call = read_list(head, 3, 3)
    access.note_denied(read_integer(number), _read_call(call))
