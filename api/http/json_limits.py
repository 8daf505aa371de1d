"""What the JSON of a request may hold, besides the data of tensors: each part of it becomes an object of its own."""

from __future__ import annotations

from ...engine.tensor_limits import LimitError
from ..request_parameters import MAX_PARTS, MAX_TEXT_BYTES

DEFAULT_MAX_VALUES = 1 << 17
"""``--http-max-json-values``, unless it is given: so many take up to 32 MiB."""

_TEXT_BYTES_A_VALUE = 32
_LEAST_TEXT_BYTES = 65_536
_MOST_STRING_BYTES = 2 * MAX_TEXT_BYTES


def refuse_values(count: int, nbytes: int, most: int) -> None:
    """Check how many values a text has, and how long they are.

    Raises:
        LimitError: too many, or too long: for each value that there may be, a text may have 32 bytes.
    """
    if count > most:
        raise LimitError(
            f"the request JSON has about {count} values besides plain tensor data, expected at most {most}, which "
            "--http-max-json-values sets"
        )
    if nbytes > max(most * _TEXT_BYTES_A_VALUE, _LEAST_TEXT_BYTES):
        raise LimitError(
            f"the request JSON has {nbytes} bytes besides plain tensor data, expected at most "
            f"{most * _TEXT_BYTES_A_VALUE}, {_TEXT_BYTES_A_VALUE} for each value that --http-max-json-values allows"
        )


def refuse_strings(*sizes: int) -> None:
    """Check the lengths of long strings, each of which is made by one call.

    Raises:
        LimitError: one is too long, or all together are.
    """
    longest, total = max(sizes, default=0), sum(sizes)
    if longest > MAX_TEXT_BYTES:
        raise LimitError(
            f"a string of the request JSON has {longest} bytes, expected at most {MAX_TEXT_BYTES} besides the data of "
            "tensors and files"
        )
    if total > _MOST_STRING_BYTES:
        raise LimitError(
            f"the request JSON has strings of {total} bytes together, expected at most {_MOST_STRING_BYTES} besides "
            "the data of tensors and files"
        )


def refuse_parts(count: int) -> None:
    """Check how many inputs, outputs and parameters a request has, each of which becomes several objects.

    Raises:
        LimitError: more than `MAX_PARTS`.
    """
    if count > MAX_PARTS:
        raise LimitError(f"request has more than {MAX_PARTS} inputs, outputs and parameters, which is the most")
