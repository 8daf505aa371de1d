"""ONNX models on a GPU: on stand-ins for cupy and onnxruntime-gpu, where the real ONNX Runtime computes, but late."""

from __future__ import annotations

import gc
import queue
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy, fake_driver
from fake_gpu import FakeGpus
from fake_onnxruntime_gpu import CPU, CUDA, TENSORRT, FakeOnnxRuntimeGpu, FakeSession
from google.protobuf import text_format
from gpu_batches import Shared
from onnx import TensorProto, helper, numpy_helper

from trireme.engine.backends.interface import InstanceSpec, ModelInstance, StreamInstance
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.backends.onnxruntime.backend import OnnxRuntimeGpuInstance
from trireme.engine.backends.services import Services
from trireme.engine.clock import SystemClock
from trireme.engine.config import model_config
from trireme.engine.config.model import (
    Accelerator,
    InstanceGroup,
    ModelConfig,
    ModelConfigMessage,
    ModelInput,
    ModelOutput,
)
from trireme.engine.config.sequence import sequence_batching
from trireme.engine.datatypes import BF16, BYTES, FP32, INT64, DataType
from trireme.engine.errors import InternalError, TriremeError, UnavailableError
from trireme.engine.gpu.cupy_device import CupyDevices
from trireme.engine.gpu.device import OutOfDeviceMemoryError, SickDeviceError
from trireme.engine.gpu.pinned_pool import PinnedPool
from trireme.engine.job import ExecutionBatch, Job, Phase
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.scheduling.sequence.initial_state import state_layout
from trireme.engine.tensor import Tensor

GROUP = (InstanceGroup("m", "KIND_GPU", 1, gpus=(1,)),)
ON_GPU = InstanceSpec("m_0", "KIND_GPU", 1)


class NoReply:
    def deliver(self, outcome: Any, final: bool) -> bool:
        raise AssertionError("answers of a batch are collected, not delivered")


class Machine:
    """Two GPUs, and an instance on the second.

    Attributes:
        runtime: what ``import onnxruntime`` gives.
    """

    def __init__(self, files: Any, pinned_bytes: int = 1 << 20, device_bytes: int = 0) -> None:
        self.gpus = FakeGpus(count=2, seed=1)
        self.runtime = FakeOnnxRuntimeGpu(self.gpus)
        self.landed: queue.SimpleQueue[ExecutionBatch] = queue.SimpleQueue()
        cupy = FakeCupy(self.gpus)
        limits = {1: device_bytes} if device_bytes else {}
        devices = CupyDevices(
            PinnedPool(pinned_bytes), limits, load=lambda: cupy, load_driver=lambda: fake_driver(self.gpus)
        )
        self.services = Services(gpus=devices)
        self._files = files

    def load(self, config: ModelConfig) -> Any:
        backend = OnnxRuntimeBackend({})
        backend.services = self.services
        return backend.load(config, self._files)

    def start(self, config: ModelConfig) -> OnnxRuntimeGpuInstance:
        instance = self.load(config).create_instance(ON_GPU)
        assert isinstance(instance, OnnxRuntimeGpuInstance)
        return instance

    def launch(
        self, instance: StreamInstance, *requests: dict[str, Tensor], rows: Sequence[int] = (), places: Any = None
    ) -> Any:
        made = InferenceRequest("m", output_places=places)
        jobs = [Job(made, inputs, rows[at] if rows else 1, "m", 1, NoReply()) for at, inputs in enumerate(requests)]
        batch = ExecutionBatch(jobs, "m_0", SystemClock(), gpu=1)
        return batch, instance.launch(batch, lambda: self.landed.put(batch))

    def collect(self, instance: StreamInstance, batch: ExecutionBatch, launched: Any) -> list[Any]:
        """The result of a batch once the device has done everything."""
        self.gpus.run()
        assert self.landed.get(timeout=10) is batch
        instance.collect(batch, launched)
        outcomes = {id(job): outcome for job, outcome, _ in batch.answers}
        for job in batch.jobs:
            job.batch = None  # as a scheduler does
        return [plain(outcomes[id(job)]) for job in batch.jobs]

    def run(self, instance: StreamInstance, *requests: dict[str, Tensor], rows: Sequence[int] = ()) -> list[Any]:
        return self.collect(instance, *self.launch(instance, *requests, rows=rows))


def plain(outcome: Any) -> Any:
    if isinstance(outcome, InferenceResponse):
        return {tensor.name: tensor.array.tolist() for tensor in outcome.outputs}
    return outcome


@pytest.fixture
def machine(models: Any, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(models.files)
    monkeypatch.setitem(sys.modules, "onnxruntime", machine.runtime)  # pyright: ignore[reportArgumentType]
    return machine


def unary_config(datatype: DataType = FP32, max_batch_size: int = 8, **fields: Any) -> ModelConfig:
    fields = {"instance_group": GROUP, **fields}
    return ModelConfig(
        "m",
        max_batch_size=max_batch_size,
        input=(ModelInput("X", datatype, (4,)),),
        output=(ModelOutput("Y", datatype, (4,)),),
        **fields,
    )


def x(tensor: Any, *rows: Sequence[float], datatype: DataType = FP32) -> dict[str, Tensor]:
    return {"X": tensor("X", datatype, rows)}


# What a batch comes to


def test_a_batch_goes_there_and_back(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary("Neg")
    instance = machine.start(unary_config())
    batch, launched = machine.launch(
        instance, x(tensor, [1, 2, 3, 4]), x(tensor, [5, 6, 7, 8], [9, 10, 11, 12]), rows=(1, 2)
    )
    assert machine.gpus.done == [], "launching waits for nothing"
    instance.healthy(launched)
    assert machine.collect(instance, batch, launched) == [
        {"Y": [[-1, -2, -3, -4]]},
        {"Y": [[-5, -6, -7, -8], [-9, -10, -11, -12]]},
    ]
    assert machine.gpus.done.count("session") == 1
    assert 0 < batch.marks[Phase.INFER_START] < batch.marks[Phase.OUTPUT_START]


def test_batches_on_their_way_do_not_mix(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary("Neg")
    instance = machine.start(unary_config())
    assert instance.credits == 2
    flights = [machine.launch(instance, x(tensor, [at, 1, 1, 1])) for at in range(6)]
    machine.gpus.run()
    results = [machine.collect(instance, *flight)[0]["Y"][0][0] for flight in flights]
    assert results == [0, -1, -2, -3, -4, -5]


def test_memory_does_not_grow(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary("Neg")
    instance = machine.start(unary_config())
    machine.run(instance, x(tensor, [1, 1, 1, 1]))
    held = len(machine.gpus._memory), len(machine.gpus._pinned)
    for _ in range(20):
        machine.run(instance, x(tensor, [1, 1, 1, 1]))
    assert (len(machine.gpus._memory), len(machine.gpus._pinned)) == held


def test_bf16_is_bound_as_such(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary("Identity", datatype="BF16")
    instance = machine.start(unary_config(BF16))
    assert machine.run(instance, x(tensor, [1, 2, 3, 65535], datatype=BF16)) == [{"Y": [[1, 2, 3, 65535]]}]


def test_scalars(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary("Neg", shape=())
    config = ModelConfig(
        "m",
        input=(ModelInput("X", FP32, (1,)),),
        output=(ModelOutput("Y", FP32, (1,)),),
        instance_group=GROUP,
    )
    instance = machine.start(config)
    assert machine.run(instance, {"X": tensor("X", FP32, [7])}) == [{"Y": [-7]}]


def test_what_the_graph_takes_and_makes_on_the_cpu_stays_there(models: Any, tensor: Any, machine: Machine) -> None:
    """A tensor with a shape, say. It is looked at when the batch has landed: it may be made in the stream, too."""
    value = helper.make_tensor_value_info
    nodes = [("Neg", "X", "Y"), ("Neg", "S", "T"), ("Identity", "B", "C")]
    tensors = {"X": TensorProto.FLOAT, "S": TensorProto.INT64, "B": TensorProto.BFLOAT16}
    models.graph(
        [helper.make_node(operator, [source], [target]) for operator, source, target in nodes],
        [value(name, kind, ("n", "k")) for name, kind in tensors.items()],
        [value(target, tensors[source], ("n", "k")) for _, source, target in nodes],
    )
    machine.runtime.host_tensors = frozenset({"S", "T", "B", "C"})
    config = ModelConfig(
        "m",
        max_batch_size=8,
        input=(ModelInput("S", INT64, (2,)), ModelInput("X", FP32, (4,)), ModelInput("B", BF16, (1,))),
        output=(ModelOutput("Y", FP32, (4,)), ModelOutput("T", INT64, (2,)), ModelOutput("C", BF16, (1,))),
        instance_group=GROUP,
    )
    instance = machine.start(config)
    request = {
        **x(tensor, [1, 2, 3, 4]),
        "S": tensor("S", INT64, [[5, 6]]),
        "B": tensor("B", BF16, [[17]]),
    }
    assert machine.run(instance, request) == [{"Y": [[-1, -2, -3, -4]], "T": [[-5, -6]], "C": [[17]]}]
    assert machine.gpus.done.count("copy in") == 1


def test_an_initializer_may_be_an_input(models: Any, tensor: Any, machine: Machine) -> None:
    """Where these are needed is not said; ONNX Runtime takes them there."""
    value = helper.make_tensor_value_info
    models.graph(
        [helper.make_node("Add", ["X", "W"], ["Y"])],
        [value("X", TensorProto.FLOAT, (4,)), value("W", TensorProto.FLOAT, (4,))],
        [value("Y", TensorProto.FLOAT, (4,))],
        [numpy_helper.from_array(np.ones(4, np.float32), "W")],
    )
    config = ModelConfig(
        "m",
        input=(ModelInput("X", FP32, (4,)), ModelInput("W", FP32, (4,))),
        output=(ModelOutput("Y", FP32, (4,)),),
        instance_group=GROUP,
    )
    instance = machine.start(config)
    request = {"X": tensor("X", FP32, [1, 2, 3, 4]), "W": tensor("W", FP32, [10, 20, 30, 40])}
    assert machine.run(instance, request) == [{"Y": [11, 22, 33, 44]}]


def test_a_model_of_sequences_keeps_what_a_batch_leaves_behind(models: Any, tensor: Any, machine: Machine) -> None:
    """One batch at a time: the next one of the sequence needs it."""
    value = helper.make_tensor_value_info
    models.graph(
        [helper.make_node("Add", ["X", "OLD"], ["NEW"]), helper.make_node("Neg", ["NEW"], ["Y"])],
        [value(name, TensorProto.FLOAT, ("n", 4)) for name in ("X", "OLD")],
        [value(name, TensorProto.FLOAT, ("n", 4)) for name in ("Y", "NEW")],
    )
    text = """name: "m" backend: "onnxruntime" max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
        instance_group { kind: KIND_GPU gpus: [ 1 ] }
        sequence_batching { state { input_name: "OLD" output_name: "NEW" data_type: TYPE_FP32 dims: [ 4 ] } }"""
    config = model_config(text_format.Parse(text, ModelConfigMessage()))
    instance = machine.start(config)
    assert instance.credits == 1
    sequences = sequence_batching(config)
    assert sequences is not None
    layout = state_layout(sequences.states, True, Path())
    assert layout is not None
    state = layout.start()
    for total in ([1, 2, 3, 4], [2, 4, 6, 8]):
        request = x(tensor, [1, 2, 3, 4]) | state.inputs
        job = Job(InferenceRequest("m"), request, 1, "m", 1, NoReply())
        job.state = state
        batch = ExecutionBatch([job], "m_0", SystemClock(), gpu=1)
        launched = instance.launch(batch, lambda batch=batch: machine.landed.put(batch))
        assert machine.collect(instance, batch, launched) == [{"Y": [[-each for each in total]]}]
        assert state.inputs["OLD"].array.tolist() == [total]


# How it is set up


def test_everything_on_the_gpu_goes_into_the_instances_stream(models: Any, machine: Machine) -> None:
    models.unary()
    accelerators = (Accelerator("tensorrt", {"precision_mode": "FP16"}), Accelerator("cuda", {"gpu_mem_limit": "1000"}))
    instance = machine.start(unary_config(gpu_accelerators=accelerators))
    stream = str(instance._pipeline.compute.handle)
    streams = {"has_user_compute_stream": "1", "user_compute_stream": stream}
    assert machine.runtime.providers == [
        (TENSORRT, {"trt_fp16_enable": "1", "device_id": "1", "user_compute_stream": stream}),
        (CUDA, {"gpu_mem_limit": "1000", "device_id": "1", **streams}),
        (CPU, {}),
    ]


def test_each_instance_has_a_session_and_streams_of_its_own(models: Any, machine: Machine) -> None:
    models.unary()
    loaded = machine.load(unary_config())
    first, second = loaded.create_instance(ON_GPU), loaded.create_instance(ON_GPU)
    assert first._pipeline.compute.handle != second._pipeline.compute.handle
    assert list(machine.runtime.live.values()) == [1, 1], "the session that was made to look at the model is used"
    on_cpu = loaded.create_instance(InstanceSpec("m_1", "KIND_CPU"))
    assert not isinstance(on_cpu, StreamInstance)


def test_a_session_ends_before_its_streams(models: Any, tensor: Any, machine: Machine) -> None:
    """Or ONNX Runtime would use a stream that is not there any more: the stand-in would raise."""
    models.unary()
    loaded = machine.load(unary_config())
    instance = loaded.create_instance(ON_GPU)
    machine.run(instance, x(tensor, [1, 2, 3, 4]))
    instance.close()
    loaded.close()
    assert list(machine.runtime.live.values()) == [0]
    del instance
    gc.collect()


@pytest.mark.parametrize("which", ["input", "output"])
def test_strings_are_executed_one_batch_at_a_time(models: Any, tensor: Any, machine: Machine, which: str) -> None:
    """They never leave the CPU, and cannot be bound."""
    text, number = ("BYTES", "FP32") if which == "input" else ("FP32", "BYTES")
    models.unary(
        "Cast", datatype=text, output_datatype=number, to=TensorProto.FLOAT if which == "input" else TensorProto.STRING
    )
    kinds = (BYTES, FP32) if which == "input" else (FP32, BYTES)
    config = ModelConfig(
        "m",
        max_batch_size=8,
        input=(ModelInput("X", kinds[0], (4,)),),
        output=(ModelOutput("Y", kinds[1], (4,)),),
        instance_group=GROUP,
    )
    loaded = machine.load(config)
    assert not issubclass(loaded.instance_class(ON_GPU), StreamInstance)
    instance = loaded.create_instance(ON_GPU)
    assert isinstance(instance, ModelInstance)
    assert instance.thread_bound
    assert instance.credits == 1
    assert machine.runtime.providers[0] == (CUDA, {"device_id": "1"})


def test_what_instances_are_is_known_before_they_are_made(models: Any, machine: Machine) -> None:
    models.unary()
    loaded = machine.load(unary_config())
    assert loaded.instance_class(ON_GPU) is OnnxRuntimeGpuInstance
    assert not issubclass(loaded.instance_class(InstanceSpec("m_0")), StreamInstance)


def test_models_that_may_be_anywhere_go_to_a_gpu(machine: Machine) -> None:
    assert not machine.runtime.loaded
    assert OnnxRuntimeBackend({}).uses_gpus(), "CUDA's libraries are loaded before it is asked for"
    machine.runtime.get_available_providers = lambda: [CPU]
    assert not OnnxRuntimeBackend({}).uses_gpus()


def test_graphs_are_left_out_with_a_warning(models: Any, machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    models.unary()
    accelerators = (
        Accelerator("tensorrt", {"trt_cuda_graph_enable": "true"}),
        Accelerator("cuda", {"enable_cuda_graph": "1"}),
    )
    machine.load(unary_config(gpu_accelerators=accelerators))
    assert not [key for _, options in machine.runtime.providers for key in options if "graph" in key]
    assert [record.message for record in caplog.records] == [
        f"{key} of {name} has no effect: CUDA graphs do not go with batches in flight"
        for key, name in (("trt_cuda_graph_enable", TENSORRT), ("enable_cuda_graph", CUDA))
    ]


# When it goes wrong


def test_a_batch_that_is_too_large(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary()
    instance = machine.start(unary_config(max_batch_size=1))
    with pytest.raises(InternalError, match="batch size 2 for 'm_0', max allowed is 1"):
        machine.launch(instance, x(tensor, [1, 1, 1, 1], [1, 1, 1, 1]), rows=(2,))


def failure(machine: Machine, instance: StreamInstance, tensor: Any) -> TriremeError:
    """What collecting a batch raises, once it has landed."""
    batch, launched = machine.launch(instance, x(tensor, [1, 2, 3, 4]))
    machine.gpus.run()
    assert machine.landed.get(timeout=10) is batch
    with pytest.raises(TriremeError) as caught:
        instance.collect(batch, launched)
    return caught.value


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : odd shapes", InternalError, "onnx runtime error 1: odd shapes"),
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9",
            OutOfDeviceMemoryError,
            "GPU 1: onnx runtime error 6: Failed to allocate memory for requested buffer of size 9",
        ),
        ("CUDA failure 2: out of memory ; GPU=1", OutOfDeviceMemoryError, "out of memory"),
    ],
)
def test_a_run_that_fails_costs_its_batch_alone(
    models: Any, tensor: Any, machine: Machine, text: str, kind: type[Exception], told: str
) -> None:
    models.unary("Neg")
    instance = machine.start(unary_config())
    machine.runtime.fail_next = text
    error = failure(machine, instance, tensor)
    assert type(error) is kind
    assert told in str(error)
    assert machine.run(instance, x(tensor, [1, 2, 3, 4])) == [{"Y": [[-1, -2, -3, -4]]}]


def test_a_device_without_memory(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary("Neg")
    instance = machine.start(unary_config())
    machine.gpus.memory_bytes = 520  # the input, and no output
    assert isinstance(failure(machine, instance, tensor), OutOfDeviceMemoryError)


def test_what_is_in_the_memory_of_the_gpu_stays_there(models: Any, machine: Machine) -> None:
    models.unary("Neg")
    driver = fake_driver(machine.gpus)
    machine.services.gpus = CupyDevices(load=lambda: FakeCupy(machine.gpus), load_driver=lambda: driver)
    instance = machine.start(unary_config())
    shared = Shared(driver, gpu=1)
    machine.gpus.done.clear()
    answers = machine.run(instance, shared.x([1, 2, 3, 4]), shared.x([5, 6, 7, 8]))
    assert answers == [{"Y": [[-1, -2, -3, -4]]}, {"Y": [[-5, -6, -7, -8]]}]
    assert machine.gpus.done.count("copy in") == 0
    assert machine.gpus.done.count("copy") == 2
    allocation, place = shared.place(16)  # and so do outputs that are wanted there
    batch, launched = machine.launch(instance, shared.x([1, 2, 3, 4]), places={"Y": place})
    assert machine.collect(instance, batch, launched) == [{"Y": [[-1, -2, -3, -4]]}]
    assert np.frombuffer(allocation.memory[16:], np.float32).tolist() == [-1, -2, -3, -4]
    assert machine.gpus.done.count("copy out") == 1, "of the batch before"


def test_a_pool_of_pinned_memory_that_is_empty(models: Any, tensor: Any, machine: Machine) -> None:
    models.unary("Neg")
    machine.services.gpus = CupyDevices(
        PinnedPool(0), load=lambda: FakeCupy(machine.gpus), load_driver=lambda: fake_driver(machine.gpus)
    )
    machine.gpus.pageable = 0
    instance = machine.start(unary_config())
    assert machine.run(instance, x(tensor, [1, 2, 3, 4])) == [{"Y": [[-1, -2, -3, -4]]}]
    assert machine.gpus.pageable == 2


def test_a_sick_device_is_told_from_a_run_and_from_what_is_in_flight(
    models: Any, tensor: Any, machine: Machine
) -> None:
    models.unary("Neg")
    instance = machine.start(unary_config())
    machine.runtime.fail_next = "CUDA failure 719: unspecified launch failure ; GPU=1"
    assert not isinstance(failure(machine, instance, tensor), SickDeviceError), "the device is asked, and well"
    _, launched = machine.launch(instance, x(tensor, [1, 2, 3, 4]))
    instance.healthy(launched)
    machine.gpus.sick = 700
    with pytest.raises(SickDeviceError):
        instance.healthy(launched)
    with pytest.raises(SickDeviceError, match="GPU 1 has failed: "):
        machine.launch(instance, x(tensor, [1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("name", "remedy"), [(CUDA, "onnxruntime-gpu[cuda,cudnn]"), (TENSORRT, "trireme-server[gpu,tensorrt]")]
)
def test_a_provider_that_cannot_be_used_is_a_load_error(models: Any, machine: Machine, name: str, remedy: str) -> None:
    """ONNX Runtime would go on without it."""
    models.unary()
    machine.runtime.unusable = frozenset({name})
    with pytest.raises(UnavailableError) as caught:
        machine.load(unary_config(gpu_accelerators=(Accelerator("tensorrt", {}),)))
    assert f"instance 'm_0' of KIND_GPU needs {name}, which the installed ONNX Runtime cannot use: " in str(
        caught.value
    )
    assert remedy in str(caught.value)


def test_a_machine_without_cupy_is_a_load_error(models: Any, machine: Machine) -> None:
    models.unary()
    machine.services.gpus = CupyDevices()
    with pytest.raises(UnavailableError, match=r"pip install trireme-server\[gpu\]"):
        machine.load(unary_config())


def test_a_gpu_that_is_not_there_is_a_load_error(models: Any, machine: Machine) -> None:
    models.unary()
    with pytest.raises(UnavailableError, match="there is no GPU 5: CUDA knows 2, numbered from 0"):
        machine.load(unary_config(instance_group=(InstanceGroup("m", "KIND_GPU", 1, gpus=(5,)),)))


def test_an_onnx_runtime_that_does_not_say_where_tensors_are(
    models: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.unary()
    monkeypatch.delattr(FakeSession, "get_input_memory_infos")
    with pytest.raises(UnavailableError, match=r"need ONNX Runtime 1\.23 or later"):
        machine.start(unary_config())


def test_both_builds_at_once_are_named(models: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    models.unary()
    monkeypatch.setattr(machine.runtime, "get_available_providers", lambda: [CPU])
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [name])
    with pytest.raises(UnavailableError, match="onnxruntime and onnxruntime-gpu are both installed, in one place"):
        machine.load(unary_config())
