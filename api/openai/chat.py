"""From the messages of a chat to a prompt (docs/openai.md#chat-templates)."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Never

from ...engine.config.chat import ChatTemplate
from ...engine.errors import InternalError, UnavailableError
from .errors import FieldError

if TYPE_CHECKING:
    from jinja2 import Template

_KEPT_TEMPLATES = 64


def plain_prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt for a model without a template: a single message is the prompt as it is; of several, each is a line
    with its role in front, and the last line is the assistant's, which the model goes on with."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "".join([f"{each['role']}: {each['content']}\n" for each in messages]) + "assistant:"


def render_prompt(
    template: ChatTemplate | None,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any],
    extra: Mapping[str, Any],
    wall_ms: int,
) -> str:
    """The prompt for a model; may take long.

    Args:
        extra: further values for the template, from the client.
        wall_ms: the time, as `Clock.wall_ms` has it.

    Raises:
        FieldError: the template refuses the messages.
        InternalError: the template is faulty.
        UnavailableError: the library that renders templates is not installed.
    """
    if template is None:
        if tools:
            raise FieldError(
                "tools",
                "The model has no chat template, so it cannot be told of tools: expected 'chat_template.jinja' or "
                "'chat_template' in 'tokenizer_config.json' among its files, or the parameter 'openai_chat_template'.",
            )
        return plain_prompt(messages)
    try:
        import jinja2
    except ImportError:
        raise UnavailableError(
            "the model has a chat template, for which jinja2 is needed: pip install 'trireme-server[generate]'"
        ) from None
    now = datetime.datetime.fromtimestamp(wall_ms / 1000)
    values = {
        **extra,
        "messages": messages,
        "tools": list(tools) or None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": template.bos_token,
        "eos_token": template.eos_token,
        "strftime_now": now.strftime,
    }
    try:
        return _compiled(template.text).render(values)
    except _RefusedByTemplateError as error:
        raise FieldError("messages", f"The model's chat template refuses the messages: {error}") from None
    except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InternalError(f"the model's chat template cannot be rendered: {error}") from None
    except RecursionError:
        raise FieldError("messages", "The messages are nested too deeply for the model's chat template.") from None


class _RefusedByTemplateError(Exception):
    """A template has called `raise_exception`."""


def _raise_exception(message: str) -> Never:
    raise _RefusedByTemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As templates expect it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


@lru_cache(maxsize=_KEPT_TEMPLATES)
def _compiled(text: str) -> Template:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(text)
