"""One choice of an answer, as its text comes: what of it can be handed on, and when it is over.

Rules:
 1. Text that may be the beginning of a stop string is held back until it is known not to be one.
 2. A stop string, and what comes after it, is not handed on; the choice is over then ("stop").
 3. The choice is over ("length") when the model has given as many pieces as the request allows; where the model itself
    counts tokens, it says so.
 4. What the model says of its end counts, unless 2 or 3 came first; without a word of the model's it is "stop".
 5. A character of several bytes is handed on when all of them are there.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

_NOT_YET = frozenset({"", "None", "none", "null"})
_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


class TextChoice:
    """See the module.

    Args:
        stops: strings that end the text; none where the model is told of them.
        most_pieces: that the model may give; None where the model counts tokens itself.

    Attributes:
        finish_reason: None while more may come.
        input_tokens, output_tokens: as far as the model tells; without it, pieces count as tokens of the output.
    """

    def __init__(self, stops: Sequence[str] = (), most_pieces: int | None = None) -> None:
        self.finish_reason: str | None = None
        self.input_tokens = 0
        self.output_tokens = 0
        self._told = False
        self._stops = stops
        self._most_pieces = most_pieces
        self._pieces = 0
        self._held = ""
        self._said = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def take(self, piece: bytes) -> str:
        """A piece has come; what can be handed on now."""
        if self.finish_reason is not None:
            return ""
        self._pieces += bool(piece)
        text = self._held + self._decoder.decode(piece)
        self._held = ""
        at = min((found for stop in self._stops if (found := text.find(stop)) >= 0), default=-1)
        if at >= 0:
            self.finish_reason = "stop"
            return text[:at]
        if self._most_pieces is not None and self._pieces >= self._most_pieces:
            self.finish_reason = "length"
            return text
        kept = self._beginning(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def _beginning(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0

    def told(self, reason: str) -> None:
        """The model has said why it ends, or that it does not yet."""
        if reason not in _NOT_YET:
            self._said = _REASONS.get(reason, "stop")

    def count(self, input_tokens: int | None, output_tokens: int | None) -> None:
        """The model has said how many tokens its input has, and this piece of its output."""
        if input_tokens is not None:
            self.input_tokens = input_tokens
        if output_tokens is not None:
            self._told = True
            self.output_tokens += output_tokens

    def end(self) -> str:
        """Nothing more comes; what was held back."""
        rest = ""
        if self.finish_reason is None:
            rest = self._held + self._decoder.decode(b"", final=True)
            self.finish_reason = self._said or "stop"
        self._held = ""
        if not self._told:
            self.output_tokens = self._pieces
        return rest
