"""JSON texts that are read off the event loop: what they may hold, what they cost, and in which order they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...engine.errors import InvalidArgumentError, TriremeError
from ...engine.tensor_limits import LimitError
from ..request_parameters import MAX_PARTS
from . import json_reader
from .json_access import members_of
from .json_pieces import LargeDocument, OddTextError, Places, cut
from .json_scan import PIECE_BYTES, scan
from .json_strict import is_utf8, parse_strictly

T = TypeVar("T")

ON_LOOP_BYTES = 32_768
"""A text up to this size is read on the event loop, however it is made: strictly, that takes 5 ms at most."""

_BYTES_A_VALUE = 64
_BYTES_A_NUMBER = 8
_TEXT_BYTES_A_VALUE = 16


class LargeText:
    """A JSON text, looked at and not read yet.

    Args:
        text: up to the bound on bodies.
        max_values: ``--http-max-json-values``.
        piece_bytes: how much of it is read in one go.

    Attributes:
        cost_bytes: what its values take while it is read, beyond the text itself.

    Raises:
        InvalidArgumentError: it has too many values, outside of the data of tensors.
    """

    def __init__(self, text: memoryview, max_values: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._text = text
        self._max_values = max_values
        self._found = found = scan(text, piece_bytes)
        in_runs = sum(run.values for run in found.runs)
        outside = len(text) - sum(run.stop - run.start for run in found.runs)
        self._outside = outside
        refuse_values(found.values, outside, max_values)
        self._values = found.values + in_runs
        self.cost_bytes = found.values * _BYTES_A_VALUE + in_runs * _BYTES_A_NUMBER + outside

    def read(self, places: Places, use: Callable[[Any], T]) -> T:
        """What `use` makes of the document.

        Args:
            places: in which members large arrays may be left as text (`json_pieces.LargeArray`).
            use: called with the document, and perhaps again, with the document as it is read in another way.

        Raises:
            InternalError: the text is not JSON.
            InvalidArgumentError: it is nested too deeply, or has too many values.
            TriremeError: what `use` raises.
        """
        with contextlib.suppress(OddTextError):
            return _use(cut(self._text, self._found, places), use)
        self._refuse_long_bytes(self._outside)
        with contextlib.suppress(OddTextError):
            return _use(cut(self._text, self._found, places, strict=True), use)
        self._refuse_long_bytes(len(self._text))
        if self._values > self._max_values:
            raise InvalidArgumentError(
                f"the request JSON is invalid, or not arranged as a request, and with about {self._values} values too "
                f"large to say where: expected at most {self._max_values}, which --http-max-json-values sets"
            )
        return use(parse_strictly(self._text))

    def _refuse_long_bytes(self, nbytes: int) -> None:
        """Bytes that are no UTF-8 take several times their length to be read, and a string of them is made at once."""
        if nbytes > self._max_values and not is_utf8(self._text):
            raise InvalidArgumentError(
                f"the request JSON is not UTF-8, and has {nbytes} bytes besides plain tensor data, expected at most "
                f"{self._max_values}, one for each value that --http-max-json-values allows"
            )


def read_text(text: memoryview, max_values: int) -> Any:
    """The value of a text of any size, by plain Python values.

    Raises:
        InternalError: it is not JSON.
        InvalidArgumentError: it is nested too deeply, or has too many values.
    """
    if len(text) <= PIECE_BYTES:
        if len(text) > max_values:
            refuse_values(scan(text).values, len(text), max_values)
        return json_reader.parse(text)
    found = scan(text)
    values = found.values + sum(run.values for run in found.runs)
    refuse_values(values, 0, max_values)  # files may come with it, of any length
    if values > _MOST_PLAIN_VALUES:
        raise LimitError(f"the request JSON has about {values} values, expected at most {_MOST_PLAIN_VALUES}")
    return parse_strictly(text) if len(text) > _PLAIN_BYTES else json_reader.parse(text)


_MOST_PLAIN_VALUES = 4 * MAX_PARTS
"""No call but inference has a use for more: a load request has one for each of its files."""

_PLAIN_BYTES = 1 << 20


def refuse_parts(count: int) -> None:
    """Check how many inputs, outputs and parameters a request has, each of which becomes several objects.

    Raises:
        LimitError: more than `MAX_PARTS`.
    """
    if count > MAX_PARTS:
        raise LimitError(f"request has more than {MAX_PARTS} inputs, outputs and parameters, which is the most")


def infer_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where infer requests have the data of tensors."""
    inputs = members_of(document).get("inputs")
    for each in inputs if type(inputs) is list else ():
        if "data" in members_of(each):
            yield each, "data"


def generate_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where generate requests have them: any member may be a tensor."""
    members = members_of(document)
    for holder in (members, members_of(members.get("parameters"))):
        for name in list(holder):
            yield holder, name


def refuse_values(count: int, nbytes: int, most: int) -> None:
    """Check how many values a text has, and how long they are.

    Raises:
        InvalidArgumentError: too many, or too long: for each value that there may be, a text may have 16 bytes.
    """
    if count > most:
        raise InvalidArgumentError(
            f"the request JSON has about {count} values besides plain tensor data, expected at most {most}, which "
            "--http-max-json-values sets"
        )
    if nbytes > max(most * _TEXT_BYTES_A_VALUE, PIECE_BYTES):
        raise InvalidArgumentError(
            f"the request JSON has {nbytes} bytes besides plain tensor data, expected at most "
            f"{most * _TEXT_BYTES_A_VALUE}, 16 for each value that --http-max-json-values allows"
        )


def _use(document: LargeDocument, use: Callable[[Any], T]) -> T:
    """What is wrong with the text counts before what is wrong with what it says, as if it had been read first."""
    try:
        made = use(document.value)
    except LimitError:
        raise
    except TriremeError:
        document.check()
        raise
    document.check()
    return made
