"""Which requests may share a batch (docs/reference/scheduling.md#compatible-requests)."""

from __future__ import annotations

import numpy as np
import pytest

from trireme.engine.config.model import ModelConfig, ModelInput
from trireme.engine.datatypes import FP32, INT32
from trireme.engine.scheduling.formation import Compatibility
from trireme.engine.tensor import Tensor


@pytest.fixture(scope="module")
def compatible(make_job):
    """Whether two requests with these inputs (name → shape, or an array for its contents) may share a batch."""

    def check(config: ModelConfig, *requests: dict) -> bool:
        compatibility = Compatibility.of(config)
        assert compatibility is not None
        jobs = []
        for tensors in requests:
            job = make_job()
            job.inputs = {
                name: Tensor(name, INT32, given.shape, array=given)
                if isinstance(given, np.ndarray)
                else Tensor(name, FP32, given, array=np.zeros(given, np.float32))
                for name, given in tensors.items()
            }
            jobs.append(job)
        first, second = jobs
        return compatibility.signature(first) == compatibility.signature(second)

    return check


def model(*inputs: ModelInput) -> ModelConfig:
    return ModelConfig("m", max_batch_size=8, input=inputs)


VARIABLE = ModelInput("A", FP32, (-1, 2))
OPTIONAL = ModelInput("B", FP32, (2,), optional=True)
SHAPE = ModelInput("S", INT32, (2,), is_shape_tensor=True)


def test_variable_inputs_must_have_one_shape_whatever_the_batch_size(compatible):
    assert compatible(model(VARIABLE), {"A": (1, 3, 2)}, {"A": (4, 3, 2)})
    assert not compatible(model(VARIABLE), {"A": (1, 3, 2)}, {"A": (1, 4, 2)})


def test_every_variable_input_counts(compatible):
    config = model(VARIABLE, ModelInput("C", FP32, (-1,)))
    assert not compatible(config, {"A": (1, 3, 2), "C": (1, 5)}, {"A": (1, 3, 2), "C": (1, 6)})


def test_shape_tensors_must_have_one_content(compatible):
    same, other = np.array([1, 2], np.int32), np.array([1, 3], np.int32)
    assert compatible(model(SHAPE), {"S": same}, {"S": same.copy()})
    assert not compatible(model(SHAPE), {"S": same}, {"S": other})
    assert not compatible(model(SHAPE), {"S": same}, {"S": same.reshape(1, 2)})


def test_models_with_optional_inputs_need_the_same_set_of_inputs(compatible):
    config = model(ModelInput("A", FP32, (2,)), OPTIONAL)
    assert compatible(config, {"A": (1, 2), "B": (1, 2)}, {"B": (1, 2), "A": (1, 2)})
    assert not compatible(config, {"A": (1, 2), "B": (1, 2)}, {"A": (1, 2)})


def test_optional_variable_input_may_be_absent_from_both(compatible):
    config = model(ModelInput("A", FP32, (-1,), optional=True))
    assert compatible(config, {}, {})
    assert not compatible(config, {}, {"A": (1, 2)})


@pytest.mark.parametrize(
    "config",
    [
        model(ModelInput("A", FP32, (3, 2))),
        model(ModelInput("A", FP32, (-1,), allow_ragged_batch=True)),
        ModelConfig("m", max_batch_size=0, input=(VARIABLE, OPTIONAL, SHAPE)),
    ],
    ids=["fixed", "ragged", "not batching"],
)
def test_nothing_is_compared_where_nothing_can_differ(config):
    assert Compatibility.of(config) is None
