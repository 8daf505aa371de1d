"""The chat template of a language model: how the messages of a chat become one prompt, in the files that tokenizers
come with (docs/openai.md#chat-templates). What it says is kept with the model; who renders it is a front end."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InternalError, InvalidArgumentError
from .files import path_within, read_bytes, read_text
from .model import ModelConfig

TEMPLATE_PARAMETER = "openai_chat_template"
"""The model parameter that names a file with a template, relative to the model's directory."""

logger = logging.getLogger("trireme.config")

_TEMPLATE_FILE = "chat_template.jinja"
_TOKENIZER_FILE = "tokenizer_config.json"
_MOST_CHARACTERS = 256 << 10


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template in Jinja's language, and the tokens that it may ask for by name.

    Attributes:
        bos_token, eos_token: that begin and end a text; empty if the tokenizer has none.
    """

    text: str
    bos_token: str = ""
    eos_token: str = ""


def read_chat_template(model_directory: Path, version: int, config: ModelConfig) -> ChatTemplate | None:
    """The template of a version: from the file that the configuration names, else from ``chat_template.jinja``,
    else from ``tokenizer_config.json``, both of the version's directory. None if there is none.

    A file that a model merely has may be for something else: if it cannot be used, the log says so.

    Raises:
        InvalidArgumentError: the configuration names a file outside the model's directory, or one that is too long.
        InternalError: a template cannot be read.
    """
    directory = model_directory / str(version)
    tokenizer = _read_tokenizer(directory / _TOKENIZER_FILE)
    named = config.parameters.get(TEMPLATE_PARAMETER, "")
    if named:
        path = path_within(model_directory, "", named)
        if path is None:
            raise InvalidArgumentError(
                f"model '{config.name}': parameter '{TEMPLATE_PARAMETER}' names '{named}', which is outside the model "
                "directory"
            )
        text = read_text(path)
    elif (directory / _TEMPLATE_FILE).is_file():
        text = read_text(directory / _TEMPLATE_FILE)
    else:
        text = _default_of(tokenizer.get("chat_template"))
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgumentError(
            f"model '{config.name}': its chat template has {len(text)} characters, expected {_MOST_CHARACTERS} at most"
        )
    if not text:
        return None
    return ChatTemplate(text, _token(tokenizer.get("bos_token")), _token(tokenizer.get("eos_token")))


def _read_tokenizer(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(read_bytes(path))
    except (InternalError, ValueError, RecursionError) as error:
        logger.warning("%s holds no chat template: %s", path, error)
        return {}
    return settings if isinstance(settings, dict) else {}


def _default_of(given: object) -> str:
    """The template, or of several with names the one called ``default``."""
    if isinstance(given, list):
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else ""


def _token(given: object) -> str:
    """A token is a text, or an object with its text."""
    if isinstance(given, dict):
        given = given.get("content")
    return given if isinstance(given, str) else ""
