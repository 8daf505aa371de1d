"""Requests that need a key in their headers (docs/reference/http.md#restricted-apis)."""

from __future__ import annotations

from collections.abc import Sequence

from ..restrictions import Restriction
from .asgi import Headers
from .errors import restricted
from .exchange import Answer


class RestrictedApis:
    """A guard: it looks at every request as soon as its route is known, before its method and its body."""

    __slots__ = ("_needed",)

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        self._needed = {
            category: (
                restriction.key.lower().encode("utf-8", "surrogateescape"),
                restriction,
                restricted(restriction.key),
            )
            for restriction in restrictions
            for category in restriction.categories
        }

    def guards(self, category: str) -> bool:
        """Whether requests of a category need a key."""
        return category in self._needed

    def refusal(self, category: str, headers: Headers) -> Answer | None:
        """What to answer to a request that lacks the key or has it with another value; None if it may pass.

        Args:
            category: of the request's route.
            headers: lower-case names; of several headers with one name, the first counts.
        """
        needed = self._needed.get(category)
        if needed is None:
            return None
        key, restriction, answer = needed
        given = next((given for name, given in headers if name == key), None)
        return None if restriction.admits(given) else answer

    def __repr__(self) -> str:
        return f"<RestrictedApis: {', '.join(self._needed)}>"
