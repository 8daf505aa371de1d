"""Tokens become text as they come.

Rules:
 1. What a token adds to a text depends on those before it (a blank between words; a character whose bytes are in
    several tokens). So the last few are decoded again with it, and what they give beyond what they gave before is new.
 2. As long as the text ends amid a character nothing is new; at most for `_LONGEST_CHARACTER` tokens, because it may
    never end.
 3. A text ends where a stop string begins in it, however that is split into tokens. What may be the beginning of one is
    held back until it is not, or until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_LONGEST_CHARACTER = 4
"""Tokens that a character may take: its bytes in UTF-8."""

_AMID = "\N{REPLACEMENT CHARACTER}"


class GeneratedText:
    """The text of one generation.

    Args:
        decode: the text of tokens.
        stops: strings that end it; none of them empty.

    Attributes:
        stopped: a stop string has come.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decode = decode
        self._stops = stops
        self._before: list[int] = []  # the last tokens whose text is known
        self._open: list[int] = []  # those after them
        self._held = ""

    def add(self, token: int) -> str:
        """The next token has been drawn; the text that is certain now. None after the end."""
        if self.stopped:
            return ""
        self._open.append(token)
        return self._release() if self._take(certain=False) else ""

    def end(self) -> str:
        """No token follows; the rest of the text."""
        self._take(certain=True)
        held, self._held = self._held, ""
        return held

    def _take(self, certain: bool) -> bool:
        """Decode the open tokens (rules 1 and 2); whether there was anything new."""
        if not self._open or self.stopped:
            return False
        text = self._decode(self._before + self._open)
        if text.endswith(_AMID) and len(self._open) < _LONGEST_CHARACTER and not certain:
            return False
        self._held += text[len(self._decode(self._before)) if self._before else 0 :]
        self._before, self._open = self._open, []
        self._stop()
        return True

    def _stop(self) -> None:
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            self._held = self._held[: min(places)]

    def _release(self) -> str:
        """What of the text is certain (rule 3)."""
        kept = 0 if self.stopped else max((_overlap(self._held, stop) for stop in self._stops), default=0)
        end = len(self._held) - kept
        text, self._held = self._held[:end], self._held[end:]
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning of a stop string, which is not in it whole."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
