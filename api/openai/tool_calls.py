"""Calls of tools in what a model says, as it comes (docs/openai.md#tools).

How a model writes calls is its format: ``hermes`` (``<tool_call>{…}</tool_call>``, also Qwen's), ``mistral``
(``[TOOL_CALLS]`` before an array, or before the name of a tool and its arguments), ``llama3_json`` (the answer is
objects, with or without ``<|python_tag|>`` in front), or ``json`` (the answer is one object or an array). Rules:

 1. A call begins when its name is known, which is that of a tool of the request, and its arguments begin, which are an
    object. From then on they are handed on as they come, as the model writes them. If they do not end, the text has
    ended before: a client sees that by its reason, and that they are no JSON yet.
 2. A call of another form (arguments first, or in quotes) is handed on when all of it is there, and is valid JSON.
 3. What is no call is text, with its marks. So is one that does not begin, or is of rule 2 and does not end.
 4. White space before, between and after calls is no text, but for what is between a call and text, if text came
    before it, too.
 5. What is found does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Iterable, Iterator
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
_BLANK = r"[ \t\n\r]{0,64}"
_NAMED = re.compile(
    rf'\{{{_BLANK}"name"{_BLANK}:{_BLANK}(?P<name>"(?:[^"\\]|\\.){{1,256}}"){_BLANK},{_BLANK}'
    rf'"(?:arguments|parameters)"{_BLANK}:{_BLANK}(?=\{{)'
)
"""The beginning of a call whose arguments can be handed on as they come."""
_BETWEEN = re.compile(r"\[?[ \t\n\r,]*")
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


class CallBegin(NamedTuple):
    """A call begins: the name of a tool."""

    name: str


class CallArguments(NamedTuple):
    """More of the arguments of the call that began last."""

    text: str


CallPart = str | CallBegin | CallArguments
"""What a text is made of; a `str` is text."""


def whole_calls(parts: Iterable[CallPart]) -> list[tuple[str, str]]:
    """The calls in a text: names and arguments."""
    found: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            found.append((part.name, ""))
        elif isinstance(part, CallArguments):
            name, arguments = found[-1]
            found[-1] = name, arguments + part.text
    return found


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


@dataclass(slots=True)
class _Value:
    """The JSON after a mark: a call, or an array of calls. Places are in what is held.

    Attributes:
        end: of all of it, from its first bracket on.
        several: it is an array.
        at: where the next call is looked for.
        item: the end of the call that is under way; None between two of them.
        begun: its arguments have begun to be handed on, or to be left out.
        arguments: their end; None when they are over.
        wanted: it is handed on, and not left out.
        any: there has been a call in it.
        name: of the tool, where that stands before the JSON, which is its arguments.
    """

    end: _End
    several: bool
    at: int
    item: _End | None = None
    begun: bool = False
    arguments: _End | None = None
    wanted: bool = True
    any: bool = False
    name: str = ""

    def moved(self, count: int) -> None:
        """So many characters have gone from the beginning of what is held."""
        self.at -= count
        for each in (self.end, self.item, self.arguments):
            if each is not None:
                each.at -= count
                each.place -= count if each.place >= 0 else 0


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
        self._value: _Value | None = None
        self._closes = False  # what is held may begin with the mark after a call
        self._fresh = True  # no text yet, or not since the last call
        self._any = False
        self._spoken = False
        self._space = ""

    def take(self, text: str) -> list[CallPart]:
        """A piece of text has come; what can be handed on now."""
        self._held += text
        return list(self._parts(final=False))

    def end(self) -> list[CallPart]:
        """Nothing more comes; what was held back."""
        parts = list(self._parts(final=True))
        if self._space and not self._any:
            parts.append(self._space)
        self._space = ""
        return parts

    def _parts(self, final: bool) -> Iterator[CallPart]:
        while self._held:
            before = len(self._held), self._inside, self._closes
            if self._closes:
                self._close(final)
            elif self._inside:
                yield from self._call(final)
            else:
                yield from self._text(final)
            if before == (len(self._held), self._inside, self._closes):
                return

    # ---- text ----

    def _text(self, final: bool) -> Iterator[str]:
        found = self._opening(self._held)
        if found is not None:
            at, self._body = found
            yield from self._say(at)
            self._body -= at
            self._inside, self._value = True, None
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

    def _call(self, final: bool) -> Iterator[CallPart]:
        if self._value is None and not self._begin(final):
            if not self._inside:
                yield from self._say(self._body)
            elif final:
                yield from self._give_up(len(self._held))
            return
        value = self._value
        assert value is not None, "it has begun"
        before = -1, value.item
        while self._inside and before != (len(self._held), value.item):
            before = len(self._held), value.item
            value.end.find(self._held)
            if value.arguments is not None:
                yield from self._more_arguments(value, final)
            elif value.begun:
                self._rest_of_call(value)
            elif value.item is not None:
                yield from self._head(value, final)
            else:
                yield from self._next(value, final)

    def _begin(self, final: bool) -> bool:
        """Look for the bracket that the call's JSON begins with. If there is none, it is no call."""
        rest = self._held[self._body :]
        at = len(rest) - len(rest.lstrip())
        if at == len(rest) or at > _MOST_HEAD:
            self._inside = at <= _MOST_HEAD
            return False
        if rest[at] in "{[":
            at += self._body
            self._value = _Value(_End(at), self._held[at] == "[", at)
            return True
        head = _HEAD.match(rest[:_MOST_HEAD]) if self._form is CallFormat.MISTRAL else None
        if head is None:
            waits = self._form is CallFormat.MISTRAL and not final and "{" not in rest and len(rest) < _MOST_HEAD
            self._inside = waits
            return False
        if head["name"] not in self._names:
            self._inside = False
            return False
        at = self._body + head.end()
        self._value = _Value(_End(at), False, at, name=head["name"])
        return True

    def _next(self, value: _Value, final: bool) -> Iterator[CallPart]:
        """Between two calls."""
        if value.name:
            value.item = _End(value.at)
            yield from self._hand_on(value, value.name, value.at)
            return
        if not value.several:
            if value.any:
                self._finish(0)
            else:
                value.item = _End(value.at)
            return
        found = _BETWEEN.match(self._held, value.at)
        at = value.at if found is None else found.end()
        sign = self._held[at : at + 1]
        if sign == "{":
            value.at, value.item = at, _End(at)
        elif sign == "]" and value.any:
            self._finish(at + 1)
        elif sign or final:
            yield from self._no_call(value, final)

    def _head(self, value: _Value, final: bool) -> Iterator[CallPart]:
        """The beginning of a call is there, or more of it."""
        assert value.item is not None, "it is under way"
        end = value.item.find(self._held)
        head = _NAMED.match(self._held, value.at)
        name = None if head is None else _read(head["name"])
        if head is not None and isinstance(name, str) and name in self._names:
            yield from self._hand_on(value, name, head.end())
            return
        if end < 0:
            if final or len(self._held) > _MOST_CHARACTERS:
                yield from self._give_up(len(self._held))
            return
        call = self._valid(_read(self._held[value.at : end]))
        if call is None:
            yield from self._no_call(value, final)
            return
        name, arguments = call
        yield from self._hand_on(value, name, end)
        value.arguments = None
        if value.wanted:
            yield CallArguments(arguments)

    def _hand_on(self, value: _Value, name: str, at: int) -> Iterator[CallPart]:
        """A call begins whose arguments are there."""
        value.wanted = self._most is None or self.count < self._most
        value.any = value.begun = True
        value.arguments = _End(at)
        self._drop(at)
        self._space, self._fresh, self._any = "", True, True
        if value.wanted:
            self.count += 1
            yield CallBegin(name)

    def _more_arguments(self, value: _Value, final: bool) -> Iterator[CallPart]:
        assert value.arguments is not None, "they are under way"
        assert value.item is not None, "so is their call"
        value.item.find(self._held)
        end = value.arguments.find(self._held)
        count = end if end >= 0 else len(self._held) if final else value.arguments.at
        if count and value.wanted:
            yield CallArguments(self._held[:count])
        if end >= 0:
            value.arguments = None
        self._drop(count)

    def _rest_of_call(self, value: _Value) -> None:
        """What stands behind its arguments."""
        assert value.item is not None, "it is under way"
        end = value.item.find(self._held)
        self._drop(end if end >= 0 else value.item.at)
        if end >= 0:
            value.item, value.begun, value.at = None, False, 0
            if not value.several:
                self._finish(0)

    def _finish(self, count: int) -> None:
        """All of the JSON is over, with so many further characters."""
        self._drop(count)
        self._inside, self._value = False, None
        self._closes = self._form is CallFormat.HERMES

    def _close(self, final: bool) -> None:
        """After a call."""
        rest = self._held.lstrip()
        if rest.startswith(_CLOSING):
            self._held = rest.removeprefix(_CLOSING)
        elif _CLOSING.startswith(rest):
            if not final:
                return
            self._held = ""  # the text ended amid the mark
        self._closes = False

    def _drop(self, count: int) -> None:
        self._held = self._held[count:]
        if self._value is not None:
            self._value.moved(count)

    def _no_call(self, value: _Value, final: bool) -> Iterator[str]:
        """There is something in the JSON that is no call: it is text, to the end of the JSON."""
        if value.end.place >= 0:
            yield from self._give_up(value.end.place)
        elif final or len(self._held) > _MOST_CHARACTERS:
            yield from self._give_up(len(self._held))

    def _give_up(self, count: int) -> Iterator[str]:
        """So many characters are text."""
        self._inside, self._value = False, None
        yield from self._say(count)

    def _valid(self, value: Any) -> tuple[str, str] | None:
        """The name and the arguments, as JSON, of a call that is there as a whole; None if it is none."""
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            arguments = _read(arguments)
        elif arguments is None:
            arguments = {}
        return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _read(text: str) -> Any:
    """A value of JSON; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
