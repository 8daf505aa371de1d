"""Who belongs to the fleet: the pods of a Service of Kubernetes, now and whenever they change.

What is asked next, and what follows from the answers, is decided elsewhere (`slice_watch`, `endpoint_slices`); here it
is asked and done:

State of a pod   The replica of its name
---------------  ---------------------------------------------------------------------------------------------------
READY            joins, or has another address
UNREADY          stays if it belongs to the fleet and has the same address, for the gateway hears from itself what it
                 serves: one faulty model must not cost a whole fleet its replicas
TERMINATING      gets nothing new, and keeps its sequences as long as the pod is there
not there        the same for a minute, and is gone then
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, Protocol

import trio

from .endpoint_slices import Endpoint, EndpointSlices, EndpointState
from .kubernetes_settings import KubernetesSettings
from .server import FleetServer
from .slice_watch import ApiServerError, SliceStep, SliceWatch

logger = logging.getLogger("trireme.gateway")


class SliceSource(Protocol):
    """Who is asked; see `api_server.ApiServer`."""

    async def list(self) -> dict[str, Any]: ...
    def watch(self, version: str) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]: ...


class KubernetesMembership:
    """Follows one Service.

    Args:
        settings: with `namespace`.
    """

    def __init__(self, settings: KubernetesSettings, source: SliceSource, chance: Random) -> None:
        self._settings = settings
        self._source = source
        self._slices = EndpointSlices(settings.port, settings.address_types)
        self._watch = SliceWatch(self._slices, chance)
        self._warned: object = None

    async def follow(
        self, server: FleetServer, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Have the fleet be as the Service says, until cancelled. Started when all replicas of the first list belong to
        it, or it could not be had."""
        started = False
        while True:
            await trio.sleep(self._watch.pause_s)
            try:
                if self._watch.step is SliceStep.LIST:
                    await self._list(server)
                else:
                    await self._look(server)
            except ApiServerError as error:
                if self._watch.failed(error):
                    logger.error("the API server of Kubernetes: %s; the fleet stays as it was", error.text)
            if not started:
                started = True
                task_status.started()

    async def _list(self, server: FleetServer) -> None:
        self._tell(self._watch.listed(await self._source.list()))
        await self._apply(server)

    async def _look(self, server: FleetServer) -> None:
        """Watch until it ends."""
        async with self._source.watch(self._slices.version) as events:
            self._tell(self._watch.accepted())
            began_s = trio.current_time()
            async for event in events:
                if self._watch.told(event):
                    await self._apply(server)
        self._watch.ended(trio.current_time() - began_s)

    def _tell(self, is_over: bool) -> None:
        if is_over:
            logger.info("the API server of Kubernetes answers again")

    async def _apply(self, server: FleetServer) -> None:
        endpoints = self._slices.endpoints
        before = list(server.members)
        self._warn(endpoints, has_members=bool(before))
        for name in list(server.replicas):
            if name not in endpoints:
                server.leave(name)
        for name, endpoint in endpoints.items():
            replica = server.replicas.get(name)
            is_same = replica is not None and replica.address == endpoint.address
            if endpoint.state is EndpointState.READY:
                if replica is None or not is_same or replica.leaving:
                    await server.join(name, endpoint.address, self._settings.weights.get(name, 1.0))
            elif replica is not None and not is_same:
                server.leave(name)
            elif replica is not None and endpoint.state is EndpointState.TERMINATING:
                server.leave(name, math.inf)
        if before != (now := list(server.members)):
            logger.info("replicas of the Service %s: %s", self._settings.service, ", ".join(now) or "none")

    def _warn(self, endpoints: Mapping[str, Endpoint], has_members: bool) -> None:
        """Once, of a Service that has no replicas, not the port, or none that can join."""
        service = f"the Service {self._settings.service} of the namespace {self._settings.namespace}"
        others = self._slices.other_ports
        none_is_ready = not has_members and all(each.state is not EndpointState.READY for each in endpoints.values())
        warned: object = (others, not endpoints, none_is_ready)
        if warned == self._warned:
            return
        self._warned = warned
        if others:
            names = ", ".join(sorted(repr(each) for each in others))
            logger.warning("%s has no port %r: found %s", service, self._settings.port, names)
        elif not endpoints:
            logger.warning("%s has no endpoints", service)
        elif none_is_ready:
            logger.warning("%s has %d pods, and none is ready: those that become so join", service, len(endpoints))
