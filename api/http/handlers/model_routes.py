"""Calls about routes, names for which models answer (docs/routes.md#over-http)."""

from __future__ import annotations

from ....engine.access.callers import Right
from ...access import readable
from ...model_routes import RouteAction, RouteChange
from ..exchange import JSON, Answer, Context, HttpRequest
from ..json import writer as json_writer


async def list_routes(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/routes``: those that the caller may read of."""
    rows = await context.server.management.route_status()
    return Answer(200, JSON, json_writer.dumps(readable(request.exchange.caller, rows)))


async def show_route(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/routes/R``."""
    (status,) = await context.server.management.route_status(request.match.name)
    return Answer(200, JSON, json_writer.dumps(status))


async def set_route(context: Context, request: HttpRequest) -> Answer:
    """``PUT /v2/routes/R``: the body is the route's document."""
    await change_route(context, request, RouteChange.setting(request.match.name, request.body))
    return await show_route(context, request)


async def remove_route(context: Context, request: HttpRequest) -> Answer:
    """``DELETE /v2/routes/R``."""
    return await change_route(context, request, RouteChange(request.match.name, RouteAction.REMOVE))


async def stop_rollout(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/routes/R/stop``: the canary gives its share back."""
    await change_route(context, request, RouteChange(request.match.name, RouteAction.STOP))
    return await show_route(context, request)


async def change_route(context: Context, request: HttpRequest, change: RouteChange) -> Answer:
    """Make a change, if the caller has the right to.

    Raises:
        TriremeError: it has not, or the change cannot be.
    """
    exchange = request.exchange
    if context.access is not None and exchange.caller is not None:
        call = f"{exchange.method} {request.match.route.template}"
        for model in await change.models(context.server.management):
            context.access.check(exchange.caller, Right.MANAGE, model, call, exchange.address)
    await change.make(context.server.management)
    return Answer(200, JSON)
