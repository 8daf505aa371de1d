"""The members of a request's JSON object by type; what is wrong is said with the member's name. A member that is null
is as one that is not there, and members of other names are ignored, as OpenAI does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .errors import FieldError

_NAMES = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "an array", dict: "an object"}


def wrong_type(param: str, expected: str, value: object) -> FieldError:
    """The error that says so."""
    found = "null" if value is None else _NAMES.get(type(value), "something else")
    return FieldError(
        param, f"Invalid type for '{param}': expected {expected}, but got {found} instead.", "invalid_type"
    )


class BodyFields:
    """An object in a request.

    Args:
        value: as it was read.
        path: of the object in the body; empty for the body.

    Raises:
        FieldError: it is no object; so do all methods, for a member that is not what they read.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong_type(path or "body", "an object", value)
        self._members: Mapping[str, Any] = value
        self._path = f"{path}." if path else ""

    def param(self, name: str) -> str:
        """The path of a member."""
        return self._path + name

    def get(self, name: str) -> Any:
        """A member of any type; None if it is not there."""
        return self._members.get(name)

    def required(self, name: str) -> Any:
        """A member that has to be there."""
        value = self.get(name)
        if value is None:
            param = self.param(name)
            raise FieldError(param, f"Missing required parameter: '{param}'.", "missing_required_parameter")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(self.param(name), "a string", value)
        return value

    def flag(self, name: str) -> bool:
        """A boolean; false if it is not there."""
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise wrong_type(self.param(name), "a boolean", value)
        return value

    def integer(self, name: str, least: int, most: int) -> int | None:
        """An integer within bounds."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and not least <= value <= most:
            return self._within(name, value, least, most)  # too long to be read as an integer
        if type(value) is not int:
            raise wrong_type(self.param(name), "an integer", value)
        return self._within(name, value, least, most)

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float | None:
        """A number within bounds."""
        value = self.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value):
            raise wrong_type(self.param(name), "a finite number", value)
        return self._within(name, value, least, most)

    def _within(self, name: str, value: Any, least: float, most: float) -> Any:
        if not least <= value <= most:
            param = self.param(name)
            raise FieldError(param, f"Invalid '{param}': expected a value from {least} to {most}, but got {value}.")
        return value

    def array(self, name: str) -> list[Any] | None:
        """An array."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.param(name), "an array", value)
        return value

    def texts(self, name: str, most: int) -> list[str] | None:
        """A string, or an array of at most so many strings."""
        value = self.get(name)
        if isinstance(value, str):
            return [value]
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong_type(self.param(name), "a string or an array of strings", value)
        for number, each in enumerate(value):
            if not isinstance(each, str):
                raise wrong_type(f"{self.param(name)}[{number}]", "a string", each)
        if not 1 <= len(value) <= most:
            param = self.param(name)
            raise FieldError(param, f"Invalid '{param}': expected 1 to {most} strings, but got {len(value)}.")
        return value

    def texts_or_tokens(self, name: str, most: int) -> list[str | list[int]]:
        """A string, an array of integers, or an array of at most so many of either."""
        value, param = self.get(name), self.param(name)
        if value == []:
            raise FieldError(param, f"Invalid '{param}': expected 1 to {most} strings or arrays of tokens, but got 0.")
        if not isinstance(value, list) or isinstance(value[0], str):
            return list(self.texts(name, most) or ())
        several = isinstance(value[0], list)
        rows: list[Any] = value if several else [value]
        for place, row in enumerate(rows):
            path = f"{param}[{place}]" if several else param
            if not isinstance(row, list):
                raise wrong_type(path, "an array of integers", row)
            for number, each in enumerate(row):
                if type(each) is not int:
                    raise wrong_type(f"{path}[{number}]", "an integer", each)
                if not 0 <= each < 1 << 63:
                    raise FieldError(path, f"Invalid '{path}[{number}]': expected the number of a token, got {each}.")
        if len(rows) > most:
            raise FieldError(param, f"Invalid '{param}': expected 1 to {most} arrays of tokens, but got {len(rows)}.")
        return rows

    def fields(self, name: str) -> BodyFields | None:
        """An object."""
        value = self.get(name)
        return None if value is None else BodyFields(value, self.param(name))
