"""Who makes a call, and which right it needs, in every protocol.

The table of rights is here, and nowhere else; who decides by it is `actors.access_gate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..actors.access_gate import AccessCall, AccessGate
from ..engine.access.callers import ALL_MODELS, Caller, Right
from ..engine.access.credentials import NO_CREDENTIAL, Credential, CredentialKind
from ..engine.errors import TriremeError

if TYPE_CHECKING:
    from ..actors.facade import Facade

_BEARER: Final = b"bearer "
_READING: Final[Mapping[str, bool]] = {
    "health": True,
    "metadata": True,
    "model-config": False,
    "model-repository": True,
    "statistics": False,
    "shared-memory": False,
    "trace": False,
    "logging": False,
    "metrics": False,
}
"""Calls that change nothing need `Right.READ`: on the model that they name; without one on all models, or, where this
says so, on any."""

_CHANGING: Final[Mapping[str, Right]] = {
    "inference": Right.INFER,
    "model-repository": Right.MANAGE,
    "shared-memory": Right.MANAGE,
    "trace": Right.ADMIN,
    "logging": Right.ADMIN,
}
"""The right that other calls need: on the model that they name, or on all."""


OTHERS_TOO: Final = (Right.MANAGE, ALL_MODELS)
"""What loading a model with a configuration or files of the client's own needs, and unloading it with others: by its
configuration a model can be made of others, and its files may be code."""


def needed(category: str, model: str = ALL_MODELS, *, changes: bool = False) -> tuple[Right, str, bool]:
    """What a call of a category (`request_parameters.RESTRICTABLE`, ``metrics``) needs: a right, on which model, and
    whether any model will do.

    Args:
        model: that the call names, if it names one.
        changes: it is not only there to read something.
    """
    if changes:
        return _CHANGING[category], model, False
    return Right.READ, model, model == ALL_MODELS and _READING[category]


class Identity:
    """Who sends requests with one head; what was found out once is remembered.

    Attributes:
        caller: that was recognised last; it may have expired.
    """

    __slots__ = ("caller", "credential")

    def __init__(self, credential: Credential) -> None:
        self.credential = credential
        self.caller: Caller | None = None


def identity_of(headers: Iterable[tuple[bytes, bytes]], certificate: bytes = b"") -> Identity:
    """Who a request says it is from: by a bearer token, else by a key, else by the certificate of its connection. Of
    repeated headers the first counts.

    Args:
        headers: with names in lower case.
        certificate: the names in it (`certificate_names`); empty if there is none.
    """
    key: bytes | None = None
    for name, value in headers:
        if name == b"authorization":
            if value[: len(_BEARER)].lower() == _BEARER:
                return Identity(Credential(CredentialKind.BEARER, value[len(_BEARER) :].strip()))
        elif name == b"x-api-key" and key is None:
            key = value.strip()
    if key is not None:
        return Identity(Credential(CredentialKind.API_KEY, key))
    return Identity(Credential(CredentialKind.CERTIFICATE, certificate) if certificate else NO_CREDENTIAL)


class AccessChecks:
    """How the front ends of one protocol ask an `AccessGate`.

    Args:
        protocol: what the audit log calls it.
        count: a refusal.
    """

    __slots__ = ("_count", "_gate", "_protocol")

    def __init__(self, gate: AccessGate, protocol: str, count: Callable[[TriremeError], None]) -> None:
        self._gate = gate
        self._protocol = protocol
        self._count = count

    @classmethod
    def of(cls, server: Facade, protocol: str) -> AccessChecks | None:
        """Those of a server; None if it has no access rules."""
        return None if server.access is None else cls(server.access, protocol, server.note_refusal)

    def known(self, identity: Identity) -> Caller | None:
        """Who it is, if that is known at once; asked for every request."""
        caller, gate = identity.caller, self._gate
        if caller is not None and caller.generation == gate.generation:
            expires_s = caller.expires_s
            if expires_s is None or gate.now_s() < expires_s:
                return caller
        caller = identity.caller = gate.recognise(identity.credential)
        return caller

    async def identify(self, identity: Identity, name: str, address: str) -> Caller:
        """Who it is, who makes a call of this name.

        Raises:
            TriremeError: it is not known.
        """
        caller = self.known(identity)
        if caller is None:
            caller = await self._decide(identity, AccessCall(name, protocol=self._protocol, address=address))
        return caller

    async def authorise(
        self, identity: Identity, category: str, need: tuple[Right, str, bool], name: str, address: str
    ) -> Caller | None:
        """Decide about a call.

        Args:
            need: see `needed`.
            name: see `AccessCall`.

        Returns:
            Who makes it; None if anyone may.

        Raises:
            TriremeError: it is refused.
        """
        gate = self._gate
        right: Right | None
        right, model, any_model = need
        if category == "health":
            if gate.open_health:
                return None
            right = None
        call = AccessCall(name, right, model, any_model, self._protocol, address)
        if right is Right.INFER:
            caller = self.known(identity)
            if caller is not None and caller.may(Right.INFER, model):
                return caller
        return await self._decide(identity, call)

    async def _decide(self, identity: Identity, call: AccessCall) -> Caller:
        try:
            caller = identity.caller = await self._gate.authorise(identity.credential, call)
        except TriremeError as error:
            self._count(error)
            raise
        return caller

    def check(self, caller: Caller, right: Right, model: str, name: str, address: str) -> None:
        """Check a right of a caller who has been recognised.

        Raises:
            TriremeError: it does not have it.
        """
        if not caller.may(right, model):
            call = AccessCall(name, right, model, False, self._protocol, address)
            try:
                self._gate.check(caller, call)
            except TriremeError as error:
                self._count(error)
                raise


def readable(caller: Caller | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a repository index, or of routes, those that a caller may read of; all, if there are no access rules."""
    return rows if caller is None else [row for row in rows if caller.may(Right.READ, row["name"])]
