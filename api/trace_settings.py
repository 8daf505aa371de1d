"""What both protocols agree on about trace settings: how they are read and shown
(docs/reference/traces.md#settings)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..engine.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from ..engine.tracing.settings import TraceLevel, TraceMode

if TYPE_CHECKING:
    from ..actors import InferenceServer

_LEADING_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]*)")
_INT32_MAX = 2**31 - 1
_DIGITS = len(str(_INT32_MAX))


def check_model(server: InferenceServer, name: str) -> None:
    """Trace settings are those of a ready model, or, without a name, of the server.

    Raises:
        InvalidArgumentError: there is no such model.
        UnavailableError: the server could not start.
    """
    if not name:
        return
    try:
        server.describe(name)
    except (InvalidArgumentError, NotFoundError):
        raise InvalidArgumentError(f"Request for unknown model : {name}") from None


def file_refused() -> UnsupportedError:
    """Why a client cannot say where traces go."""
    return UnsupportedError("trace file location can not be updated through network protocol")


def read_level(names: Iterable[str]) -> TraceLevel | None:
    """The level that is all of `names`; those that name none are ignored, and None is for no name at all.

    Raises:
        InvalidArgumentError: OFF is not alone.
    """
    given = list(names)
    if "OFF" in given and len(given) > 1:
        raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
    known = [TraceLevel[name] for name in given if name in TraceLevel.__members__]
    level = TraceLevel.OFF
    for each in known:
        level |= each
    return level if known else None


def read_number(name: str, text: str) -> int:
    """``trace_rate`` or ``log_frequency``: the integer that `text` begins with, as 32 bits without a sign.

    Raises:
        InvalidArgumentError: it begins with none, or with one that a signed integer of 32 bits cannot hold.
    """
    return _leading_integer(name, text, "[ 0, 4294967295 ]") & 0xFFFF_FFFF


def read_count(text: str, gap: str) -> int:
    """``trace_count``.

    Args:
        gap: what stands before the value in one of the texts, in which the protocols differ.

    Raises:
        InvalidArgumentError: no integer, or less than -1.
    """
    count = _leading_integer("trace_count", text, "[ -1, 2147483647 ]")
    if count < -1:
        raise InvalidArgumentError(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{gap}{count}")
    return count


def _leading_integer(name: str, text: str, bounds: str) -> int:
    found = _LEADING_INTEGER.match(text)
    digits = "" if found is None else found[2]
    if found is None or not (digits or found[0].endswith("0")):
        raise InvalidArgumentError(f"Unable to parse '{name}', got: {text}")
    value = int(digits[: _DIGITS + 1] or "0")  # int() refuses thousands of digits, and so many are out of range anyway
    if found[1] == "-":
        value = -value
    if not -_INT32_MAX - 1 <= value <= _INT32_MAX:
        raise InvalidArgumentError(f"Unable to parse '{name}', value is out of range {bounds}, got: {text}")
    return value


def show_settings(server: InferenceServer, model_name: str) -> Iterator[tuple[str, str | list[str]]]:
    """The settings that hold for a model, or for the server, in the order of the protocols; a name may come twice."""
    tracer = server.tracer
    config = tracer.config
    setting = tracer.setting(model_name)
    yield "trace_level", setting.level.names()
    yield "trace_rate", str(setting.rate)
    yield "trace_count", str(setting.count)
    if config.mode is TraceMode.TRITON:
        yield "log_frequency", str(setting.log_frequency)
        yield "trace_file", config.file
    yield "trace_mode", config.mode.value
    if config.mode is TraceMode.OPENTELEMETRY:
        yield from config.export.given
