"""What to ask the API server of Kubernetes next, to know the slices of a Service at any time: decisions, without I/O.

Rules:
 1. First a list, then a watch from the version of the list. A watch that ends as it should is followed by another one,
    from the latest version that was told.
 2. If the API server does not know that version any more (410, as an answer or as an event), or tells what cannot be
    read, it is a list again.
 3. Whatever fails is tried again after a pause. It grows from `_LEAST_S` to `_MOST_S`, doubled each time; a random half
    of it is left out, so that gateways do not come back all at once. A watch that ends within `_SHORT_S` without having
    told anything counts as a failure; a 410 does not, once between two watches that end as they should.
 4. What is known stays as it is meanwhile. It is worth a line in the log when it begins, one for each other status, and
    one when it is over. A watch that was accepted and is lost is worth one only if the next one fails as well.

State     Event                       Next
--------  --------------------------  ---------------------------
list      listed                      watch, at once
list      failed                      list, after a pause
watch     ended                       watch, at once or as rule 3
watch     failed                      watch, after a pause
watch     410                         list, at once or as rule 3
watch     told what cannot be read    list, after a pause
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from random import Random
from typing import Any

from .endpoint_slices import EndpointSlices, SliceError

_LEAST_S = 0.5
_MOST_S = 30.0
_SHORT_S = 1.0
_MOST_DOUBLED = 16
_GONE = 410


class ApiServerError(Exception):
    """The API server has refused, or could not be asked, or does not answer as it should.

    Attributes:
        text: what was wrong.
        status: of HTTP; 0 if there was no answer.
        anew: what is known may not be what there is.
    """

    def __init__(self, text: str, status: int = 0, anew: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.anew = anew or status == _GONE


class SliceStep(enum.Enum):
    """What is to be asked."""

    LIST = "list"
    WATCH = "watch"


class SliceWatch:
    """See above.

    Attributes:
        step: what is to be asked next.
        pause_s: how long before that.
    """

    def __init__(self, slices: EndpointSlices, chance: Random) -> None:
        self.slices = slices
        self.step = SliceStep.LIST
        self.pause_s = 0.0
        self._chance = chance
        self._failures = 0
        self._accepted = self._told = self._relisted = False
        self._trouble: int | None = None

    def listed(self, document: Mapping[str, Any]) -> bool:
        """A list has come; whether trouble is over.

        Raises:
            ApiServerError: it is none.
        """
        try:
            self.slices.listed(document)
        except SliceError as error:
            raise ApiServerError(f"what it answers is no list of EndpointSlices: {error}") from error
        self.step, self.pause_s = SliceStep.WATCH, 0.0
        return self._is_over()

    def accepted(self) -> bool:
        """A watch has begun; whether trouble is over."""
        self._accepted, self._told = True, False
        return self._is_over()

    def told(self, event: Mapping[str, Any]) -> bool:
        """A watch has told something; whether the endpoints may have changed.

        Raises:
            ApiServerError: the watch has failed.
        """
        kind, document = event.get("type"), event.get("object")
        if not isinstance(document, dict):
            raise ApiServerError("what it tells is no event", anew=True)
        if kind == "ERROR":
            code = document.get("code")
            raise ApiServerError(str(document.get("message") or "an error"), code if isinstance(code, int) else 0, True)
        try:
            changed = self.slices.changed(str(kind), document)
        except SliceError as error:
            raise ApiServerError(f"what it tells is no event of an EndpointSlice: {error}", anew=True) from error
        self._told, self._failures = True, 0
        return changed

    def ended(self, lasted_s: float) -> None:
        """A watch has ended as it should, after so long."""
        self._accepted = False
        if self._told or lasted_s >= _SHORT_S:
            self._failures, self.pause_s, self._relisted = 0, 0.0, False
        else:
            self._pause()

    def failed(self, error: ApiServerError) -> bool:
        """What was asked has failed; whether that is worth a line."""
        was_accepted, self._accepted = self._accepted, False
        if error.anew:
            self.step = SliceStep.LIST
        is_first = not (self._failures or self._relisted)
        self._pause()
        if error.status == _GONE and is_first:
            self.pause_s, self._relisted = 0.0, True
            return False
        if was_accepted and not error.status and not error.anew:
            return False
        before, self._trouble = self._trouble, error.status
        return before != error.status

    def _is_over(self) -> bool:
        trouble, self._trouble = self._trouble, None
        return trouble is not None

    def _pause(self) -> None:
        longest_s = min(_LEAST_S * 2**self._failures, _MOST_S)
        self._failures = min(self._failures + 1, _MOST_DOUBLED)
        self.pause_s = longest_s * (1 - self._chance.random() / 2)
