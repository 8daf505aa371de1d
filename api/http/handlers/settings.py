"""What is logged and what is traced: seen and changed (docs/reference/logs.md#settings,
docs/reference/traces.md#over-http).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine.errors import UnavailableError
from ....engine.tracing.settings import CLEAR, SettingsChange, TraceLevel
from ...logging import FORMATS, Log, log_file_refused, log_unreachable, verbose_level
from ...trace_settings import check_model, file_refused, read_count, read_level, read_number, show_settings
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
    wanted = _read_change(await read_json(context, request))
    if wanted != SettingsChange():
        context.server.tracer.change(wanted, name)
    return _trace_answer(context, name)


def _trace_answer(context: Context, model_name: str) -> Answer:
    # Not by way of a dictionary: a name may come twice.
    shown = show_settings(context.server, model_name)
    members = (b"%b:%b" % (json_writer.string(name), json_writer.dumps(value)) for name, value in shown)
    return Answer(200, JSON, b"{%b}" % b",".join(members))


def _read_change(body: Any) -> SettingsChange:
    """Null clears a setting; members of other names are ignored."""
    given = members_of(body)
    if "trace_file" in given:
        raise file_refused()
    changes = {field: read(given[name]) for name, field, read in _TRACE_SETTINGS if given.get(name) is not None}
    cleared = {field: CLEAR for name, field, _ in _TRACE_SETTINGS if name in given and given[name] is None}
    return SettingsChange(**changes, **cleared)


def _read_traced(levels: Any) -> TraceLevel | None:
    return read_level(map(json_reader.as_string, json_reader.as_array(levels)))


_TRACE_SETTINGS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("trace_level", "level", _read_traced),
    ("trace_rate", "rate", lambda value: read_number("trace_rate", json_reader.as_string(value))),
    ("trace_count", "count", lambda value: read_count(json_reader.as_string(value), gap="")),
    ("log_frequency", "log_frequency", lambda value: read_number("log_frequency", json_reader.as_string(value))),
)
"""Member, field of `SettingsChange`, reader; read in this order."""
