"""Prompts of chats: where templates are found, and how they are rendered (docs/openai.md#chat-templates)."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from trireme.api.openai.chat import plain_prompt, render_prompt
from trireme.api.openai.errors import FieldError
from trireme.engine.config.chat import ChatTemplate, read_chat_template
from trireme.engine.config.model import ModelConfig
from trireme.engine.errors import InternalError, InvalidArgumentError, UnavailableError

MESSAGES = [{"role": "system", "content": "be <kind>"}, {"role": "user", "content": "hello"}]
NOON_MS = 1_700_000_000_000


def rendered(text: str, messages: list[dict[str, Any]] = MESSAGES, tools: tuple[Any, ...] = ()) -> str:
    return render_prompt(ChatTemplate(text, "<s>", "</s>"), messages, tools, {"thinking": True}, NOON_MS)


def test_without_a_template() -> None:
    assert plain_prompt(MESSAGES[1:]) == "hello"
    assert plain_prompt(MESSAGES) == "system: be <kind>\nuser: hello\nassistant:"
    with pytest.raises(FieldError, match="no chat template") as caught:
        render_prompt(None, MESSAGES, ({"function": {}},), {}, NOON_MS)
    assert caught.value.param == "tools"


def test_what_templates_are_given() -> None:
    text = (
        "{{ bos_token }}{% for m in messages %}\n    [{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}[assistant]{% endif %}{{ thinking }}"
    )
    assert rendered(text) == "<s>    [system] be <kind></s>\n    [user] hello</s>\n[assistant]True"
    tools = ({"function": {"name": "é<f>"}},)
    assert rendered("{{ tools | tojson }}", tools=tools) == '[{"function": {"name": "é<f>"}}]'
    assert rendered("{{ tools is none }} {{ strftime_now('%Y') }}") == "True 2023"
    assert rendered("{% for m in messages %}{% break %}{% endfor %}ok") == "ok"


def test_a_template_may_refuse_the_messages() -> None:
    with pytest.raises(FieldError, match="roles must alternate") as caught:
        rendered("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "text",
    [
        "{% if %}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ 'x' + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_faulty_template_or_one_that_leaves_its_sandbox(text: str) -> None:
    with pytest.raises(InternalError, match="chat template cannot be rendered"):
        rendered(text)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("jinja2"):
            raise ImportError(name)
        return importing(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UnavailableError, match="trireme-server\\[generate\\]"):
        rendered("x")


def read(directory: Path, **parameters: str) -> ChatTemplate | None:
    return read_chat_template(directory, 1, ModelConfig("m", parameters=parameters))


def test_where_templates_are_found(tmp_path: Path) -> None:
    version = tmp_path / "1"
    version.mkdir()
    assert read(tmp_path) is None
    tokens = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": "of the tokenizer"}]
    settings = version / "tokenizer_config.json"
    settings.write_text(json.dumps(tokens | {"chat_template": several}))
    assert read(tmp_path) == ChatTemplate("of the tokenizer", "<s>", "</s>")
    settings.write_text(json.dumps(tokens | {"chat_template": "one"}))
    assert read(tmp_path) == ChatTemplate("one", "<s>", "</s>")
    (version / "chat_template.jinja").write_text("of its own")
    assert read(tmp_path) == ChatTemplate("of its own", "<s>", "</s>")
    (tmp_path / "chat.jinja").write_text("named")
    assert read(tmp_path, openai_chat_template="chat.jinja") == ChatTemplate("named", "<s>", "</s>")


def test_files_that_hold_none(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    settings = tmp_path / "1" / "tokenizer_config.json"
    for text in ("{", "[]", '{"chat_template": 5}', '{"chat_template": [1]}', "\xff"):
        settings.write_text(text, "latin-1")
        assert read(tmp_path) is None
    with pytest.raises(InternalError, match="failed to open"):
        read(tmp_path, openai_chat_template="missing")
    with pytest.raises(InvalidArgumentError, match="outside the model directory"):
        read(tmp_path, openai_chat_template="../other")
    (tmp_path / "1" / "chat_template.jinja").write_text("x" * (1 << 19))
    with pytest.raises(InvalidArgumentError, match="characters, expected"):
        read(tmp_path)
