"""The HTTP service: an ASGI app behind listening sockets."""

from __future__ import annotations

from ..sockets.roster import Roster
from ..sockets.service import Service, ServiceOptions
from ..sockets.transport import PlainTransport, TlsTransport
from .app import HttpApplication
from .asgi import AsgiApp
from .connection import Connection


class HttpService(Service):
    """Serves an ASGI app over HTTP/1.1 and HTTP/2."""

    protocols = ("h2", "http/1.1")

    def __init__(self, app: AsgiApp, options: ServiceOptions) -> None:
        super().__init__(options)
        self._app = app
        self._immediate = app.immediate if isinstance(app, HttpApplication) else None

    def connection(
        self,
        transport: PlainTransport | TlsTransport,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        roster: Roster,
    ) -> Connection:
        return Connection(self._app, transport, roster, client, server, self._immediate)

    def attend(self) -> None:
        if self._immediate is not None:
            self._immediate.attend()
