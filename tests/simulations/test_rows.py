"""Rows are told apart: what a request holds, what a model makes of a batch, and what a padding row may hold."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from trireme.engine.clock import SystemClock
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import FP32
from trireme.engine.job import ExecutionBatch, Job, ReplyTarget
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.simulations.rows import ModelRows, answer_alone, held, stray_data

CONFIG = ModelConfig(
    "m", max_batch_size=8, input=(ModelInput("INPUT0", FP32, (4,)),), output=(ModelOutput("OUTPUT0", FP32, (4,)),)
)


def job(number: int, rows: int) -> Job:
    tensor = Tensor("INPUT0", FP32, (rows, 4), array=held(number, (rows, 4)))
    request = InferenceRequest("m", id=str(number), inputs=[tensor])
    return Job(request, {"INPUT0": tensor}, rows, "m", 1, cast(ReplyTarget, None))


def test_each_row_of_a_request_holds_something_else() -> None:
    assert held(7, (3, 4))[:, 0].tolist() == [7, 1007, 2007]
    assert held(7, (4,)).tolist() == [7, 7, 7, 7]


def test_a_batch_is_cut_up_as_it_was_put_together() -> None:
    jobs = [job(1, 2), job(2, 1), job(3, 3)]
    outputs, found = ModelRows(CONFIG, pytest.fail).execute(ExecutionBatch(jobs, "m_0", SystemClock()))
    assert [output.array[:, 0].tolist() for output in outputs] == [[2, 1002], [3], [4, 1004, 2004]]
    assert found == [0, 0, 0]
    assert [answer_alone(each).array.tolist() for each in jobs] == [output.array.tolist() for output in outputs]


def test_a_row_that_fills_a_gap_holds_nothing_of_anybody() -> None:
    padding = job(0, 1)
    assert stray_data(padding) == ""
    control = Tensor("START", FP32, (1, 1), array=np.ones((1, 1), np.float32))
    padding.inputs = {**padding.inputs, "START": control}
    assert stray_data(padding) == ""
    assert "INPUT0" in stray_data(job(5, 1))
