"""The HTTP service: an ASGI app behind listening sockets."""

from __future__ import annotations

from ..sockets.roster import Roster
from ..sockets.service import Service, ServiceOptions
from ..sockets.transport import PlainTransport, TlsTransport
from .asgi import AsgiApp
from .connection import Connection


class HttpService(Service):
    """Serves an ASGI app over HTTP/1.1 and HTTP/2."""

    protocols = ("h2", "http/1.1")

    def __init__(self, app: AsgiApp, options: ServiceOptions) -> None:
        super().__init__(options)
        self._app = app

    def connection(
        self,
        transport: PlainTransport | TlsTransport,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        roster: Roster,
    ) -> Connection:
        return Connection(self._app, transport, roster, client, server)
