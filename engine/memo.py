"""What is remembered of what clients repeat: a dictionary that does not grow beyond its bound."""

from __future__ import annotations

from typing import TypeVar

V = TypeVar("V")


class Memo(dict[bytes | str, V]):
    """Results by the bytes, or the text, that they were made from.

    Rules:
     1. Looking something up is `dict.get`: it costs what that costs, and changes nothing.
     2. When the memo is full, the entry that was remembered first makes room for a new one. So a client that never
        repeats itself makes another client's entry go at most once in `limit` requests.
     3. Long keys are not remembered.

    Args:
        limit: most entries.
        max_key_bytes: of a key that is remembered; of texts, characters.
    """

    __slots__ = ("limit", "max_key_bytes")

    def __init__(self, limit: int, max_key_bytes: int) -> None:
        super().__init__()
        self.limit = limit
        self.max_key_bytes = max_key_bytes

    def remember(self, key: bytes | str, value: V) -> None:
        """Keep `value` under `key`, in place of what may be there."""
        if len(key) > self.max_key_bytes or not self.limit:
            return
        if len(self) >= self.limit and key not in self:
            del self[next(iter(self))]
        self[key] = value
