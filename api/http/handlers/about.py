"""What the server tells about itself and its models: health, metadata, configuration, statistics
(docs/reference/http.md, docs/reference/errors.md).
"""

from __future__ import annotations

from ....engine.config import config_json
from ... import about
from ..errors import error_body
from ..exchange import JSON, TEXT, Answer, Context, HttpRequest
from ..json import writer as json_writer


async def server_live(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/live``."""
    about.refuse_when_exiting(context.server)
    return Answer(200 if context.server.live() else 400, TEXT)


async def server_ready(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/ready``."""
    about.refuse_when_exiting(context.server)
    return Answer(200 if await context.server.check_ready() else 400, TEXT)


async def server_metadata(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2``."""
    return Answer(200, JSON, json_writer.dumps(about.server_metadata(context.server)))


async def model_ready(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]/ready``: why a model is not ready is not told."""
    version = request.match.model_version()
    about.refuse_when_exiting(context.server)
    if await context.server.check_model_ready(request.match.name, version):
        return Answer(200, TEXT)
    return Answer(400, TEXT, error_body("Model version not ready"))


async def model_metadata(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]``."""
    match = request.match
    one_version = bool(match.version_text)
    body = about.model_metadata(context.server, match.name, match.model_version(), one_version=one_version)
    return Answer(200, JSON, json_writer.dumps(body))


async def model_config(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]/config``."""
    version = request.match.model_version()
    return Answer(200, JSON, config_json(context.server.describe(request.match.name, version).config))


async def statistics(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/stats`` (no name in the path) and ``GET /v2/models/M[/versions/V]/stats``."""
    body = about.model_statistics(context.server, request.match.name, request.match.model_version())
    return Answer(200, JSON, json_writer.dumps(body))
