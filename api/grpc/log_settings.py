"""LogSettings: what is logged, and how, seen and changed (docs/reference/grpc.md#settings)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.errors import InvalidArgumentError
from ...proto.messages.inference import (
    LogSettingsRequest,
    LogSettingsRequestSettingValue,
    LogSettingsResponse,
    LogSettingsResponseSettingValue,
)
from ..logging import FORMATS, Log, log_file_refused, log_unreachable, verbose_level
from .context import GrpcContext

_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
"""Settings that are on or off, and the fields of `LogSettings` that they are."""


def change(context: GrpcContext, message: LogSettingsRequest) -> LogSettingsResponse:
    """LogSettings: all that the message asks for, or, if something in it is wrong, nothing."""
    log = context.log
    if log is None:
        raise log_unreachable()
    log.change(**_changes(message.settings))
    return _answer(log)


def _answer(log: Log) -> LogSettingsResponse:
    now = log.settings
    value = LogSettingsResponseSettingValue
    return LogSettingsResponse(
        settings={
            "log_file": value(string_param=now.file),
            "log_info": value(bool_param=now.info),
            "log_warning": value(bool_param=now.warning),
            "log_error": value(bool_param=now.error),
            "log_verbose_level": value(uint32_param=max(0, now.verbose)),
            "log_format": value(string_param=now.format),
        }
    )


def _changes(given: Mapping[str, LogSettingsRequestSettingValue]) -> dict[str, Any]:
    """Fields of `LogSettings`; settings of other names are ignored.

    Raises:
        UnsupportedError: the file is among them.
        InvalidArgumentError: a value of the wrong type, or no such format.
    """
    if "log_file" in given:
        raise log_file_refused()
    changes: dict[str, Any] = {}
    for name, field in _SWITCHES.items():
        if name in given:
            changes[field] = _expect("boolean", name, given[name].bool_param)
    if (level := given.get("log_verbose_level")) is not None:
        changes["verbose"] = verbose_level(_expect("int32", "log_verbose_level", level.uint32_param))
    if (form := given.get("log_format")) is not None:
        changes["format"] = _expect("string", "log_format", form.string_param)
        if changes["format"] not in FORMATS:
            raise InvalidArgumentError(f"invalid argument for log_format, got: {changes['format']}")
    return changes


def _expect(kind: str, name: str, value: Any) -> Any:
    """`value`, unless it is None: then the message has none of that kind."""
    if value is None:
        raise InvalidArgumentError(f"expect {kind} for '{name}'")
    return value
