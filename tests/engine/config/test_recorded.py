"""Our normalised configuration prints exactly what a real Triton 2.51 answered for the same file.

The facts in recorded/ come from `record_configs.py`. What differs is written down in `_as_2_51`, and nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import rapidjson
from model_configs import read_config

from trireme.engine.config import config_json, prepare_for_load

RECORDED = Path(__file__).parent / "recorded"
MAPS = {"priority_queue_policy", "parameters", "metric_tags", "cc_model_filenames", "inputs", "input_map", "output_map"}


def _as_2_51(text: bytes) -> bytes:
    """Leave out what 2.51 does not know, and add what an ensemble gets only when its models are known."""
    text = text.replace(b',"max_inflight_requests":0', b"")
    if b'"platform":"ensemble"' in text and b"model_transaction_policy" not in text:
        text = re.sub(rb"}$", b',"model_transaction_policy":{"decoupled":false}}', text)
    return text


def _sorted_maps(tree: Any, *, is_map: bool = False) -> Any:
    """Triton prints map entries in the order of a hash table; everything else keeps its order."""
    if isinstance(tree, dict):
        pairs = sorted(tree.items()) if is_map else tree.items()
        return {key: _sorted_maps(value, is_map=key in MAPS) for key, value in pairs}
    if isinstance(tree, list):
        return [_sorted_maps(item) for item in tree]
    return tree


def _text(answer: bytes) -> str:
    """Comparable text: numbers stay as they were written."""
    tree = rapidjson.loads(answer, number_mode=rapidjson.NM_DECIMAL)
    return rapidjson.dumps(_sorted_maps(tree), number_mode=rapidjson.NM_DECIMAL, ensure_ascii=False)


def _model(tmp_path: Path, name: str) -> Path:
    directory = tmp_path / name
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").touch()
    source = RECORDED / f"{name}.pbtxt"
    if source.stat().st_size:
        (directory / "config.pbtxt").write_bytes(source.read_bytes())
    return directory


NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


def test_every_recorded_file_has_its_answer() -> None:
    assert sorted(path.stem for path in RECORDED.glob("*.pbtxt")) == NAMES
    assert len(NAMES) >= 25


@pytest.mark.parametrize("name", NAMES)
def test_config_prints_as_in_triton(tmp_path: Path, name: str) -> None:
    config = prepare_for_load(read_config(_model(tmp_path, name)), None)
    answer = (RECORDED / f"{name}.json").read_bytes()
    ours = _as_2_51(config_json(config))
    assert _text(ours) == _text(answer)
    assert len(ours) == len(answer)  # map order aside, the texts are the same to the byte


@pytest.mark.parametrize("name", NAMES)
def test_recorded_answer_reads_back_to_the_same_configuration(tmp_path: Path, name: str) -> None:
    """What /config answers is a valid override, and normalising it again changes nothing."""
    directory = _model(tmp_path, name)
    answer = (RECORDED / f"{name}.json").read_text()
    config = read_config(directory, override_json=answer)
    assert _text(_as_2_51(config_json(prepare_for_load(config, None)))) == _text(answer.encode())
