"""The scripted session: Trireme answers as the real Triton answered when it was recorded.

Exchanges marked as newer than the recorded release are held to docs/reference/ instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from session_exchange import normalised, put
from session_models import MODELS
from session_script import Exchange, afterwards, script

RECORDED = json.loads((Path(__file__).parent / "recorded_session.json").read_text())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("session")
    for model in MODELS:
        model.write_onnx(directory)
    return directory


@pytest.fixture(scope="module")
def server(serve: Any, repository: Path) -> Iterator[Any]:
    with serve(repository) as live:
        yield live


@pytest.mark.parametrize("exchange", list(script()), ids=lambda exchange: exchange.name)
def test_trireme_answers_as_triton_did(server: Any, exchange: Exchange) -> None:
    answer = put(server.host, server.port, exchange)
    if exchange.newer:
        assert exchange.expected is not None
        assert (answer["status"], answer["body"]) == exchange.expected, exchange.newer
    else:
        assert normalised(exchange, answer) == normalised(exchange, RECORDED[exchange.name])


def test_both_counted_alike_after_the_whole_session(serve: Any, repository: Path) -> None:
    with serve(repository) as live:
        for exchange in script():
            put(live.host, live.port, exchange)
        for exchange in afterwards():
            answer = put(live.host, live.port, exchange)
            assert normalised(exchange, answer) == normalised(exchange, RECORDED[exchange.name]), exchange.name


def test_the_session_is_as_long_as_promised() -> None:
    exchanges = [*script(), *afterwards()]
    assert len(exchanges) >= 60
    assert len({exchange.name for exchange in exchanges}) == len(exchanges)
    assert {exchange.name for exchange in exchanges} == set(RECORDED)
