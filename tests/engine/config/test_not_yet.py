"""What a configuration asks for in vain is said."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from model_configs import read_config

from trireme.engine.config import prepare_for_load

BASE = """
backend: "onnxruntime"
input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("instance_group.passive", "instance_group { count: 1 passive: true }"),
        ("instance_group.host_policy", 'instance_group { host_policy: "p" }'),
    ],
)
def test_a_setting_without_effect_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, setting: str, text: str
) -> None:
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(BASE + text)
    with caplog.at_level(logging.WARNING):
        prepare_for_load(read_config(directory), None)
    assert f"model 'm': '{setting}' has no effect in this version" in caplog.messages


def test_nothing_is_said_of_a_plain_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(BASE)
    with caplog.at_level(logging.WARNING):
        prepare_for_load(read_config(directory), None)
    assert not caplog.messages
