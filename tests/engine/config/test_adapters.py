"""Where the adapters of a model are."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.engine.config.adapters import find_adapters, vllm_adapters
from trireme.engine.errors import InvalidArgumentError


def test_where_adapters_are(tmp_path: Path) -> None:
    assert find_adapters(tmp_path) == {}
    for name in ("sheep", "doll", ".hidden"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
    (tmp_path / "adapters" / "README").write_text("")
    (tmp_path / "multi_lora.json").write_text('{"cat": "../cats", "dog": "/dogs"}')
    assert find_adapters(tmp_path) == {
        "cat": tmp_path / "../cats",
        "dog": Path("/dogs"),
        "doll": tmp_path / "adapters" / "doll",
        "sheep": tmp_path / "adapters" / "sheep",
    }
    for text, why in (
        ('{"doll": "x"}', "names the adapter 'doll', which is in '.*adapters', too"),
        ('{"cat": 3}', "expected names of adapters, each with its folder"),
        ('["cat"]', "expected a JSON object"),
        ("{", "unable to read"),
    ):
        (tmp_path / "multi_lora.json").write_text(text)
        with pytest.raises(InvalidArgumentError, match=why):
            find_adapters(tmp_path)


def test_those_of_a_model_for_vllm_are_named_where_it_enables_them(tmp_path: Path) -> None:
    assert vllm_adapters(tmp_path) == ()
    (tmp_path / "multi_lora.json").write_text('{"sheep": "/sheep", "doll": "/doll"}')
    assert vllm_adapters(tmp_path) == ()
    for settings, names in (
        ('{"enable_lora": "True"}', ("doll", "sheep")),
        ('{"enable_lora": true}', ("doll", "sheep")),
        ('{"enable_lora": "false"}', ()),
        ("{}", ()),
        ("{", ()),
    ):
        (tmp_path / "model.json").write_text(settings)
        assert vllm_adapters(tmp_path) == names
