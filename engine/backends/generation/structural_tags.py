"""Structural tags, vLLM's form for texts that are JSON between marks, as a grammar.

These parts of it are known (`type`): ``const_string``, ``json_schema``, ``sequence``, ``or``, ``tag`` and
``tags_with_separator``. A mark that is a token by itself may come as that token only, as the model was trained.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import InvalidArgumentError

_PARTS = ("const_string", "json_schema", "sequence", "or", "tag", "tags_with_separator")


def schemas_of_tag(name: str, tag: Any) -> list[Any]:
    """The JSON schemas in a structural tag.

    Args:
        name: of the member of the request that has it.

    Raises:
        InvalidArgumentError: it is none that is known.
    """
    grammar = _TagGrammar(name, "", {})
    grammar.of(tag)
    return grammar.schemas


def lark_of_tag(tag: Any, white_space: str, tokens: Mapping[str, int]) -> str:
    """The grammar of a structural tag that has been looked at (`schemas_of_tag`), in Lark's form.

    Args:
        white_space: between parts of JSON, as a regular expression; empty for none.
        tokens: texts that are a token by themselves, such as special ones.
    """
    return _TagGrammar("structural_tag", white_space, tokens).of(tag)


class _TagGrammar:
    def __init__(self, name: str, white_space: str, tokens: Mapping[str, int]) -> None:
        self.schemas: list[Any] = []
        self._name = name
        self._white_space = white_space
        self._tokens = tokens
        longest_first = sorted(tokens, key=len, reverse=True)
        self._marks = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if tokens else None

    def of(self, tag: Any) -> str:
        part = tag.get("format") if isinstance(tag, dict) and tag.get("type") == "structural_tag" else None
        if not isinstance(part, dict):
            raise InvalidArgumentError(f"{self._name} is none; expected the type 'structural_tag', and a format")
        start = self._part(part, "format")
        return "\n".join([f"start: {start}", *self._rules()]) + "\n"

    def _rules(self) -> Iterator[str]:
        guidance = {"whitespace_flexible": bool(self._white_space)}
        if self._white_space:
            guidance |= {"whitespace_pattern": self._white_space}
        for number, schema in enumerate(self.schemas):
            given = schema if isinstance(schema, dict) else {}
            yield f"json_{number}: %json {json.dumps({**given, 'x-guidance': guidance})}"

    def _part(self, part: Any, path: str) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        match kind:
            case "const_string":
                return self._literal(self._text(part, "value", path))
            case "json_schema":
                schema = part.get("json_schema")
                if not isinstance(schema, dict):
                    raise self._wrong(f"{path}.json_schema", "a JSON schema")
                self.schemas.append(schema)
                return f"json_{len(self.schemas) - 1}"
            case "sequence":
                return " ".join(self._parts(part, "elements", path))
            case "or":
                return f"({' | '.join(self._parts(part, 'elements', path))})"
            case "tag":
                begin, end = (self._literal(self._text(part, side, path)) for side in ("begin", "end"))
                return f"{begin} {self._part(part.get('content'), f'{path}.content')} {end}"
            case "tags_with_separator":
                one = f"({' | '.join(self._parts(part, 'tags', path))})"
                between = self._literal(self._text(part, "separator", path))
                all_of_them = one if part.get("stop_after_first") else f"{one} ({between} {one})*"
                return all_of_them if part.get("at_least_one") else f"({all_of_them})?"
            case _:
                raise self._wrong(f"{path}.type", f"one of {', '.join(_PARTS)}")

    def _parts(self, part: Mapping[str, Any], member: str, path: str) -> list[str]:
        given = part.get(member)
        if not isinstance(given, list) or not given:
            raise self._wrong(f"{path}.{member}", "an array that is not empty")
        return [self._part(each, f"{path}.{member}[{number}]") for number, each in enumerate(given)]

    def _text(self, part: Mapping[str, Any], member: str, path: str) -> str:
        text = part.get(member)
        if not isinstance(text, str):
            raise self._wrong(f"{path}.{member}", "a text")
        return text

    def _literal(self, text: str) -> str:
        """What matches a text."""
        pieces = self._marks.split(text) if self._marks is not None else [text]
        found = [
            f"<[{self._tokens[piece]}]>" if piece in self._tokens else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        ]
        return " ".join(found) or '""'

    def _wrong(self, path: str, expected: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._name}.{path} is none that is known; expected {expected}")
