"""What an answer has to be in which a tool has to be called (docs/openai.md#tools).

It is a structural tag (vLLM's form for texts that are JSON between marks) in the model's own format for calls: the name
of a tool, and arguments by the schema of that tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .errors import FieldError
from .formats import AskedFormat
from .models import TextModel
from .tool_calls import FORMAT_PARAMETER, CallFormat
from .tools import AskedTools

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def forced_format(tools: AskedTools, model: TextModel, form: CallFormat | None) -> AskedFormat:
    """What the answer has to be.

    Args:
        form: how the model writes calls; None if that is not known.

    Raises:
        FieldError: the model cannot be made to call a tool, or not these.
    """
    name = model.description.name
    if form is None:
        raise _unsupported(
            f"it is not known how the model '{name}' writes calls: its chat template shows none of the formats that "
            f"are known, and its configuration has no parameter '{FORMAT_PARAMETER}'"
        )
    if not model.formats:
        raise _unsupported(f"the model '{name}' cannot be told what its text has to be")
    template = model.description.chat.text if model.description.chat is not None else ""
    bare = form is CallFormat.MISTRAL and "[ARGS]" in template
    calls = []
    for number, tool in enumerate(tools.offered):
        function = tool["function"]
        if function["name"] in tools.forced:
            path = f"tools[{number}].function"
            begin, end = _around(function["name"], form, bare, path)
            content = {"type": "json_schema", "json_schema": _arguments(function, path)}
            calls.append({"type": "tag", "begin": begin, "content": content, "end": end})
    tag = {"type": "structural_tag", "format": _all_calls(calls, form, bare, several=tools.most != 1)}
    return AskedFormat("tools", json.dumps({"structural_tag": tag}))


def _around(name: str, form: CallFormat, bare: bool, path: str) -> tuple[str, str]:
    """What stands before and behind the arguments of a call."""
    if bare:
        if not _NAME.fullmatch(name):
            raise FieldError(f"{path}.name", f"Invalid '{path}.name': expected letters, digits, '_', '-' and '.'.")
        return f"[TOOL_CALLS]{name}[ARGS]", ""
    member = "parameters" if form is CallFormat.LLAMA3_JSON else "arguments"
    begin, end = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{member}": ', "}"
    return (f"<tool_call>\n{begin}", f"{end}\n</tool_call>") if form is CallFormat.HERMES else (begin, end)


def _all_calls(calls: list[dict[str, Any]], form: CallFormat, bare: bool, several: bool) -> dict[str, Any]:
    """One call, or several of them."""
    between = {CallFormat.HERMES: "\n", CallFormat.LLAMA3_JSON: "; "}.get(form, ", ")
    found: dict[str, Any] = {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": "" if bare else between,
        "at_least_one": True,
        "stop_after_first": not several,
    }
    if bare or form in (CallFormat.HERMES, CallFormat.LLAMA3_JSON) or (form is CallFormat.JSON and not several):
        return found
    first, last = ("[TOOL_CALLS][" if form is CallFormat.MISTRAL else "["), "]"
    constants = [{"type": "const_string", "value": value} for value in (first, last)]
    return {"type": "sequence", "elements": [constants[0], found, constants[1]]}


def _arguments(function: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The schema of a call's arguments, which are an object."""
    given = function.get("parameters")
    if given is None:
        return _NO_ARGUMENTS
    if given.get("type", "object") != "object":
        param = f"{path}.parameters"
        raise FieldError(param, f"Invalid '{param}': expected a schema for an object, as arguments have names.")
    return {"type": "object", **given}


def _unsupported(why: str) -> FieldError:
    return FieldError("tool_choice", f"Unsupported parameter: 'tool_choice': {why}.", "unsupported_parameter")
