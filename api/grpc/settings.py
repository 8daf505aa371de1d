"""TraceSetting and LogSettings: what is traced and what is logged, and how, seen and changed
(docs/reference/grpc.md#settings)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.errors import InvalidArgumentError
from ...proto.messages import inference as pb
from ..logging import FORMATS, Log, log_file_refused, log_unreachable, verbose_level
from ..trace_settings import check_model, read_change, show_settings
from .context import GrpcContext


def change_trace(context: GrpcContext, message: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
    """TraceSetting: all that the message asks for, or, if something in it is wrong, nothing."""
    check_model(context.server, message.model_name)
    given = {name: setting.value or None for name, setting in message.settings.items()}  # no value clears
    changes = read_change(given, list, _only, gap=" ")
    if changes:
        context.server.tracer.change(message.model_name, **changes)
    shown: dict[str, list[str]] = {}
    for name, value in show_settings(context.server, message.model_name):
        shown.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return pb.TraceSettingResponse(
        settings={name: pb.TraceSettingResponseSettingValue(value=values) for name, values in shown.items()}
    )


def _only(name: str, values: Sequence[str]) -> str:
    if len(values) > 1:
        raise InvalidArgumentError(f"expect only 1 value for '{name}'")
    return values[0]


_SETTINGS = (
    ("log_file", "file", "string_param", "string"),
    ("log_info", "info", "bool_param", "boolean"),
    ("log_warning", "warning", "bool_param", "boolean"),
    ("log_error", "error", "bool_param", "boolean"),
    ("log_verbose_level", "verbose", "uint32_param", "int32"),
    ("log_format", "format", "string_param", "string"),
)
"""Each setting, the field of `LogSettings` that it is, the choice that its value makes, and what errors call that."""


def change_log(context: GrpcContext, message: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
    """LogSettings: all that the message asks for, or, if something in it is wrong, nothing."""
    log = context.log
    if log is None:
        raise log_unreachable()
    log.change(**_changes(message.settings))
    return _answer(log)


def _answer(log: Log) -> pb.LogSettingsResponse:
    now = log.settings
    value = pb.LogSettingsResponseSettingValue
    shown = {name: value(**{choice: getattr(now, field)}) for name, field, choice, _ in _SETTINGS}
    shown["log_verbose_level"] = value(uint32_param=max(0, now.verbose))
    return pb.LogSettingsResponse(settings=shown)


def _changes(given: Mapping[str, pb.LogSettingsRequestSettingValue]) -> dict[str, Any]:
    """Fields of `LogSettings`; settings of other names are ignored.

    Raises:
        UnsupportedError: the file is among them.
        InvalidArgumentError: a value of the wrong type, or no such format.
    """
    if "log_file" in given:
        raise log_file_refused()
    changes: dict[str, Any] = {}
    for name, field, choice, kind in _SETTINGS:
        if name in given:
            value = getattr(given[name], choice)
            if value is None:
                raise InvalidArgumentError(f"expect {kind} for '{name}'")
            changes[field] = verbose_level(value) if field == "verbose" else value
    if "format" in changes and changes["format"] not in FORMATS:
        raise InvalidArgumentError(f"invalid argument for log_format, got: {changes['format']}")
    return changes
