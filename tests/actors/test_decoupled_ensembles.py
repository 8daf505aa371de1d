"""Ensembles of members that answer many times, on real threads: what holds them back never holds them for ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio
from scripted_models import Script, write_scripted_models

from trireme.actors import InferenceServer
from trireme.actors.ensemble import Ensemble
from trireme.actors.reply import ANSWER_WINDOW
from trireme.engine.datatypes import FP32
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

MANY = ANSWER_WINDOW + 1
"""More answers than may wait."""


def write_ensemble(repository: Path, *members: str) -> None:
    """``e``: a chain of these, of each of which one request may be in flight."""
    tensors = ["IN", *(f"T{index}" for index in range(1, len(members))), "OUT"]
    steps = [
        f'step {{ model_name: "{member}" model_version: -1 input_map {{ key: "IN" value: "{tensors[index]}" }} '
        f'output_map {{ key: "OUT" value: "{tensors[index + 1]}" }} }}'
        for index, member in enumerate(members)
    ]
    (repository / "e" / "1").mkdir(parents=True)
    (repository / "e" / "config.pbtxt").write_text(
        'platform: "ensemble" input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } '
        f"ensemble_scheduling {{ max_inflight_requests: 1 {' '.join(steps)} }}"
    )


def write_lonely(repository: Path, name: str) -> None:
    """As ``many``, with one instance."""
    text = (repository / "many" / "config.pbtxt").read_text()
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(text.replace("count: 4", "count: 1"))
    (repository / name / "labels.txt").write_text("zero\n")


async def answers(repository: Path, script: str) -> list[float]:
    """What ``e`` answers to one request whose members all do as the script says."""
    scripted = Script()
    options = ServerOptions(model_repository=(repository,))
    async with InferenceServer(options, backends=scripted.backends()) as server:
        tensor = Tensor("IN", FP32, (1,), array=np.zeros(1, np.float32))
        reply = await server.admit(InferenceRequest("e", inputs=[tensor], parameters={"script": script}))
        with trio.fail_after(60):
            return [float(response.outputs[0].array[0]) async for response in reply.responses()]


async def test_a_member_is_not_held_back_by_requests_that_wait_for_its_own_end(tmp_path: Path) -> None:
    """The first answers of the first member wait until the second one is done with an earlier one."""
    write_scripted_models(tmp_path)
    write_lonely(tmp_path, "second")
    write_ensemble(tmp_path, "many", "second")
    got = await answers(tmp_path, f"flood:{MANY} end")
    assert sorted(got) == sorted(float(first + second) for first in range(MANY) for second in range(MANY))


async def test_a_member_that_waits_for_its_own_instance_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is held back until its answers have been processed, by the very instance that it occupies."""
    monkeypatch.setattr(Ensemble, "stuck_s", 0.02)
    write_scripted_models(tmp_path)
    write_lonely(tmp_path, "lonely")
    write_ensemble(tmp_path, "lonely", "lonely")
    got = await answers(tmp_path, f"flood:{MANY + 1} end")
    assert len(got) == (MANY + 1) ** 2
    assert "nothing has moved while 'lonely' was held back by max_inflight_requests; it may go on" in caplog.text
