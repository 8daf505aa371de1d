"""What the server tells about its models, and what of its traces can be changed, whichever protocol asks: plain values,
with members in the order of docs/reference/http.md. The messages of gRPC have the same fields. What else it tells is
`actors.facade.Management`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.config.model import ModelInput, ModelOutput
from ..engine.description import ModelDescription
from ..engine.errors import InvalidArgumentError, NotFoundError, UnavailableError, UnsupportedError
from ..engine.tracing.settings import TraceLevel

if TYPE_CHECKING:
    from ..actors.facade import Facade


def refuse_when_exiting(server: Facade) -> None:
    """Health questions are refused once the server shuts down.

    Raises:
        UnavailableError: it does.
    """
    if server.exiting:
        raise UnavailableError("Server exiting")


def model_metadata(server: Facade, name: str, version: int, *, one_version: bool) -> dict[str, Any]:
    """What a model takes and gives.

    Args:
        one_version: the client has named a version, and is not told of others.

    Raises:
        TriremeError: there is no such model, or it is not ready.
    """
    model = server.describe(name, version)
    versions = (model.version,) if one_version else model.versions
    return {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": model.config.platform_name,
        "inputs": [_tensor_metadata(model, tensor) for tensor in model.config.input],
        "outputs": [_tensor_metadata(model, tensor) for tensor in model.config.output],
    }


def _tensor_metadata(model: ModelDescription, tensor: ModelInput | ModelOutput) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(model.client_shape(tensor))}


# ---- trace settings: how they are read and shown (docs/reference/traces.md#settings) ----

_LEADING_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]*)")
_INT32_MAX = 2**31 - 1
_FIELDS = {
    "trace_level": "level",
    "trace_rate": "rate",
    "trace_count": "count",
    "log_frequency": "log_frequency",
}
"""What the protocols call the fields of a setting; read in this order."""
_DIGITS = len(str(_INT32_MAX))


def check_traced_model(server: Facade, name: str) -> None:
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


def read_trace_change(
    given: Mapping[str, Any], strings: Callable[[Any], Sequence[str]], string: Callable[[str, Any], str], gap: str
) -> dict[str, int | None]:
    """What is to be changed, as `Management.trace_settings` takes it; settings of other names are ignored.

    Args:
        given: settings by name; None clears one.
        strings, string: read the value of the level, and that of the setting of a name.
        gap: see `_read_count`.

    Raises:
        UnsupportedError: the file, which a client cannot choose, is among them.
        InvalidArgumentError: a value that cannot be.
    """
    if "trace_file" in given:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    changes: dict[str, int | None] = {}
    for name, field in _FIELDS.items():
        value = given.get(name)
        if name not in given:
            continue
        if value is None:
            changes[field] = None
        elif name == "trace_level":
            level = _read_level(strings(value))
            if level is not None:
                changes[field] = level.value
        elif name == "trace_count":
            changes[field] = _read_count(string(name, value), gap)
        else:
            changes[field] = _leading_integer(name, string(name, value), "[ 0, 4294967295 ]") & 0xFFFF_FFFF
    return changes


def _read_level(given: Sequence[str]) -> TraceLevel | None:
    """The level that is all of the names; those that name none are ignored, and None is for no name at all.

    Raises:
        InvalidArgumentError: OFF is not alone.
    """
    if "OFF" in given and len(given) > 1:
        raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
    known = [TraceLevel[name] for name in given if name in TraceLevel.__members__]
    level = TraceLevel.OFF
    for each in known:
        level |= each
    return level if known else None


def _read_count(text: str, gap: str) -> int:
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
