"""What the metrics port of a gateway answers under ``/console``: a page with its replicas, how they are, and links to
their own consoles. It only shows, and is as it was when it was asked for; it needs the right that metrics need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from ...engine.errors import TriremeError
from ...engine.version import VERSION
from ..access import AccessChecks, needed
from ..http.exchange import JSON, TEXT, Answer, Exchange, error_answer, error_body, method_not_allowed
from .application import MEDIA, OF_DATA, OF_PAGES, PREFIX

if TYPE_CHECKING:
    from ...gateway.replicas import Replica
    from ...gateway.server import FleetServer

_STYLE = PREFIX + b"/console.css"
_PILLS = {"ready": "good", "lost": "bad"}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Replicas · Trireme gateway</title>
<link rel="stylesheet" href="console/console.css">
</head>
<body>
<header class="top"><div class="brand"><strong>Trireme gateway</strong> <span class="soft">{about}</span></div></header>
<main id="content">
<h1>Replicas</h1>
<p class="soft">{summary} As it was when this page was loaded. Models, batches and requests are on each replica's own
console; <a href="metrics">/metrics</a> has what this gateway counts.</p>
<section class="card"><div class="scroll"><table>
<thead><tr><th scope="col">Replica</th><th scope="col">State</th><th scope="col">Address</th>
<th scope="col">Requests there</th><th scope="col">Models</th><th scope="col">Console</th></tr></thead>
<tbody>
{rows}
</tbody></table></div></section>
</main>
</body>
</html>
"""


class FleetPage:
    """The page of one gateway.

    Args:
        consoles: addresses of the replicas' consoles, by the names of those of which the fleet's file says one.
        access: finds out who asks; None if anyone may.
    """

    def __init__(
        self, server: FleetServer, consoles: Callable[[], Mapping[str, str]], access: AccessChecks | None = None
    ) -> None:
        self._server = server
        self._consoles = consoles
        self._access = access
        style = resources.files(__package__ or "").joinpath("static", "console.css").read_bytes()
        self._style = Answer(200, MEDIA["css"], style, OF_PAGES)

    def covers(self, path: bytes) -> bool:
        """Whether a path is the page's, or one below it."""
        return path == PREFIX or path.startswith(PREFIX + b"/")

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request for one of its paths."""
        await exchange.respond(await self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> Answer:
        if exchange.path == PREFIX + b"/":
            return Answer(308, TEXT, headers=((b"Location", b"../console"),))
        if exchange.path not in (PREFIX, _STYLE):
            text = "a gateway has no stream and no calls under /console: each replica has a console of its own"
            return Answer(404, JSON, error_body(text))
        if exchange.method not in ("GET", "HEAD"):
            return method_not_allowed(JSON)
        if exchange.path == _STYLE:
            return self._style
        if self._access is not None:
            need, name = needed("metrics"), "GET /console"
            try:
                await self._access.authorise(exchange.identity(), "metrics", need, name, exchange.address)
            except TriremeError as error:
                return error_answer(error, JSON, OF_DATA)
        return Answer(200, MEDIA["html"], self.text().encode(), (*OF_PAGES[:1], *OF_DATA))

    def text(self) -> str:
        """The page, as of now."""
        replicas, consoles = self._server.replicas.values(), self._consoles()
        serving = sum(each.serves for each in replicas)
        summary = f"{serving} of {len(replicas)} can take requests; {self._server.waiting} requests wait for one."
        rows = "\n".join(self._row(each, consoles.get(each.name, "")) for each in replicas)
        about = escape(f"{VERSION} · {self._server.options.server_id}")
        return _PAGE.format(about=about, summary=summary, rows=rows or '<tr><td colspan="6">There are none.</td></tr>')

    def _row(self, replica: Replica, console: str) -> str:
        state = f'<span class="pill {_PILLS.get(replica.state, "wait")}">{escape(replica.state)}</span>'
        trouble = replica.silence if replica.up else replica.why
        if trouble:
            state += f" {escape(trouble)}"
        ready = self._server.models.ready(replica.name)
        models = ", ".join(sorted(name for name, versions in ready.items() if any(versions.values())))
        link = f'<a href="{escape(console)}">{escape(console)}</a>' if console else "on its metrics port, at /console"
        cells = state, escape(replica.address), str(replica.sent), escape(models) or "–", link
        return f'<tr><th scope="row">{escape(replica.name)}</th>{"".join(f"<td>{each}</td>" for each in cells)}</tr>'
