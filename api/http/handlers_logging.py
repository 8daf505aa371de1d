"""What is logged, and how: seen and changed (docs/reference/logs.md#settings)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...engine.errors import UnavailableError
from ..logging import FORMATS, Log, log_file_refused, log_unreachable, verbose_level
from . import json_reader, json_writer
from .exchange import JSON, Answer, Context, HttpRequest
from .json_access import members_of
from .large_bodies import read_json


async def settings(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/logging``."""
    return _answer(_log(context))


async def change(context: Context, request: HttpRequest) -> Answer:
    """``POST /v2/logging``: all that the body asks for, or, if something in it is wrong, nothing."""
    log = _log(context)
    log.change(**_changes(await read_json(context, request)))
    return _answer(log)


def _log(context: Context) -> Log:
    if context.log is None:
        raise log_unreachable()
    return context.log


def _answer(log: Log) -> Answer:
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
    """Fields of `LogSettings`. Null leaves a setting as it is; members of other names are ignored.

    Raises:
        UnsupportedError: the file is among them.
        InternalError: a value of the wrong type.
        UnavailableError: no such format.
    """
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
