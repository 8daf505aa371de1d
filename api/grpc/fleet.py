"""What gateways ask of a replica (`trireme.Fleet`): reports of how it is (`actors.fleet_report`), for as long as it
serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from grpclib.const import Cardinality, Handler

from ...actors.fleet_report import sign_of_life
from ...proto.messages import trireme as pb
from ..access import needed
from .infer import GrpcContext

if TYPE_CHECKING:
    from .streaming import StreamingCall

WATCH: Final = "/trireme.Fleet/Watch"
CATEGORY: Final = "statistics"
"""Restrictions and rights are those of what it tells."""

_INTERVAL_MS, _LEAST_MS, _MOST_MS = 100, 10, 10_000
_SIGN_OF_LIFE_S = 1.0


class FleetWatch:
    """`trireme.Fleet` of a server."""

    def __init__(self, context: GrpcContext) -> None:
        self._context = context

    def __mapping__(self) -> dict[str, Handler]:
        return {WATCH: Handler(self._watch, Cardinality.UNARY_STREAM, pb.WatchRequest, pb.FleetReport)}

    async def _watch(self, stream: StreamingCall) -> None:
        """Report what has changed, each interval, and at the latest after `_SIGN_OF_LIFE_S`. Ends when the server
        stops, with a report that says so."""
        context = self._context
        access = context.access
        if access is not None:
            await access.identify(stream.head.identity, "Watch", stream.address)
        message: pb.WatchRequest = await stream.recv_message()
        if access is not None:
            await access.authorise(stream.head.identity, CATEGORY, needed(CATEGORY), "Watch", stream.address)
        interval_s = min(max(message.interval_ms or _INTERVAL_MS, _LEAST_MS), _MOST_MS) / 1000
        since, told_s = 0, 0.0
        before: dict[str, Any] = {}
        stops = False
        while not stops:
            stops = context.draining or context.server.exiting
            report = await context.server.management.fleet_report(since)
            since = report["generation"]
            if stops:
                report["state"] = "draining"
            now_s = trio.current_time()
            now = sign_of_life(report)
            if now != before or stops or now_s - told_s >= _SIGN_OF_LIFE_S:
                before, told_s = now, now_s
                await stream.send_message(pb.FleetReport(json=orjson.dumps(report)))
            if not stops:
                await trio.sleep(interval_s)
