"""The calls of a front end (`calls`), each made by a task."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..actors.actor import Turn
from ..engine.errors import InternalError, TriremeError
from ..python_backend.child.codec import Payload
from . import kinds
from .calls import write_result
from .link import NOTHING, LinkError, LinkHead
from .values import read_integer, read_list, write_error

logger = logging.getLogger("trireme.front_ends")

_MOST = 65_536
"""At once, of one front end. An honest one has far fewer."""


class PortCalls:
    """Those that are being made.

    Args:
        prepare: see `EngineCalls.prepare`.
        say: sends a message in a turn, later if there is no room.

    Attributes:
        start_soon: starts a task of the port.
    """

    start_soon: Callable[..., None]

    def __init__(
        self,
        prepare: Callable[[Any, Any, memoryview], Callable[[], Awaitable[Any]]],
        turn: Turn,
        say: Callable[[LinkHead, Payload], None],
    ) -> None:
        self._prepare = prepare
        self._turn = turn
        self._say = say
        self._scopes: dict[int, trio.CancelScope] = {}

    def begin(self, head: list[Any], payload: memoryview) -> None:
        """See `kinds.CALL`; a LinkError if it is none."""
        _, number, name, arguments = read_list(head, 4, 4)
        if read_integer(number) in self._scopes or len(self._scopes) >= _MOST:
            raise LinkError(f"call {number} is there already, or one of too many")
        call = self._prepare(name, arguments, payload)
        scope = self._scopes[number] = trio.CancelScope()
        self.start_soon(self._make, scope, number, call)

    def refuse(self, head: list[Any], error: TriremeError) -> None:
        """Give an error to a call that is not begun."""
        _, number, _, _ = read_list(head, 4, 4)
        self._say((kinds.RESULT, read_integer(number), 0, write_error(error)), NOTHING)

    async def _make(self, scope: trio.CancelScope, number: int, call: Callable[[], Awaitable[Any]]) -> None:
        result: tuple[LinkHead, Payload] | None = None
        try:
            with scope:
                result = write_result(number, await call())
        except TriremeError as error:
            result = (kinds.RESULT, number, 0, write_error(error)), NOTHING
        except Exception as error:  # a defect must cost this call only
            logger.exception("unexpected failure of a call of a front end")
            result = (kinds.RESULT, number, 0, write_error(InternalError(f"unexpected failure: {error}"))), NOTHING
        finally:
            del self._scopes[number]
        if result is not None:
            with self._turn:
                self._say(*result)

    def give_up(self, head: list[Any], _payload: memoryview) -> None:
        """See `kinds.GIVE_UP`."""
        read_list(head, 2, 2)
        scope = self._scopes.get(read_integer(head[1]))
        if scope is not None:
            scope.cancel()
