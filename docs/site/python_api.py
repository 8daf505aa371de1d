"""The page of the Python API, from the docstrings of what `import trireme` has; `reference.py` writes it."""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from typing import Any

import trireme

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):\s*(.*)$")
_ITEM = re.compile(r"^([\w*`, .]+): (.*)$", re.DOTALL)
_QUOTED = re.compile(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'")
"""An annotation that is a text."""
_EMPTY = inspect.Parameter.empty


def python_page(made: str) -> Iterator[str]:
    """The lines of the page.

    Args:
        made: a sentence that says what makes it.
    """
    yield "# Python"
    yield ""
    yield f"{made} It has what `import trireme` brings; [docs/python.md](../python.md) shows how it is used."
    yield "`async with` gives the same as `with`, with methods to be awaited."
    named = {name: getattr(trireme, name) for name in trireme.__all__ if not name.startswith("_")}
    errors = {name: each for name, each in named.items() if inspect.isclass(each) and issubclass(each, Exception)}
    callables = {name: each for name, each in named.items() if name not in errors and _is_documented(each)}
    for name, each in callables.items():
        yield from _described(f"trireme.{name}", each)
        for beside in _beside(each):
            yield from _described(beside.__name__, beside)
    rest = sorted(named.keys() - errors.keys() - callables.keys())
    yield from ("", "## Data types", "", ", ".join(f"`{name}`" for name in rest) + ": of the tensors of a model's")
    yield "annotations. In brackets stand dimensions, as in `FP32[8, 8]`; `-1`, `None` and `...` are any size."
    yield from (
        "",
        "## Errors",
        "",
        f"Their [kinds]({'errors'}.md#error-kinds) say with which status clients see them.",
        "",
    )
    yield from ("| Error | Kind or reason |", "|---|---|")
    for name, each in errors.items():
        yield f"| `{name}` | {_reason(each)} |"


def _is_documented(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _beside(value: Any) -> list[type]:
    """Classes that its module makes for it, but for those whose methods are only the same with `await`."""
    if not inspect.isclass(value):
        return []
    members = vars(inspect.getmodule(value)).items() if inspect.getmodule(value) else ()
    own = [each for _, each in members if inspect.isclass(each) and each.__module__ == value.__module__]
    named = [each for each in own if not each.__name__.startswith(("_", "Async")) and each is not value]
    return [each for each in named if not issubclass(each, Exception)]


def _reason(error: type[Exception]) -> str:
    """What an error is for: its own docstring, or its kind."""
    own = vars(error).get("__doc__")
    return " ".join(_plain(own).partition("\n\n")[0].split()) if own else f"{vars(error)['kind'].value}"


def _described(name: str, value: Any) -> Iterator[str]:
    yield from ("", f"## {name}", "")
    if name.startswith("trireme."):
        yield from ("```python", _signature(name, value), "```", "")
    yield from _docstring(value)
    if inspect.isclass(value):
        for member, each in _members(value):
            yield from ("", f"### {value.__name__}{'()' if member == '__call__' else f'.{member}'}", "")
            if callable(each):
                yield from ("```python", _signature(member.replace("__call__", "model"), each), "```", "")
            yield from _docstring(each)


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that have a docstring, those of bases first, in the order of the source."""
    for owner in reversed(value.__mro__[:-1]):
        for name, each in vars(owner).items():
            public = name == "__call__" or not name.startswith("_")
            if public and (inspect.isfunction(each) or isinstance(each, property)) and inspect.getdoc(each):
                yield name, each


def _signature(name: str, value: Callable[..., Any]) -> str:
    """How it is called, a parameter a line if it is long; of overloads the last one."""
    overloads = typing.get_overloads(value) if inspect.isfunction(value) else []
    signature = inspect.signature(overloads[-1] if overloads else value)
    if inspect.isclass(value):
        signature = signature.replace(return_annotation=_EMPTY)
    elif next(iter(signature.parameters), "") == "self":
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    line = _unquoted(f"{name}{signature}")
    if len(line) <= 100:
        return line
    parameters = []
    keyword_only = False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parameters.append("    *,")
        parameters.append(_unquoted(f"    {each},"))
    returns = signature.return_annotation
    end = "" if returns is _EMPTY else f" -> {returns}"
    return "\n".join([f"{name}(", *parameters, f"){end}"])


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda quoted: quoted[1] or quoted[2], text)


def _docstring(value: Any) -> Iterator[str]:
    """A docstring as Markdown: its sections are lists, and what is indented below a line that ends with a colon is
    code."""
    section: list[str] = []
    inside = ""
    for line in [*(inspect.getdoc(value) or "").rstrip().splitlines(), "Returns:"]:
        heading = _SECTION.match(line)
        if heading and inside:
            yield from _items(inside, section)
        if heading:
            inside, section = heading[1], [heading[2]] if heading[2] else []
        elif inside:
            section.append(line)
        else:
            yield _plain(line)


def _items(title: str, lines: list[str]) -> Iterator[str]:
    yield from ("", f"**{title}**", "")
    text = textwrap.dedent("\n".join(lines)).strip()
    for item in re.split(r"\n(?=\S)", text):
        found = _ITEM.match(item)
        joined = " ".join((found[2] if found else item).split())
        yield f"- `{found[1].strip('`')}`: {_plain(joined)}" if found else f"- {_plain(joined)}"
    yield ""


def _plain(text: str) -> str:
    return text.replace("``", "`")
