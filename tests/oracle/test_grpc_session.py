"""The scripted session over gRPC: Trireme answers as the real Triton answered when it was recorded.

Calls marked as newer than the recorded release, or as plainly wrong there, are held to docs/reference/ instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from grpc_backend import backends
from grpc_calls import Call
from grpc_exchange import normalised, put
from grpc_models import write_for_trireme
from grpc_script import afterwards, script

RECORDED = json.loads((Path(__file__).parent / "recorded_grpc_session.json").read_text())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("grpc_session")
    write_for_trireme(directory)
    return directory


@pytest.fixture(scope="module")
def channel(serve: Any, repository: Path) -> Iterator[grpc.Channel]:
    with serve(repository, backends=backends()) as live, grpc.insecure_channel(live.grpc_url) as channel:
        yield channel


@pytest.mark.parametrize("call", list(script()), ids=lambda call: call.name)
def test_trireme_answers_as_triton_did(channel: grpc.Channel, call: Call) -> None:
    answer = put(channel, call)
    if call.newer:
        assert answer == call.expected, call.newer
    else:
        assert normalised(call, answer) == normalised(call, RECORDED[call.name])


def test_both_counted_alike_after_the_whole_session(serve: Any, repository: Path) -> None:
    with serve(repository, backends=backends()) as live, grpc.insecure_channel(live.grpc_url) as channel:
        for call in script():
            if call.recorded:
                put(channel, call)
        for call in afterwards():
            assert normalised(call, put(channel, call)) == normalised(call, RECORDED[call.name]), call.name


def test_every_call_is_recorded_once_and_every_record_is_called() -> None:
    calls = [*script(), *afterwards()]
    assert len({call.name for call in calls}) == len(calls)
    assert {call.name for call in calls if call.recorded} == set(RECORDED)
    assert all((call.expected is not None) == bool(call.newer) for call in calls)
    assert all(call.newer for call in calls if not call.recorded)
