"""PyTorch models as CUDA graphs, on a stand-in for ``torch.cuda`` that does everything late."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import pytest
from gpu_batches import LINEAR, PATIENCE_S, PYTHON, ROWS, Gpu, write, x
from torch_modules import Moody, Scale

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.pytorch.backend import PyTorchStreamInstance
from trireme.engine.backends.pytorch.formats import PythonProgram

GRAPHS = ROWS + "optimization { cuda { graphs: true } } dynamic_batching { preferred_batch_size: [ 2, 4 ] }"

FIXED = 'input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }'


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batch sizes that the program itself was run with."""
    seen: list[int] = []
    real = PythonProgram.run

    def run(self: PythonProgram, inputs: Any) -> Any:
        seen.append(inputs["X"].shape[0])
        return real(self, inputs)

    monkeypatch.setattr(PythonProgram, "run", run)
    return seen


GRAPHS_OF_PYTHON = 'runtime: "model.py" ' + GRAPHS


def test_graphs_serve_the_sizes_that_they_were_captured_for(
    gpu: Gpu, models: Any, on_gpu: Any, runs: list[int]
) -> None:
    write(models, LINEAR.format(""))
    instance = gpu.start(on_gpu(GRAPHS_OF_PYTHON, FIXED))
    assert sorted(set(runs)) == [1, 2, 4, 8]
    runs.clear()
    for rows in (4, 1, 2, 8, 1):
        (answer,) = gpu.run(instance, x(*[[1, row] for row in range(rows)]))
        assert answer["Y"].tolist() == [[1 + 2 * row, 3 + 4 * row] for row in range(rows)]
    assert runs == []
    (answer,) = gpu.run(instance, x(*[[1, 1]] * 3))
    assert answer["Y"].tolist() == [[3, 7]] * 3
    assert runs == [3], "there is no lower bound that it reaches"


def test_batches_in_flight_through_one_graph_do_not_mix(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    write(models, LINEAR.format(""))
    instance = gpu.start(on_gpu(GRAPHS_OF_PYTHON, FIXED))
    for _ in range(20):  # streams take turns in any order
        first, second = gpu.launch(instance, x([1, 1])), gpu.launch(instance, x([2, 2]))
        gpu.fake.gpus.run()
        assert [each.collect()[0]["Y"].tolist() for each in (first, second)] == [[[3, 7]], [[6, 14]]]


def test_smaller_batches_are_padded_with_zeros_down_to_the_lower_bound(
    gpu: Gpu, models: Any, on_gpu: Any, runs: list[int]
) -> None:
    write(models, LINEAR.format(" + x.sum()"))
    text = ROWS + (
        'runtime: "model.py" optimization { cuda { graphs: true '
        'graph_spec { batch_size: 4 input { key: "X" value { dim: [ 2 ] } } '
        'graph_lower_bound { batch_size: 2 input { key: "X" value { dim: [ 2 ] } } } } } }'
    )
    instance = gpu.start(on_gpu(text, FIXED))
    runs.clear()
    gpu.run(instance, x(*[[100, 100]] * 4))
    answers = gpu.run(instance, x([1, 1]), x([0, 1]))
    assert [answer["Y"].tolist() for answer in answers] == [[[6, 10]], [[5, 7]]], "nothing is left of the batch before"
    assert runs == []
    gpu.run(instance, x([1, 1]))
    assert runs == [1]


def test_models_that_cannot_be_captured_are_served_without_graphs(
    gpu: Gpu, script: Any, on_gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    script(Moody())
    with caplog.at_level(logging.WARNING):
        instance = gpu.start(on_gpu(GRAPHS, FIXED))
    assert "instance 'm_0': no CUDA graph for batch size 8: " in caplog.text
    assert gpu.run(instance, x([5, 6]))[0]["Y"].tolist() == [[5, 6]]


def test_torchscript_can_be_captured(gpu: Gpu, script: Any, on_gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    script(Scale())
    instance = gpu.start(on_gpu(GRAPHS, FIXED))
    assert "no CUDA graph" not in caplog.text
    assert gpu.run(instance, x([5, 6], [7, 8]))[0]["Y"].tolist() == [[10, 12], [14, 16]]


def test_an_instance_is_made_and_closed_while_another_stream_captures(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    """Nothing waits for the whole device meanwhile, which would break the capture."""
    write(models, LINEAR.format(""))
    cleaning = 'parameters { key: "ENABLE_CACHE_CLEANING" value { string_value: "true" } }'
    loaded = PyTorchBackend({}).load(on_gpu(PYTHON + cleaning, FIXED), models.files)
    first: Any = loaded.create_instance(InstanceSpec("m_0", "KIND_GPU"))
    gpu.run(first, x([1, 1]))
    begun, go_on = threading.Event(), threading.Event()
    device, captured = first._device, []

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    capturing = threading.Thread(target=lambda: captured.append(device.capture(device.stream(), work)), daemon=True)
    capturing.start()
    assert begun.wait(PATIENCE_S)
    second = loaded.create_instance(InstanceSpec("m_1", "KIND_GPU"))
    assert gpu.run(second, x([1, 1]))[0]["Y"].tolist() == [[3, 7]]
    closing = threading.Thread(target=first.close, daemon=True)
    closing.start()
    go_on.set()
    for thread in (capturing, closing):
        thread.join(PATIENCE_S)
    assert len(captured) == 1


def test_memory_of_graphs_goes_with_their_instance(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    write(models, LINEAR.format(""))
    before = gpu.fake.cuda.memory_allocated(0)
    backend = PyTorchBackend({})
    loaded = backend.load(on_gpu(GRAPHS_OF_PYTHON, FIXED), models.files)
    instance = loaded.create_instance(InstanceSpec("m_0", "KIND_GPU"))
    assert isinstance(instance, PyTorchStreamInstance)
    gpu.run(instance, x([1, 1]))
    instance.close()
    loaded.close()
    del instance, loaded
    gpu.fake.gpus.run()
    gc.collect()
    assert gpu.fake.cuda.memory_allocated(0) == before


def test_unused_memory_goes_back_to_the_driver_once_nothing_of_the_instance_is_there(
    gpu: Gpu, models: Any, on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and graphs included, or other frameworks on the GPU could not have it."""
    write(models, LINEAR.format(""))
    before = gpu.fake.cuda.memory_allocated(0)
    loaded = PyTorchBackend({}).load(on_gpu(GRAPHS_OF_PYTHON, FIXED), models.files)
    instance = loaded.create_instance(InstanceSpec("m_0", "KIND_GPU"))
    gpu.fake.gpus.run()
    left = []
    monkeypatch.setattr(gpu.fake.cuda, "empty_cache", lambda: left.append(gpu.fake.cuda.memory_allocated(0) - before))
    instance.close()
    assert left == [0]


def test_a_size_for_which_there_is_no_memory_is_served_without_a_graph(
    gpu: Gpu, models: Any, on_gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As whatever else cannot be captured; it is no reason not to load the model."""
    source = LINEAR.replace(
        "return", 'if len(x) == 8: raise torch.OutOfMemoryError("CUDA out of memory.")\n        return'
    )
    write(models, source.format(""))
    with caplog.at_level(logging.WARNING):
        instance = gpu.start(on_gpu(GRAPHS_OF_PYTHON, FIXED))
    assert "no CUDA graph for batch size 8: GPU 0: CUDA out of memory" in caplog.text
    assert gpu.run(instance, x([1, 1]))[0]["Y"].tolist() == [[3, 7]]
