"""What is traced: seen and changed (docs/reference/traces.md#over-http)."""

from __future__ import annotations

from typing import Any

from ...engine.tracing.settings import CLEAR, SettingsChange
from ..trace_settings import check_model, file_refused, read_count, read_level, read_number, show_settings
from . import json_reader, json_writer
from .exchange import JSON, Answer, Context, HttpRequest
from .json_access import members_of
from .large_bodies import read_json


async def settings(context: Context, request: HttpRequest) -> Answer:
    """``GET …/trace/setting``."""
    check_model(context.server, request.match.name)
    return _answer(context, request.match.name)


async def change(context: Context, request: HttpRequest) -> Answer:
    """``POST …/trace/setting``: all that the body asks for, or, if something in it is wrong, nothing."""
    name = request.match.name
    check_model(context.server, name)
    wanted = _read_change(await read_json(context, request))
    if wanted != SettingsChange():
        context.server.tracer.change(wanted, name)
    return _answer(context, name)


def _answer(context: Context, model_name: str) -> Answer:
    # Not by way of a dictionary: a name may come twice.
    shown = show_settings(context.server, model_name)
    members = (b"%b:%b" % (json_writer.string(name), json_writer.dumps(value)) for name, value in shown)
    return Answer(200, JSON, b"{%b}" % b",".join(members))


def _read_change(body: Any) -> SettingsChange:
    """Null clears a setting; members of other names are ignored.

    Raises:
        UnsupportedError: the file is among them.
        InternalError: a value of the wrong type.
        InvalidArgumentError: a value that cannot be.
    """
    given = members_of(body)
    if "trace_file" in given:
        raise file_refused()
    wanted = SettingsChange()
    if "trace_level" in given:
        levels = given["trace_level"]
        wanted.level = CLEAR if levels is None else read_level(map(json_reader.as_string, json_reader.as_array(levels)))
    if "trace_rate" in given:
        rate = given["trace_rate"]
        wanted.rate = CLEAR if rate is None else read_number("trace_rate", json_reader.as_string(rate))
    if "trace_count" in given:
        count = given["trace_count"]
        wanted.count = CLEAR if count is None else read_count(json_reader.as_string(count), gap="")
    if "log_frequency" in given:
        every = given["log_frequency"]
        wanted.log_frequency = CLEAR if every is None else read_number("log_frequency", json_reader.as_string(every))
    return wanted
