"""Who may make which call: what front ends ask (`AccessGate`), wherever the rules are. In the engine's process they are
at hand (`LocalAccess`); a front end in another process asks for what it does not know (`front_ends.access`).

Rules:
 1. A credential that was recognised is recognised again at once, until the rules are read again or it ends.
 2. A call other than inference is decided as a whole by `authorise`: who, which right, and the limits. It counts as a
    request, and holds no place in flight.
 3. A request for inference is decided in two steps, since some protocols name the model late: who, and then, at once,
    whether it may (`check`). Its limits are looked at when there is room for it (`Admission`), and what it takes of
    them is given back once, with its share of the budget.
 4. Refusals, and calls that need more than `Right.READ`, go to the audit log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from ..engine.access.callers import ALL_MODELS, Caller, Right
from ..engine.access.control import AccessControl
from ..engine.access.credentials import Credential
from ..engine.access.limits import CallerUsage
from ..engine.access.tokens import KeysWanted
from ..engine.admission.shares import ModelShare
from ..engine.clock import Clock
from ..engine.errors import PermissionDeniedError, RefusalReason, TriremeError, UnauthenticatedError
from ..engine.request import InferenceRequest
from .budget import Lease


class AccessCall(NamedTuple):
    """A call, as far as it matters who makes it.

    Attributes:
        name: what the audit log calls it.
        right: that it needs; None if it is enough to be known.
        model: on which; `ALL_MODELS` for all of them.
        any_model: the right on one model, whichever it is, is enough.
        protocol, address: by which it comes, and from where.
    """

    name: str
    right: Right | None = None
    model: str = ALL_MODELS
    any_model: bool = False
    protocol: str = ""
    address: str = ""

    def check(self, caller: Caller) -> None:
        """Raises PermissionDeniedError if the caller does not have the right."""
        if self.right is not None:
            if self.any_model:
                caller.check_any(self.right)
            else:
                caller.check(self.right, self.model)


class AccessGate(ABC):
    """What the front ends of a process ask; for the event loop's thread.

    Attributes:
        generation: of the rules: callers of another one are to be recognised anew. Every request asks for it.
    """

    generation: int

    @property
    @abstractmethod
    def open_health(self) -> bool:
        """Whether health may be asked for by anyone."""

    @abstractmethod
    def now_s(self) -> float:
        """On the clock by which callers expire."""

    @abstractmethod
    def recognise(self, credential: Credential) -> Caller | None:
        """Who presents this, if that is known at once."""

    @abstractmethod
    async def authorise(self, credential: Credential, call: AccessCall) -> Caller:
        """Decide about a call (rule 2); of an inference, only who asks for it, and whether it has the right.

        Raises:
            TriremeError: it is refused, which is logged and counted.
        """

    @abstractmethod
    def check(self, caller: Caller, call: AccessCall) -> None:
        """Decide at once whether a caller has the right.

        Raises:
            PermissionDeniedError: it does not; that is logged and counted.
        """


class AccessAudit(Protocol):
    """Where decisions are noted (`engine.access.audit`)."""

    def note(
        self, *, caller: str, protocol: str, address: str, call: str, model: str, outcome: str, reason: str
    ) -> None:
        """Note one; does not wait."""
        ...


class CallerPlace:
    """What a request of a caller holds: its share of the budget, and what counts for the caller's limits."""

    __slots__ = ("_holder", "_usage")

    def __init__(self, holder: ModelShare | Lease, usage: CallerUsage) -> None:
        self._holder = holder
        self._usage = usage

    def release(self, nbytes: int) -> None:
        """The request has its final answer."""
        self._usage.complete()
        self._holder.release(nbytes)


class LocalAccess(AccessGate):
    """The gate of the process that has the rules.

    Args:
        audit: None for no audit log.
        fetch_keys: has the keys of an issuer of tokens fetched; None if there are none to fetch.
    """

    def __init__(
        self,
        control: AccessControl,
        clock: Clock,
        audit: AccessAudit | None = None,
        fetch_keys: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.control = control
        self._clock = clock
        self._fetch_keys = fetch_keys
        self._audit = audit
        self.generation = control.generation
        control.followers.append(self._follow)

    def _follow(self) -> None:
        self.generation = self.control.generation

    @property
    def open_health(self) -> bool:
        return self.control.open_health

    def now_s(self) -> float:
        return self._clock.now_s()

    def recognise(self, credential: Credential) -> Caller | None:
        return self.control.recognise(credential, self._clock.now_s())

    async def authorise(self, credential: Credential, call: AccessCall) -> Caller:
        caller: Caller | None = None
        try:
            caller = await self._identify(credential)
            self._check(caller, call)
            if call.right not in (None, Right.INFER):
                self.control.admit(caller, 0, self._clock.now_s()).complete()
        except TriremeError as error:
            self._note(caller, call, "refused", error.message)
            raise
        if call.right in _AUDITED:
            self._note(caller, call, "allowed")
        return caller

    async def _identify(self, credential: Credential) -> Caller:
        try:
            return self._identify_now(credential)
        except KeysWanted as wanted:
            if self._fetch_keys is not None:
                await self._fetch_keys(wanted.issuer)
        try:
            return self._identify_now(credential)
        except KeysWanted as wanted:
            self.control.note_refusal(None, RefusalReason.UNAUTHENTICATED)
            raise UnauthenticatedError(f"the keys of issuer '{wanted.issuer}' are not known") from None

    def _identify_now(self, credential: Credential) -> Caller:
        return self.control.identify(credential, self._clock.now_s(), self._clock.wall_ms() / 1000)

    def _check(self, caller: Caller, call: AccessCall) -> None:
        try:
            call.check(caller)
        except PermissionDeniedError:
            self.control.note_refusal(caller, RefusalReason.PERMISSION_DENIED)
            raise

    def check(self, caller: Caller, call: AccessCall) -> None:
        try:
            self._check(caller, call)
        except PermissionDeniedError as error:
            self._note(caller, call, "refused", error.message)
            raise

    def _note(self, caller: Caller | None, call: AccessCall, outcome: str, reason: str = "") -> None:
        if self._audit is not None:
            self._audit.note(
                caller="" if caller is None else caller.name,
                protocol=call.protocol,
                address=call.address,
                call=call.name,
                model=call.model,
                outcome=outcome,
                reason=reason,
            )

    # Inference, for `Admission` and for front ends in other processes.

    def admit(self, caller: Caller, nbytes: int, holder: ModelShare | Lease) -> CallerPlace:
        """Count in a request for which the budget has been taken. What it returns is to be released instead of the
        holder.

        Raises:
            TriremeError: a limit of the caller does not allow it, or the caller is not known any more; the budget is
                given back.
        """
        try:
            usage = self.control.admit(caller, nbytes, self._clock.now_s())
        except TriremeError:
            holder.release(nbytes)
            raise
        return CallerPlace(holder, usage)

    def check_sent(self, request: InferenceRequest) -> None:
        """Decide about a request that a front end in another process has let through, by rules that may be older.

        Raises:
            TriremeError: its caller is not in the rules any more, or has not the right.
        """
        if request.caller is None:
            self.control.note_refusal(None, RefusalReason.UNAUTHENTICATED)
            raise UnauthenticatedError("the caller is not in the access rules any more")
        self.control.check(request.caller, Right.INFER, request.model_name)

    def note_denied(self, number: int, call: AccessCall) -> None:
        """Such a front end has refused a caller."""
        caller = self.control.caller_of(number)
        self.control.note_refusal(caller, RefusalReason.PERMISSION_DENIED)
        reason = "" if caller is None or call.right is None else f"without the right '{call.right.value}'"
        self._note(caller, call, "refused", reason)


_AUDITED = (Right.MANAGE, Right.ADMIN)
