"""Which messages of a link are brief, so that those of a turn go as one record (`link`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MOST_BRIEF_ITEMS = 4
_MOST_BRIEF_CHARACTERS = 40
BRIEF_HEAD_BYTES = 6 * _MOST_BRIEF_ITEMS * (_MOST_BRIEF_CHARACTERS + 4)
"""At most, as JSON, together with the size of the payload and the padding behind it."""
_END_INTEGER = 2**63


def is_brief(head: Sequence[Any]) -> bool:
    """Whether a head consists of a few numbers and short plain texts."""
    if len(head) > _MOST_BRIEF_ITEMS:
        return False
    for each in head:
        if each.__class__ is int:
            if not -_END_INTEGER <= each < _END_INTEGER:
                return False
        elif each.__class__ is not str or len(each) > _MOST_BRIEF_CHARACTERS or not each.isascii():
            return False
    return True
