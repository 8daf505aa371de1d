"""The flags about traces, and what they come to (docs/reference/command-line.md#flags, docs/reference/traces.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

from ...engine.tracing.settings import UNLIMITED, ExportOptions, TraceConfig, TraceLevel, TraceMode
from ...engine.tracing.tracer import NO_TENSORS
from .flags import ParsedFlags, UsageError
from .values import INTEGER, BadValueError, Kind, Setting, named_setting, number, read_int, read_part


def read_trace_level(text: str) -> str:
    """The protocols' name of a level."""
    match text.lower():
        case "off" | "false":
            return "OFF"
        case "timestamps" | "true" | "on" | "min" | "max":
            return "TIMESTAMPS"
        case "tensors":
            return "TENSORS"
    raise BadValueError(f"invalid value for trace level option: {text}")


def _read_trace_mode(text: str) -> str:
    if text not in ("triton", "opentelemetry"):
        raise BadValueError(
            f'invalid value for trace mode option: {text}. Available options are "triton" and "opentelemetry"'
        )
    return text


_AT_LEAST_ONE = number(1)
_EXPORT_NUMBERS = {
    "bsp_max_export_batch_size": "max_export_batch_size",
    "bsp_schedule_delay": "schedule_delay_ms",
    "bsp_max_queue_size": "max_queue_size",
}
"""Settings, and the fields of `ExportOptions`."""
_OPENTELEMETRY = "opentelemetry"
_SETTINGS: Mapping[tuple[str, str], Kind] = {
    ("", "level"): Kind("<string>", read_trace_level),
    ("", "mode"): Kind("<string>", _read_trace_mode),
    ("", "rate"): INTEGER,
    ("", "count"): INTEGER,
    ("triton", "log-frequency"): INTEGER,
    **dict.fromkeys(((_OPENTELEMETRY, name) for name in _EXPORT_NUMBERS), _AT_LEAST_ONE),
}


_TEXTS = (("triton", "file"), (_OPENTELEMETRY, "url"), (_OPENTELEMETRY, "resource"))
"""The settings whose values may be anything."""
_TRACE_SETTING = named_setting("--trace-config", "trace mode", name_needed=False)


def read_trace_setting(text: str) -> Setting:
    """``[<mode>,]<setting>=<value>``; the values of the settings that are known are checked too."""
    given = _TRACE_SETTING.read(text)
    if given.name:
        _read_trace_mode(given.name)
    kind = _SETTINGS.get((given.name, given.setting))
    if kind is not None:
        try:
            read_part(kind, given.value)
        except BadValueError as error:
            raise BadValueError(error.message, part=text.partition("=")[0]) from None
    return given


def trace_config(flags: ParsedFlags, environment: Mapping[str, str]) -> TraceConfig:
    """What the flags, and the environment in place of some, say about traces."""
    given: tuple[Setting, ...] = flags["trace-config"]
    last = {(each.name, each.setting): each.value for each in given}
    levels = [read_trace_level(each.value) for each in given if (each.name, each.setting) == ("", "level")]

    def whole(name: str, setting: str, deprecated: str) -> int:
        value = last.get((name, setting))
        return flags[deprecated] if value is None else read_int(value)

    for_export = [(each.setting, each.value) for each in given if each.name == _OPENTELEMETRY]
    return TraceConfig(
        mode=TraceMode(last.get(("", "mode"), "triton")),
        level=_level(levels or flags["trace-level"]),
        rate=whole("", "rate", "trace-rate") & 0xFFFF_FFFF,
        count=max(UNLIMITED, whole("", "count", "trace-count")),
        log_frequency=whole("triton", "log-frequency", "trace-log-frequency") & 0xFFFF_FFFF,
        file=last.get(("triton", "file")) or flags["trace-file"],
        export=_export_options(for_export, environment),
    )


def _level(names: Iterable[str]) -> TraceLevel:
    """All of them together, but nothing if OFF is among them."""
    level = TraceLevel.OFF
    for name in names:
        if name == "OFF":
            return TraceLevel.OFF
        level |= TraceLevel[name]
    return level


def _export_options(given: list[tuple[str, str]], environment: Mapping[str, str]) -> ExportOptions:
    defaults = ExportOptions()
    last = dict(given)
    numbers = {name: getattr(defaults, field) for name, field in _EXPORT_NUMBERS.items()}
    for name in numbers:
        with contextlib.suppress(BadValueError):  # from the environment: as good as not there
            numbers[name] = _AT_LEAST_ONE.read(last.get(name, environment.get(f"OTEL_{name.upper()}", "")))
    resource = dict(defaults.resource)
    resource.update(_environment_resource(environment))
    for name, value in given:
        if name == "resource":
            key, _, text = value.partition("=")
            resource[key] = text
    return ExportOptions(
        url=last.get("url", defaults.url),
        resource=tuple(resource.items()),
        max_queue_size=numbers["bsp_max_queue_size"],
        schedule_delay_ms=numbers["bsp_schedule_delay"],
        max_export_batch_size=min(numbers["bsp_max_export_batch_size"], numbers["bsp_max_queue_size"]),
        given=(*given, *((name, str(number)) for name, number in numbers.items() if name not in last)),
    )


def _environment_resource(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """``OTEL_RESOURCE_ATTRIBUTES``: pairs parted by commas, their values percent-encoded."""
    for member in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, found, value = member.partition("=")
        if found and key.strip():
            yield key.strip(), unquote(value.strip())


def check_trace_settings(flags: ParsedFlags) -> None:
    """UsageError for a ``--trace-config`` that there is not."""
    for each in flags["trace-config"]:
        if (each.name, each.setting) not in (*_SETTINGS, *_TEXTS):
            shown = f"{each.name},{each.setting}" if each.name else each.setting
            raise UsageError(f"Error: --trace-config {shown} cannot be used: there is no such setting.")


def trace_warnings(flags: ParsedFlags, config: TraceConfig) -> Iterator[str]:
    """What is asked for, and will not be."""
    exporting = config.mode is TraceMode.OPENTELEMETRY
    if config.level and not exporting and not config.file:
        yield "requests are not traced: --trace-config triton,file=<path> is missing"
    if exporting and config.level & TraceLevel.TENSORS:
        yield NO_TENSORS
