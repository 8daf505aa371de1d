"""TraceSetting: what is traced, seen and changed (docs/reference/grpc.md#settings)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...engine.errors import InvalidArgumentError
from ...engine.tracing.settings import CLEAR, Clear, SettingsChange
from ...proto.messages.inference import (
    TraceSettingRequest,
    TraceSettingResponse,
    TraceSettingResponseSettingValue,
)
from ..trace_settings import check_model, file_refused, read_count, read_level, read_number, show_settings
from .context import GrpcContext


def change(context: GrpcContext, message: TraceSettingRequest) -> TraceSettingResponse:
    """TraceSetting: all that the message asks for, or, if something in it is wrong, nothing."""
    check_model(context.server, message.model_name)
    wanted = _read_change({name: value.value for name, value in message.settings.items()})
    if wanted != SettingsChange():
        context.server.tracer.change(wanted, message.model_name)
    shown: dict[str, list[str]] = {}
    for name, value in show_settings(context.server, message.model_name):
        shown.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return TraceSettingResponse(
        settings={name: TraceSettingResponseSettingValue(value=values) for name, values in shown.items()}
    )


def _read_change(given: Mapping[str, Sequence[str]]) -> SettingsChange:
    """No value clears a setting; settings of other names are ignored.

    Raises:
        UnsupportedError: the file is among them.
        InvalidArgumentError: a value that cannot be, or several where one is expected.
    """
    if "trace_file" in given:
        raise file_refused()
    wanted = SettingsChange()
    if (levels := given.get("trace_level")) is not None:
        wanted.level = read_level(levels) if levels else CLEAR
    if (rate := _only(given, "trace_rate")) is not None:
        wanted.rate = read_number("trace_rate", rate) if rate is not CLEAR else CLEAR
    if (count := _only(given, "trace_count")) is not None:
        wanted.count = read_count(count, gap=" ") if count is not CLEAR else CLEAR
    if (every := _only(given, "log_frequency")) is not None:
        wanted.log_frequency = read_number("log_frequency", every) if every is not CLEAR else CLEAR
    return wanted


def _only(given: Mapping[str, Sequence[str]], name: str) -> str | Clear | None:
    """The only value of a setting; None if it is not among them."""
    values = given.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise InvalidArgumentError(f"expect only 1 value for '{name}'")
    return values[0] if values else CLEAR
