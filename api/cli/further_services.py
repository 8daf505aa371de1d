"""The front end for OpenAI's clients at a port of its own, and those for cloud platforms: in the server's process, also
where HTTP and gRPC have processes of their own."""

from __future__ import annotations

import logging

import trio

from ...actors import InferenceServer
from ...actors.facade import Facade
from ...engine.errors import TriremeError
from ..clouds.hosted_models import HostedModels
from ..clouds.sagemaker import SageMakerApplication
from ..clouds.vertex_ai import Metrics, VertexAiApplication, default_model
from ..http.app import HttpApplication, HttpService
from ..openai.routes import OpenAiApplication
from ..sockets.service import ServiceOptions
from .command import ServeCommand
from .services import ClientServices, StartError, open_service

logger = logging.getLogger("trireme.serve")


class OpenAiService(ClientServices):
    """That for OpenAI's clients, if the command line asks for it."""

    def __init__(self, server: Facade, command: ServeCommand) -> None:
        self._facade = server
        self._command = command
        self._services: list[HttpService] = []

    async def open(self, nursery: trio.Nursery) -> None:
        openai = self._command.openai
        if openai is not None:
            application = OpenAiApplication(self._facade, openai.options)
            await self._open(application, openai.service, "OpenAI HTTPService", nursery)

    async def _open(
        self, application: HttpApplication, options: ServiceOptions, title: str, nursery: trio.Nursery
    ) -> None:
        service = HttpService(application, options)
        await open_service(service, options.name, title, nursery)
        self._services.append(service)

    def begin_drain(self) -> None:
        for service in self._services:
            service.begin_drain()

    async def drain(self, remaining_s: float) -> float:
        for service in self._services:
            remaining_s = await service.drain(remaining_s)
        return remaining_s


class FurtherServices(OpenAiService):
    """All that the command line asks for; there may be none.

    Args:
        metrics: the page that Vertex AI may ask for; None if there is none.
    """

    def __init__(self, server: InferenceServer, command: ServeCommand, metrics: Metrics | None) -> None:
        super().__init__(server, command)
        self._server = server
        self._metrics = metrics

    async def open(self, nursery: trio.Nursery) -> None:
        await super().open(nursery)
        server, sagemaker, vertex_ai = self._server, self._command.sagemaker, self._command.vertex_ai
        if sagemaker is not None:
            hosted = HostedModels(server)
            application = SageMakerApplication(server, sagemaker.options, sagemaker.platform, hosted)
            await self._open(application, sagemaker.service, "Sagemaker HTTPService", nursery)
        if vertex_ai is not None:
            try:
                model = default_model(vertex_ai.platform.default_model, server.repository_index(ready_only=True))
                application = VertexAiApplication(server, vertex_ai.options, vertex_ai.platform, model, self._metrics)
            except TriremeError as error:
                logger.error("failed to start Vertex AI service: %s - %s", error.kind.value, error.message)
                raise StartError(error.message) from error
            await self._open(application, vertex_ai.service, "Vertex AI HTTPService", nursery)
