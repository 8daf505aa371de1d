"""What is logged and what is traced: seen and changed (docs/reference/logs.md#settings,
docs/reference/traces.md#over-http).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine.errors import UnavailableError
from ...logging import FORMATS, Log, log_file_refused, log_unreachable, verbose_level
from ...trace_settings import check_model, read_change, show_settings
from ..bodies import read_json
from ..exchange import JSON, Answer, Context, HttpRequest
from ..json import reader as json_reader
from ..json import writer as json_writer
from ..json.reader import members_of


async def log_settings(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/logging``."""
    return _log_answer(_log(context))


async def change_log(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/logging``: all that the body asks for, or, if something in it is wrong, nothing."""
    log = _log(context)
    log.change(**_changes(await read_json(context, request)))
    return _log_answer(log)


def _log(context: Context) -> Log:
    if context.log is None:
        raise log_unreachable()
    return context.log


def _log_answer(log: Log) -> Answer:
    now = log.settings
    body = {
        "log_file": now.file,
        "log_info": now.info,
        "log_warning": now.warning,
        "log_error": now.error,
        "log_verbose_level": max(0, now.verbose),
        "log_format": now.format,
    }
    return Answer(200, JSON, json_writer.dumps(body))


def _changes(body: Any) -> dict[str, Any]:
    """Fields of `LogSettings`. Null leaves a setting as it is; members of other names are ignored."""
    given = {name: value for name, value in members_of(body).items() if value is not None}
    if "log_file" in given:
        raise log_file_refused()
    return {field: read(given[name]) for name, field, read in _SETTINGS if name in given}


def _read_level(value: Any) -> int:
    return verbose_level(json_reader.as_unsigned(value))


def _read_format(value: Any) -> str:
    name = json_reader.as_string(value)
    if name not in FORMATS:
        raise UnavailableError(f"invalid argument for --log_format, got: {name}")
    return name


_SETTINGS: tuple[tuple[str, str, Callable[[Any], object]], ...] = (
    ("log_info", "info", json_reader.as_bool),
    ("log_warning", "warning", json_reader.as_bool),
    ("log_error", "error", json_reader.as_bool),
    ("log_verbose_level", "verbose", _read_level),
    ("log_format", "format", _read_format),
)
"""Member, field of `LogSettings`, reader; read in this order."""

# ---- traces ----


async def trace_settings(context: Context, request: HttpRequest) -> Answer:
    """``GET …/trace/setting``."""
    check_model(context.server, request.match.name)
    return _trace_answer(context, request.match.name)


async def change_trace(context: Context, request: HttpRequest) -> Answer:
    """``POST …/trace/setting``: all that the body asks for, or, if something in it is wrong, nothing."""
    name = request.match.name
    check_model(context.server, name)
    given = members_of(await read_json(context, request))
    changes = read_change(given, _read_levels, lambda _, value: json_reader.as_string(value), gap="")
    if changes:
        context.server.tracer.change(name, **changes)
    return _trace_answer(context, name)


def _trace_answer(context: Context, model_name: str) -> Answer:
    # Not by way of a dictionary: a name may come twice.
    shown = show_settings(context.server, model_name)
    members = (b"%b:%b" % (json_writer.string(name), json_writer.dumps(value)) for name, value in shown)
    return Answer(200, JSON, b"{%b}" % b",".join(members))


def _read_levels(value: Any) -> list[str]:
    return [json_reader.as_string(level) for level in json_reader.as_array(value)]
