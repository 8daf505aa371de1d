"""What is wrong with a configuration's text, in the words of protobuf's C++ parser, which tools look for.

Python's parser finds the same mistakes at the same places, but puts them differently. Integers are translated; other
mistakes are told in Python's words, without the line that they quote.
"""

from __future__ import annotations

import re

from google.protobuf.text_format import ParseError

_PLACE = re.compile(r"\A\d+:\d+ : (?:'.*': (?=[A-Z]))?", re.DOTALL)
_NO_INTEGER = re.compile(r"Couldn't parse integer: (.*)", re.DOTALL)
_OUT_OF_RANGE = re.compile(r"Value out of range: (-?)(\d+)")
_INT32_MAX = 2**31 - 1


def parse_error_text(error: ParseError) -> str:
    """``<line>:<column>: <what>``."""
    what = _PLACE.sub("", str(error))
    if found := _NO_INTEGER.fullmatch(what):
        what = f"Expected integer, got: {found[1]}"
    elif found := _OUT_OF_RANGE.fullmatch(what):
        what = _out_of_range(bool(found[1]), found[2])
    line, column = error.GetLine(), error.GetColumn()
    return what if line is None else f"{line}:{column}: {what}"


def _out_of_range(negative: bool, digits: str) -> str:
    """A small negative number is refused by unsigned fields alone, in which the sign is what is not expected."""
    if negative and int(digits[:11]) <= _INT32_MAX:
        return "Expected integer, got: -"
    return f"Integer out of range ({digits})"
