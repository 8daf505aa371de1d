"""The tokenizer of a model: ``tokenizer.json``, as Hugging Face's library of that name reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import CONTEXT_LENGTH, InternalError, InvalidArgumentError
from ...plugins import import_package

_FILE = "tokenizer.json"
LONG_TEXT = 16_384
"""Characters from which on a text takes long: then the interpreter's lock is not held meanwhile."""
_MOST_CHARACTERS, _PER_TOKEN = 1 << 20, 16
_END = "<|trireme end of text|>"


def most_characters(context: int) -> int:
    """Of a text that is to have no more than so many tokens: far more than they can stand for, if it is a usual one."""
    return max(_MOST_CHARACTERS, _PER_TOKEN * context)


class Tokenizer:
    """Text to tokens, and back. Without the file it can do neither, and says so when it is asked.

    Args:
        directory: of the model.

    Raises:
        UnavailableError: the package is missing.
        InternalError: the file cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / _FILE
        self._path = path
        self._tokenizer: Any = None
        if path.is_file():
            tokenizers = import_package("tokenizers", "the backend 'generation' needs", "generate")
            try:
                self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:
                raise InternalError(f"unable to read '{path}': {error}") from error
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()

    @property
    def there(self) -> bool:
        return self._tokenizer is not None

    def encode(self, text: str) -> list[int]:
        """Raises InvalidArgumentError: there is no tokenizer."""
        tokenizer = self._asked()
        return (tokenizer.encode_batch([text])[0] if len(text) > LONG_TEXT else tokenizer.encode(text)).ids

    def encode_pair(self, text: str, other: str | None, most: int | None) -> tuple[list[int], list[int]]:
        """Tokens of a text or a pair of texts, and for each which of the two it belongs to.

        Args:
            most: tokens; what is longer is cut, the special tokens kept.

        Raises:
            InvalidArgumentError: there is no tokenizer.
        """
        tokenizer = self._asked()
        if most is not None:
            tokenizer.enable_truncation(most)
        try:
            if len(text) + len(other or "") > LONG_TEXT:
                (found,) = tokenizer.encode_batch([text if other is None else (text, other)])
            else:
                found = tokenizer.encode(text, other)
        finally:
            tokenizer.no_truncation()
        return found.ids, found.type_ids

    @staticmethod
    def check_length(text: str, context: int) -> None:
        """Look whether it is worth while to make tokens of a text, of which there may be so many.

        Raises:
            InvalidArgumentError: it is much too long.
        """
        most = most_characters(context)
        if len(text) > most:
            raise InvalidArgumentError(
                f"a text has {len(text)} characters; expected at most {most} for a context of {context} tokens",
                about=CONTEXT_LENGTH,
            )

    def _asked(self) -> Any:
        if self._tokenizer is None:
            raise InvalidArgumentError(f"the model has no tokenizer ('{self._path}'); send 'input_ids'")
        return self._tokenizer

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text, with or without special tokens; empty if there is no tokenizer."""
        return "" if self._tokenizer is None else self._tokenizer.decode(list(tokens), skip_special_tokens=not special)

    @property
    def added(self) -> dict[str, int]:
        """Texts that are a token by themselves, such as special ones, wherever they stand."""
        known = {} if self._tokenizer is None else self._tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in known.items()}

    def with_end(self) -> tuple[str, int]:
        """The tokenizer as a text, with one more token, which stands for the end of a text and is none of the
        network's; and its number.

        Raises:
            InvalidArgumentError: there is no tokenizer.
        """
        if self._tokenizer is None:
            raise InvalidArgumentError(f"the model has no tokenizer ('{self._path}'); its texts cannot be constrained")
        copy = type(self._tokenizer).from_str(self._tokenizer.to_str())
        copy.no_padding()
        copy.no_truncation()
        copy.add_special_tokens([_END])
        return copy.to_str(), copy.token_to_id(_END)
