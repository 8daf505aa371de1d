"""The HTTP service: an application behind listening sockets."""

from __future__ import annotations

from ...actors.actor import Turn
from ...engine.admission.client_bytes import ClientAccounts
from ..http2.connection import Http2Group
from ..sockets.roster import Roster
from ..sockets.service import Service, ServiceOptions
from ..sockets.transport import Transport
from .app import HttpApplication
from .exchange import Application
from .h1.connection import H1Connection
from .h1.parser import HeadMemory
from .h2.connection import http2_limits


class HttpService(Service):
    """Serves an application over HTTP/1.1 and HTTP/2, with the accounts of the application's server, if it has one."""

    protocols = ("h2", "http/1.1")

    def __init__(self, app: Application, options: ServiceOptions, accounts: ClientAccounts | None = None) -> None:
        readiness, self._immediate = None, None
        if isinstance(app, HttpApplication):
            readiness, self._immediate, accounts = app.server.readiness, app.immediate, app.server.client_accounts
        super().__init__(options, readiness, accounts)
        self._app = app
        self._heads = HeadMemory()
        self._http2 = Http2Group(http2_limits(options.limits), watches_calls=True)

    def connection(self, transport: Transport, client: tuple[str, int] | None, roster: Roster) -> H1Connection:
        return H1Connection(self._app, transport, roster, client, self._http2, self._immediate, self._heads)

    def open(self, turn: Turn) -> None:
        self._http2.turn = turn

    async def accompany(self) -> None:
        await self._http2.accompany(self._roster)
