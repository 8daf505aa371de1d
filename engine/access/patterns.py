"""Patterns of names: of models, and of who presents a token or a certificate.

As file names in a shell: `*` is any run of characters, `?` any single one, `[abc]` and `[!abc]` one of a set, or
none of it. Case counts. The time that a match takes is bounded, whatever the pattern: names longer than
`LONGEST_NAME` match none, and the regular expression does not go back over what a `*` has taken.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

LONGEST_NAME = 1024
LONGEST_PATTERN = 256


class NamePatterns:
    """Whether a name matches one of several patterns.

    Args:
        patterns: that `pattern_fault` finds nothing wrong with.
    """

    __slots__ = ("_match", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(dict.fromkeys(patterns))
        matches = [re.compile(fnmatch.translate(each)).match for each in self.patterns]
        self._match = matches

    def __contains__(self, name: str) -> bool:
        return len(name) <= LONGEST_NAME and any(match(name) for match in self._match)


def pattern_fault(pattern: str) -> str | None:
    """Why no name could match a pattern, or None."""
    if not pattern:
        return "it is empty"
    if len(pattern) > LONGEST_PATTERN:
        return f"it has {len(pattern)} characters, and {LONGEST_PATTERN} are the most"
    if not pattern.isprintable():
        return "it has characters that cannot be printed"
    without_sets = re.sub(r"\[!?\]?[^\]]*\]", "", pattern)
    if "[" in without_sets:
        return "a [ has no ]"
    return None
