"""Tools that a request offers to the model, and the calls in its messages (docs/openai.md#tools)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import FieldError
from .fields import BodyFields, wrong_type


@dataclass(frozen=True, slots=True)
class AskedTools:
    """What a request offers.

    Attributes:
        offered: as the client gave them; none where it wants no calls.
        most: calls of an answer; None for any number.
        forced: names of those of which one has to be called; empty if none has to.
    """

    offered: tuple[Mapping[str, Any], ...] = ()
    most: int | None = None
    forced: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Of those that may be called."""
        return self.forced or frozenset(each["function"]["name"] for each in self.offered)


NO_TOOLS = AskedTools()


def read_tools(fields: BodyFields) -> AskedTools:
    """The tools of a request. FieldError for what is none."""
    tools = fields.array("tools") or []
    for number, each in enumerate(tools):
        members = BodyFields(each, f"tools[{number}]")
        function = members.fields("function")
        if function is None:
            members.required("function")
        else:
            function.required("name")
            function.text("name")
            function.fields("parameters")
    several = fields.get("parallel_tool_calls") is None or fields.flag("parallel_tool_calls")
    asked = AskedTools(tuple(tools), None if several else 1)
    choice = fields.get("tool_choice")
    match choice:
        case None | "auto":
            return asked
        case "none":
            return NO_TOOLS
        case "required":
            if not tools:
                raise FieldError(
                    "tool_choice", "Invalid 'tool_choice': there are no 'tools' of which one can be called."
                )
            return replace(asked, forced=asked.names)
        case {"type": "function", "function": {"name": str(name)}}:
            if name not in asked.names:
                raise FieldError(
                    "tool_choice", f"Invalid 'tool_choice': expected the name of a tool, but got '{name}'."
                )
            return replace(asked, most=1, forced=frozenset((name,)))
    raise FieldError(
        "tool_choice", "Invalid 'tool_choice': expected 'none', 'auto', 'required', or a function with its name."
    )


def read_calls(fields: BodyFields) -> list[dict[str, Any]] | None:
    """The calls in an assistant's message, with their arguments as objects, as templates expect them. FieldError for
    what is none."""
    calls = fields.array("tool_calls")
    if calls is None:
        return None
    found = []
    for number, each in enumerate(calls):
        members = BodyFields(each, fields.param(f"tool_calls[{number}]"))
        function = members.fields("function")
        if function is None:
            members.required("function")
            continue
        function.required("name")
        function.text("name")
        found.append({**each, "function": {**each["function"], "arguments": _read_arguments(function)}})
    return found


def _read_arguments(function: BodyFields) -> dict[str, Any]:
    param = function.param("arguments")
    text = function.text("arguments")
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise FieldError(param, f"Invalid '{param}': expected an object as JSON.") from None
    if not isinstance(value, dict):
        raise wrong_type(param, "an object as JSON", value)
    return value
