"""The gRPC service: grpclib services behind listening sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import trio
from grpclib.encoding.base import CodecBase

from ...actors.actor import Turn
from ...actors.budget import InflightBudget
from ...actors.offload import Offload
from ...actors.socket_readiness import Readiness
from ..http2.connection import Http2Group
from ..sockets.roster import Roster
from ..sockets.service import Service
from ..sockets.transport import Transport
from . import call_log
from .call import GrpcConnection, Servable, methods_of
from .codec import MessageCodec
from .deadlines import Deadlines
from .host import Guard, Surroundings, WaitingRoom
from .options import NO_DELAYS, GrpcServiceOptions

_OWN_REQUESTS = 1 << 16
_OWN_BYTES = 1 << 32
"""Of the budget of services that have none."""

T = TypeVar("T")


def _given(services: Sequence[Servable], name: str, default: T) -> T:
    """What one of the services has under that name; see `call.Servable`."""
    return next((getattr(service, name) for service in services if hasattr(service, name)), default)


class GrpcService(Service):
    """Serves grpclib services over HTTP/2.

    Args:
        services: see `call.Servable`.
        codec: reads and writes messages, by the types that the handlers name; by default betterproto2's.
        readiness: see `Service`.
    """

    protocols = ("h2",)

    def __init__(
        self,
        services: Sequence[Servable],
        options: GrpcServiceOptions,
        *,
        codec: CodecBase | None = None,
        guards: Sequence[Guard] = (),
        readiness: Readiness | None = None,
    ) -> None:
        super().__init__(
            options, readiness, _given(services, "client_accounts", None), _given(services, "refusals", None)
        )
        self._deadlines = Deadlines()
        self._group = Http2Group(options.http2)
        self._surroundings = Surroundings(
            group=self._group,
            deadlines=self._deadlines,
            methods=methods_of(services, options),
            guards=guards,
            options=options,
            delays=_given(services, "delays", NO_DELAYS),
            codec=MessageCodec() if codec is None else codec,
            lease=_given(services, "lease", InflightBudget(_OWN_REQUESTS, _OWN_BYTES).lease),
            waiting=WaitingRoom(options.max_waiting_bytes),
            offload=_given(services, "offload", Offload()),
            knows=_given(services, "knows", None),
            is_cold=_given(services, "is_cold", None),
            find_model=_given(services, "find_model", None),
        )

    def connection(self, transport: Transport, client: tuple[str, int] | None, roster: Roster) -> GrpcConnection:
        return GrpcConnection(self._surroundings, transport, roster, client)

    def open(self, turn: Turn) -> None:
        self._group.turn = turn

    async def accompany(self) -> None:
        if call_log.enabled():
            call_log.tell_ready(self._surroundings.methods)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deadlines.keep_watching)
            nursery.start_soon(self._group.accompany, self._roster)
