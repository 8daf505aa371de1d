"""The scripted session over the generate extension: Trireme answers as the real Triton did when it was recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from generate_backend import backends
from generate_models import write_for_trireme
from generate_script import script
from session_exchange import normalised, put
from session_script import Exchange

RECORDED = json.loads((Path(__file__).parent / "recorded_generate_session.json").read_text())


@pytest.fixture(scope="module")
def server(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("generate")
    write_for_trireme(repository)
    with serve(repository, backends()) as live:
        yield live


@pytest.mark.parametrize("exchange", list(script()), ids=lambda exchange: exchange.name)
def test_trireme_answers_as_triton_did(server: Any, exchange: Exchange) -> None:
    answer = put(server.host, server.port, exchange)
    expected = exchange.newer and exchange.expected
    if expected:
        assert (answer["status"], answer["body"]) == expected, exchange.newer
    else:
        assert normalised(exchange, answer) == normalised(exchange, RECORDED[exchange.name])


def test_the_recording_is_of_this_session() -> None:
    names = [exchange.name for exchange in script()]
    assert len(set(names)) == len(names)
    assert set(names) == set(RECORDED)
