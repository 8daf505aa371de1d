"""Calls of tools in what a model says, as it comes (docs/openai.md#tools).

How a model writes calls is its format: ``hermes`` (``<tool_call>{…}</tool_call>``, also Qwen's), ``mistral``
(``[TOOL_CALLS]`` before an array, or before the name of a tool and its arguments), ``llama3_json`` (the answer is
objects, with or without ``<|python_tag|>`` in front), or ``json`` (the answer is one object or an array). Rules:

 1. A call is handed on when all of it is there, and is valid: JSON, with the name of a tool of the request, and an
    object as its arguments.
 2. What is no valid call is text, with its marks. So is one that does not end.
 3. White space before, between and after calls is no text, but for what is between a call and text, if text came
    before it, too.
 4. What is found does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

FORMAT_PARAMETER = "openai_tool_calls"
"""The model parameter that names the format; without it the chat template shows it (`shown_format`)."""

_MOST_CHARACTERS = 1 << 20
"""Of a call; longer ones are text."""

_MOST_HEAD = 256
"""Characters between a mark and the arguments."""

_CLOSING = "</tool_call>"
_HEAD = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)", re.ASCII)
_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')


class CallFormat(enum.Enum):
    """How a model writes calls."""

    HERMES = "hermes"
    MISTRAL = "mistral"
    LLAMA3_JSON = "llama3_json"
    JSON = "json"


_MARKS = {
    CallFormat.HERMES: "<tool_call>",
    CallFormat.MISTRAL: "[TOOL_CALLS]",
    CallFormat.LLAMA3_JSON: "<|python_tag|>",
}
SPECIAL_MARKS = frozenset({CallFormat.MISTRAL, CallFormat.LLAMA3_JSON})
"""Formats whose marks are special tokens."""

_BARE = {CallFormat.LLAMA3_JSON: "{", CallFormat.JSON: "{["}
"""What a call begins with that has no mark: at the beginning of the text, or after another call."""


class ToolCall(NamedTuple):
    """A call: the name of a tool, and an object as JSON."""

    name: str
    arguments: str


def shown_format(template: str) -> CallFormat | None:
    """The format that a chat template has the model write, by its mark; None if there is none."""
    return next((each for each, mark in _MARKS.items() if mark in template), None)


@dataclass(slots=True)
class _End:
    """Where a value of JSON ends that begins with a bracket: what has been looked at of it so far."""

    at: int
    depth: int = 0
    in_string: bool = False
    place: int = -1

    def find(self, text: str) -> int:
        """The place after it; -1 if it is not there yet. `text` is the same as before, and longer."""
        while self.place < 0 and self.at < len(text):
            found = (_IN_STRING if self.in_string else _OUTSIDE).search(text, self.at)
            if found is None:
                self.at = len(text)
                break
            sign = found[0]
            if sign == "\\":
                if found.end() == len(text):
                    self.at = found.start()
                    break
                self.at = found.end() + 1
                continue
            self.at = found.end()
            if sign == '"':
                self.in_string = not self.in_string
                continue
            self.depth += 1 if sign in "{[" else -1
            if self.depth <= 0:
                self.place = self.at
        return self.place


class ToolCallFinder:
    """See the module.

    Args:
        names: of the tools that there are.
        most: calls that are handed on; further ones are left out.

    Attributes:
        count: of calls that were handed on.
    """

    def __init__(self, form: CallFormat, names: Collection[str], most: int | None = None) -> None:
        self.count = 0
        self._form = form
        self._names = names
        self._most = most
        self._mark = _MARKS.get(form, "")
        self._bare = _BARE.get(form, "")
        self._held = ""
        self._inside = False  # what is held begins with a mark, or with what may be before a call without one
        self._body = 0  # where what comes after the mark begins in it
        self._begins = 0  # the JSON
        self._end: _End | None = None
        self._name = ""  # before the arguments (mistral)
        self._fresh = True  # no text yet, or not since the last call
        self._any = False
        self._spoken = False
        self._space = ""

    def take(self, text: str) -> list[str | ToolCall]:
        """A piece of text has come; what can be handed on now."""
        self._held += text
        return list(self._parts(final=False))

    def end(self) -> list[str | ToolCall]:
        """Nothing more comes; what was held back."""
        found = list(self._parts(final=True))
        if self._space and not self._any:
            found.append(self._space)
        self._space = ""
        return found

    def _parts(self, final: bool) -> Iterator[str | ToolCall]:
        while self._held:
            before = len(self._held), self._inside
            if self._inside:
                yield from self._call(final)
            else:
                yield from self._text(final)
            if before == (len(self._held), self._inside):
                return

    # ---- text ----

    def _text(self, final: bool) -> Iterator[str]:
        found = self._opening(self._held)
        if found is not None:
            at, self._body = found
            yield from self._say(at)
            self._body -= at
            self._inside, self._end, self._name = True, None, ""
            return
        yield from self._say(len(self._held) - (0 if final else self._undecided(self._held)))

    def _opening(self, held: str) -> tuple[int, int] | None:
        """Where a call begins, and what it says after its mark."""
        if self._fresh and self._bare:
            between = self._between(held)
            if between < len(held) and held[between] in self._bare:
                return 0, between
        at = held.find(self._mark) if self._mark else -1
        return (at, at + len(self._mark)) if at >= 0 else None

    def _between(self, held: str) -> int:
        """The length of what may be before a call without a mark: white space, and a sign after another call."""
        at = len(held) - len(held.lstrip())
        if self._any and held[at : at + 1] in (";", ","):
            rest = held[at + 1 :]
            at += 1 + len(rest) - len(rest.lstrip())
        return at

    def _undecided(self, held: str) -> int:
        """How many characters at the end may be the beginning of a call."""
        if self._fresh and self._bare and self._between(held) == len(held):
            return len(held)
        for count in range(min(len(self._mark) - 1, len(held)), 0, -1):
            if self._mark.startswith(held[-count:]):
                return count
        return 0

    def _say(self, count: int) -> Iterator[str]:
        """Hand on so many characters, but for white space at their end, which may be before a call (rule 3)."""
        text, self._held = self._space + self._held[:count], self._held[count:]
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            yield said.lstrip() if self._any and not self._spoken else said
            self._fresh, self._spoken = False, True

    # ---- calls ----

    def _call(self, final: bool) -> Iterator[str | ToolCall]:
        if self._end is None and not self._begin(final):
            if not self._inside:
                yield from self._say(self._body)
            elif final:
                yield from self._give_up()
            return
        end = self._end.find(self._held) if self._end is not None else -1
        if end >= 0:
            begin, end = self._begins, self._closed(end, final)
            if end >= 0:
                calls = self._calls(self._held[begin:], self._name)
                yield from self._hand_on(calls, end)
                return
        if final or len(self._held) > _MOST_CHARACTERS:
            yield from self._give_up()

    def _begin(self, final: bool) -> bool:
        """Look for the bracket that the call's JSON begins with. If there is none, it is no call."""
        rest = self._held[self._body :]
        at = len(rest) - len(rest.lstrip())
        if at == len(rest) or at > _MOST_HEAD:
            self._inside = at <= _MOST_HEAD
            return False
        if rest[at] not in "{[":
            head = _HEAD.match(rest[:_MOST_HEAD]) if self._form is CallFormat.MISTRAL else None
            if head is None:
                waits = self._form is CallFormat.MISTRAL and not final and "{" not in rest and len(rest) < _MOST_HEAD
                self._inside = waits
                return False
            at, self._name = head.end(), head["name"]
        self._begins = self._body + at
        self._end = _End(self._begins)
        return True

    def _closed(self, end: int, final: bool) -> int:
        """Where the call ends whose JSON ends there; -1 if that is not known yet."""
        if self._form is not CallFormat.HERMES:
            return end
        rest = self._held[end:].lstrip()
        if rest.startswith(_CLOSING):
            return len(self._held) - len(rest) + len(_CLOSING)
        return -1 if _CLOSING.startswith(rest) and not final else end

    def _hand_on(self, calls: Sequence[ToolCall], end: int) -> Iterator[str | ToolCall]:
        self._inside = False
        if not calls:
            yield from self._say(end)
            return
        self._held = self._held[end:]
        self._space, self._fresh, self._any = "", True, True
        for call in calls:
            if self._most is None or self.count < self._most:
                self.count += 1
                yield call

    def _give_up(self) -> Iterator[str]:
        """The call does not end: all of it is text."""
        self._inside = False
        yield from self._say(len(self._held))

    def _calls(self, text: str, name: str) -> Sequence[ToolCall]:
        """Those of a value of JSON at the beginning of a text; none if one is not valid."""
        try:
            value, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return ()
        if name:
            value = {"name": name, "arguments": value}
        found = [self._valid(each) for each in (value if isinstance(value, list) else [value])]
        calls = [each for each in found if each is not None]
        return calls if len(calls) == len(found) else ()

    def _valid(self, value: Any) -> ToolCall | None:
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return None
        if arguments is None:
            arguments = {}
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
