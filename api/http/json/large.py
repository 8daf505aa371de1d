"""JSON texts that are read off the event loop: what they may hold, what they cost, and in which order they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ....engine.errors import InvalidArgumentError, TriremeError
from ....engine.repository.uploads import FILE_PREFIX
from ....engine.tensor_limits import LimitError
from ...request_parameters import MAX_PARTS, MAX_TEXT_BYTES
from . import reader as json_reader
from .pieces import LargeDocument, OddTextError, Places, cut
from .reader import members_of
from .scan import PIECE_BYTES, refuse_parts, refuse_values, scan
from .strict import is_utf8, parse_strictly

T = TypeVar("T")

ON_LOOP_BYTES = 32_768
"""A text up to this size is read on the event loop, however it is made: strictly, that takes 5 ms at most."""

_BYTES_A_VALUE = 256  # a member of an object, or an empty one; two lists for an input of one number
_BYTES_A_NUMBER = 8
_BYTES_A_LENGTH = 4
_COPIES = 2  # of what is no plain data: put together, and as strings or files
_WIDER, _TEXTS = 2, 6 << 20  # a string may have four bytes a character; there are no more bytes of them than that


class LargeText:
    """A JSON text, looked at and not read yet.

    Args:
        text: up to the bound on bodies.
        max_values: ``--http-max-json-values``.
        piece_bytes: how much of it is looked at in one go.
        with_files: it may be of any length, whatever the number of its values.

    Attributes:
        cost_bytes: what its values take while it is read, beyond the text itself.

    Raises:
        InvalidArgumentError: it has too many values, outside of the data of tensors.
    """

    def __init__(
        self, text: memoryview, max_values: int, piece_bytes: int = PIECE_BYTES, *, with_files: bool = False
    ) -> None:
        self._text = text
        self._max_values = max_values
        self._found = found = scan(text, piece_bytes)
        refuse_parts(len(found.runs))
        in_runs = sum(run.values for run in found.runs)
        outside = len(text) - sum(run.stop - run.start for run in found.runs)
        self._outside = outside - sum(stop - start for start, stop in found.strings_outside())
        refuse_values(found.values, 0 if with_files else self._outside, max_values)
        self._values = found.values + in_runs
        # Data of tensors becomes numbers, or strings with their lengths in front.
        data = max(in_runs * _BYTES_A_NUMBER, in_runs * _BYTES_A_LENGTH + len(text) - outside)
        self.cost_bytes = found.values * _BYTES_A_VALUE + data + outside * _COPIES + min(outside, _TEXTS) * _WIDER

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
            return _use(cut(self._text, self._found, places, max_values=self._max_values), use)
        self._refuse_long_bytes(self._outside)
        with contextlib.suppress(OddTextError):
            return _use(cut(self._text, self._found, places, strict=True, max_values=self._max_values), use)
        self._refuse_long_bytes(len(self._text))
        longest = max((stop - start for start, stop in self._found.strings), default=0)
        if longest > MAX_TEXT_BYTES:
            raise InvalidArgumentError(
                f"the request JSON is invalid, or not arranged as a request, and with a string of {longest} bytes too "
                f"large to say where: expected at most {MAX_TEXT_BYTES}"
            )
        if self._values > self._max_values:
            raise InvalidArgumentError(
                f"the request JSON is invalid, or not arranged as a request, and with about {self._values} values too "
                f"large to say where: expected at most {self._max_values}, which --http-max-json-values sets"
            )
        return use(parse_strictly(self._text))

    def _refuse_long_bytes(self, nbytes: int) -> None:
        """Bytes that are no UTF-8 take several times their length to be read, and a string of them is made at once."""
        if nbytes > MAX_TEXT_BYTES and not is_utf8(self._text):
            raise InvalidArgumentError(
                f"the request JSON is not UTF-8, and has {nbytes} bytes besides plain tensor data, expected at most "
                f"{MAX_TEXT_BYTES}"
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
    if values > MOST_PLAIN_VALUES:
        raise LimitError(f"the request JSON has about {values} values, expected at most {MOST_PLAIN_VALUES}")
    return parse_strictly(text) if len(text) > _PLAIN_BYTES else json_reader.parse(text)


MOST_PLAIN_VALUES = 4 * MAX_PARTS
"""No call but inference has a use for more: a load request has one for each of its files."""

_PLAIN_BYTES = 1 << 18


def infer_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where infer requests have the data of tensors."""
    inputs = members_of(document).get("inputs")
    for each in inputs if type(inputs) is list else ():
        if "data" in members_of(each):
            yield each, "data"


def load_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where load requests have files."""
    parameters = members_of(members_of(document).get("parameters"))
    for name in list(parameters):
        if name.startswith(FILE_PREFIX):
            yield parameters, name


def generate_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where generate requests have them: any member may be a tensor, but for the id."""
    members = members_of(document)
    for holder in (members, members_of(members.get("parameters"))):
        for name in list(holder):
            if name != "id":
                yield holder, name


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
