"""How flag values are read: one function a kind of value, each from the text to the value or to a `BadValueError`.

The texts of the errors are tritonserver's (docs/reference/command-line.md#grammar,
docs/reference/command-line.md#flags), because scripts that start servers look for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.errors import InvalidArgumentError
from ...engine.front_end_count import MOST_FRONT_ENDS
from ...engine.scheduling.rate_limiter import ExplicitResource
from ..request_parameters import RESTRICTABLE, Restriction, compile_forward_pattern

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_INTEGER = re.compile(r"\s*([+-]?[0-9]+)", re.ASCII)
_MEMORY = re.compile(r"([0-9]{1,19})([KMGT]?)", re.ASCII | re.IGNORECASE)
_FLOAT = re.compile(r"(?ai)\s*([+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|nan))")


class BadValueError(Exception):
    """A flag's value was refused: why; which part of the option is to blame, appended to its name (``level`` of
    ``--trace-config``); and whether the reason says itself what is expected."""

    def __init__(self, message: str, part: str = "", *, complete: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.part = part
        self.complete = complete


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: how the usage text shows it, how it is read, and what errors say behind their reason that it
    takes; empty if their reasons all say that."""

    placeholder: str
    read: Callable[[str], Any]
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """``name,setting=value``; `name` is empty where it was left out and may be."""

    name: str
    setting: str
    value: str


def read_bool(text: str) -> bool:
    match text.lower():
        case "true" | "on" | "1":
            return True
        case "false" | "off" | "0":
            return False
    raise BadValueError(f"invalid value for bool option: {text}")


def _read_integer(text: str, largest: int) -> int:
    """The leading number of `text`, as C's ``strtol`` finds it; what follows it is ignored."""
    found = _INTEGER.match(text)
    if found is None:
        raise BadValueError(f"Invalid option value. Got {text}")
    digits = found[1]
    if len(digits) > 40 or not -largest - 1 <= int(digits) <= largest:
        raise BadValueError(f"Provided option value is out of bound. Got {text}")
    return int(digits)


def read_int(text: str) -> int:
    return _read_integer(text, INT32_MAX)


def read_int64(text: str) -> int:
    return _read_integer(text, INT64_MAX)


def read_float(text: str) -> float:
    found = _FLOAT.match(text)
    if found is None:
        raise BadValueError(f"Invalid option value. Got {text}")
    value = float(found[1])
    if math.isinf(value) and "i" not in found[1].lower():
        raise BadValueError(f"Provided option value is out of bound. Got {text}")
    return value


def read_verbosity(text: str) -> int:
    """A level, or a bool in words: true is level 1."""
    match text.lower():
        case "true":
            return 1
        case "false":
            return 0
    return read_int(text)


def read_pattern(text: str) -> str:
    """A regular expression of RE2."""
    try:
        compile_forward_pattern(text)
    except InvalidArgumentError as error:
        raise BadValueError(error.message) from error
    return text


def number(least: float, most: float = INT32_MAX, *, or_zero: bool = False, message: str = "") -> Kind:
    """A number from `least` to `most`, whole ones unless `most` is infinite; with `or_zero` also 0, which turns
    something off. `message` is for what is outside, and says what is possible."""
    read_number = read_float if math.isinf(most) else read_int if most <= INT32_MAX else read_int64
    upwards = most in (INT32_MAX, INT64_MAX, math.inf)
    expected = f"{'0 or ' if or_zero else ''}{f'at least {least}' if upwards else f'from {least} to {most}'}"

    def read(text: str) -> float:
        value = read_number(text)
        if not (least <= value <= most or (or_zero and value == 0)):  # NaN is not, either
            if message:
                raise BadValueError(f"{message} Got {text}", complete=True)
            raise BadValueError(f"Provided option value is out of bound. Got {text}")
        return value

    placeholder, what = ("<float>", "a number") if math.isinf(most) else ("<integer>", "an integer")
    return Kind(placeholder, read, f"{what}: {expected}")


def _read_memory(text: str) -> int:
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise BadValueError(f"Invalid option value. Got {text}")
    value = int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")
    if not 1 <= value <= INT64_MAX:
        raise BadValueError(f"Provided option value is out of bound. Got {text}")
    return value


MEMORY = Kind("<bytes>", _read_memory, "bytes: at least 1; with K, M, G or T so many KiB, MiB, GiB or TiB")
"""Bytes, of a flag that tritonserver does not have: nothing may follow them but one letter."""


def seconds(least: float = 0, *, or_zero: bool = False) -> Kind:
    return number(least, math.inf, or_zero=or_zero)


def not_empty(option: str) -> Kind:
    def read(text: str) -> str:
        if not text:
            raise BadValueError(f"Error: empty argument for {option}")
        return text

    return Kind("<string>", read)


def one_of(choices: tuple[str, ...], message: str, *, any_case: bool = False) -> Kind:
    def read(text: str) -> str:
        choice = text.lower() if any_case else text
        if choice not in choices:
            raise BadValueError(f"{message}. Got {text}")
        return choice

    return Kind("<string>", read, f"one of: {', '.join(choices)}")


def pair(separator: str, first: Kind, second: Kind) -> Kind:
    def read(text: str) -> tuple[Any, Any]:
        left, found, right = text.partition(separator)
        if not found:
            raise BadValueError(
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format "
                f"<first>{separator}<second>. Found: {text}"
            )
        return read_part(first, left), read_part(second, right)

    return Kind(f"<{first.placeholder}{separator}{second.placeholder}>", read)


def read_part(kind: Kind, text: str) -> Any:
    """A part of a value; its reason says what it takes, for the flag as a whole takes something else."""
    try:
        return kind.read(text)
    except BadValueError as error:
        expected = f"; expected {kind.expected}" if kind.expected and not error.complete else ""
        raise BadValueError(f"{error.message}{expected}", complete=True) from error


def named_setting(option: str, what: str, *, name_needed: bool) -> Kind:
    """``<name>,<setting>=<value>``, for ``--backend-config`` and its like; the name, which errors call `what`, may be
    left out for some."""
    form = f"<{what}>,<setting>=<value>"
    unnamed = f"No {what.removesuffix(' name')} specified. {option} option format is {form}"
    if not name_needed:
        unnamed += " or <setting>=<value>"

    def read(text: str) -> Setting:
        left, found, value = text.partition("=")
        name, comma, setting = left.partition(",")
        if not comma:
            name, setting = "", left
        wrong_form = BadValueError(f"{option} option format is '{form}'. Got {text}")
        if not found:
            raise wrong_form
        if not name and (comma or name_needed):
            raise BadValueError(f"{unnamed}. Got {text}")
        if not setting or not value:
            raise wrong_form
        return Setting(name, setting, value)

    return Kind("<<string>,<string>=<string>>", read)


def read_metrics_setting(text: str) -> Setting:
    setting, _, value = text.partition("=")
    if not setting or not value or "," in setting:
        raise BadValueError(f"--metrics-config option format is <setting>=<value>. Got {text}")
    return Setting("", setting, value)


def read_quantile(text: str) -> float:
    """``<quantile>:<error>``; the error must be a number, but nothing depends on it."""
    quantile, found, error = text.partition(":")
    if not found:
        raise BadValueError(f"Invalid option: [{text}]. No ':' delimiter found. Expected format is <quantile>:<error>")
    try:
        read_float(error)
        return read_float(quantile)
    except BadValueError:
        raise BadValueError(f"Invalid option: [{text}]. Error: stod") from None


def read_host_policy(text: str) -> Setting:
    policy = named_setting("--host-policy", "policy name", name_needed=True).read(text)
    if policy.setting not in ("numa-node", "cpu-cores"):
        raise BadValueError(
            f"Unsupported host policy setting '{policy.setting}' is specified, supported settings are 'numa-node', "
            "'cpu-cores'"
        )
    return policy


def read_rate_limit_resource(text: str) -> ExplicitResource:
    """``<name>:<count>[:<device>]``; device -1 stands for every device."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not parts[0]:
        raise BadValueError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        )
    count = read_part(number(0), parts[1])
    device = read_part(number(-1), parts[2]) if len(parts) == 3 else -1
    return ExplicitResource(parts[0], count, None if device == -1 else device)


_FILE_MARK = "@/"
"""A value that begins so names a file, so that secrets need not stand on a command line, which every user can see."""


def restriction(option: str, word: str) -> Kind:
    """``<category,...>:<key>=<value>``; a value ``@/<path>`` is read from that file. The option calls a category
    `word`."""

    def read(text: str) -> Restriction:
        names, _, rest = text.partition(":")
        key, _, value = rest.partition("=")
        if not names or not key or not value:
            raise BadValueError(f"{option} option format is '<config name>:<setting>=<value>'. Got {text}")
        categories = tuple(names.split(","))
        for category in categories:
            if category not in RESTRICTABLE:
                raise BadValueError(f"unknown restricted {word} '{category}' ")
            if categories.count(category) > 1:
                raise BadValueError(f"restricted {word} '{category}' can not be specified in multiple config groups")
        if value.startswith(_FILE_MARK):
            value = _read_secret(option, Path(value[1:]))
        return Restriction(categories, key, value)

    return Kind("<<string>:<string>=<string>>", read)


def _read_secret(option: str, path: Path) -> str:
    """The only line of a file, as it stands there."""
    try:
        text = path.read_text("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise BadValueError(f"{option} cannot read its value from {path}: {error.strerror}") from None
    if not text or "\n" in text:
        raise BadValueError(f"{option} expects one line, the value, in {path}")
    return text


def list_of(pattern: re.Pattern[str], option: str, form: str) -> Kind:
    """Values of a form with commas in between, in lower case."""

    def read(text: str) -> tuple[str, ...]:
        values = tuple(value.strip().lower() for value in text.split(",") if value.strip())
        for value in values:
            if not pattern.fullmatch(value):
                raise BadValueError(f"{option} option format is '{form},...'. Got {value}")
        return values

    return Kind("<string,...>", read)


MOST_POLL_US = 1000


def number_or_auto(most: int) -> Kind:
    """A number from 0 to `most`; None for what suits the machine (``auto``)."""

    def read(text: str) -> int | None:
        if text.lower() == "auto":
            return None
        count = read_int(text)
        if not 0 <= count <= most:
            raise BadValueError(f"must be auto, or from 0 to {most}. Got {text}")
        return count

    return Kind("<integer>|auto", read, f"auto, or an integer from 0 to {most}")


STRING = Kind("<string>", str)
BOOLEAN = Kind("<boolean>", read_bool, "true, on, 1, false, off or 0")
INTEGER = Kind("<integer>", read_int, "an integer of 32 bits")
INTEGER64 = Kind("<integer>", read_int64, "an integer of 64 bits")
FLOAT = Kind("<float>", read_float, "a number")
PORT = number(0, 65535)
PATTERN = Kind("<string>", read_pattern)
FRONT_ENDS = number_or_auto(MOST_FRONT_ENDS)
POLL_US = number_or_auto(MOST_POLL_US)
VERBOSITY = Kind("<integer>", read_verbosity, "a level (an integer), true or false")
