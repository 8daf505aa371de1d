"""A server to be fuzzed, as a process of its own: models of every kind, short limits, and a count of what it holds.

python fuzz_server.py REPOSITORY      # an empty folder; says its ports on the first line

A line on its standard input is answered with one of JSON: `_report`, or `_stacks`; at the end of the input it stops.
What it logs goes to standard error, whatever clients say: there is no log for them to see or change.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import trio
from http2_held import watch

from trireme.actors import InferenceServer
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.service import GrpcService
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.sockets.limits import Limits
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.tensor import Tensor

TYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16"),
)

_PAIR = """
input { name: "A" data_type: TYPE_INT32 dims: [ 4 ] } input { name: "B" data_type: TYPE_INT32 dims: [ 4 ] }
output { name: "OUT_A" data_type: TYPE_INT32 dims: [ 4 ] label_filename: "labels.txt" }
output { name: "OUT_B" data_type: TYPE_INT32 dims: [ 4 ] }
"""
_ONE = """
input { name: "IN" data_type: TYPE_%s dims: [ -1 ] } output { name: "OUT_IN" data_type: TYPE_%s dims: [ -1 ] }
"""
MODELS = {
    "canary": _PAIR,
    "pair": _PAIR + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100 }",
    "text": _ONE % ("STRING", "STRING"),
    "many": _ONE % ("FP32", "FP32") + "model_transaction_policy { decoupled: true }",
    "sequence": _ONE % ("FP32", "FP32")
    + "max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 50000 }",
    "types": "".join(
        f'input {{ name: "{name}" data_type: TYPE_{name} dims: [ -1 ] optional: true }}'
        f'output {{ name: "OUT_{name}" data_type: TYPE_{name} dims: [ -1 ] }}'
        for name in TYPES
    ),
    "steps": """
platform: "ensemble"
input { name: "X" data_type: TYPE_STRING dims: [ -1 ] } output { name: "Y" data_type: TYPE_STRING dims: [ -1 ] }
ensemble_scheduling { step { model_name: "text" model_version: -1
  input_map { key: "IN" value: "X" } output_map { key: "OUT_IN" value: "Y" } } }
""",
}


def write_models(repository: Path) -> None:
    for name, config in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        backend = "" if name == "steps" else 'backend: "echo"'
        (repository / name / "config.pbtxt").write_text(backend + config)
        (repository / name / "labels.txt").write_text("zero\none\n")


class _Echo(ModelInstance):
    """Gives inputs back under the names of outputs. Decoupled, as often as the first number says; below 0 it fails."""

    def __init__(self, decoupled: bool) -> None:
        self._decoupled = decoupled

    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            if self._decoupled:
                self._answer_often(job)
            else:
                outputs = [tensor.renamed(f"OUT_{name}", tensor.shape) for name, tensor in job.inputs.items()]
                job.respond(job.response([tensor for tensor in outputs if job.wants(tensor.name)]))

    def _answer_often(self, job: Job) -> None:
        numbers = job.inputs["IN"].array.reshape(-1)
        first = float(numbers[0]) if numbers.size else 0.0
        if not first >= 0:
            job.fail(InternalError("below zero"), final=False)
        for index in range(int(min(first, 100)) if first >= 0 else 1):
            array = np.full(3, index, np.float32)
            job.respond(job.response([Tensor("OUT_IN", FP32, (3,), array=array)], {"index": index}), final=False)
        job.respond(None, final=True)


class _Loaded(LoadedModel):
    def __init__(self, decoupled: bool) -> None:
        self._decoupled = decoupled

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        return _Echo(self._decoupled)


class EchoBackend(Backend):
    name = "echo"

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        return _Loaded(config.decoupled)


async def serve(repository: Path) -> None:
    options = ServerOptions(
        model_repository=(repository,),
        model_control_mode=ControlMode.EXPLICIT,
        startup_models=("*",),
        exit_timeout_s=5,
    )
    limits = Limits(head_timeout_s=3, body_timeout_s=3, write_timeout_s=3, linger_timeout_s=1)
    async with InferenceServer(options, backends=BackendRegistry(lambda _name: {}, {"echo": EchoBackend})) as server:
        application = HttpApplication(server, HttpOptions(max_input_bytes=1 << 20, allow_client_shm=True))
        http = HttpService(application, ServiceOptions(("127.0.0.1:0",), limits=limits))
        calls = GrpcApplication(server, GrpcOptions(allow_client_shm=True))
        grpc = GrpcService(calls.services, GrpcServiceOptions(("127.0.0.1:0",), limits=limits), guards=calls.guards)
        async with trio.open_nursery() as nursery:
            (http_port,) = await nursery.start(http.serve)
            (grpc_port,) = await nursery.start(grpc.serve)
            print(json.dumps({"http": http_port, "grpc": grpc_port}), flush=True)
            while line := await trio.to_thread.run_sync(sys.stdin.readline):
                asked = _stacks() if line.startswith("stacks") else _report(server, http, grpc)
                print(json.dumps(asked), flush=True)
            http.close()
            grpc.close()


def _report(server: InferenceServer, http: HttpService, grpc: GrpcService) -> dict[str, Any]:
    """What it holds at this moment."""
    gc.collect()
    return {
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "requests": server.budget_statistics().requests,
        "connections": http.statistics().connections + grpc.statistics().connections,
        "calls": watch(grpc).calls,
    }


def _stacks() -> list[str]:
    """Where each task waits."""
    found = []
    tasks = [trio.lowlevel.current_root_task()]
    for task in tasks:
        if task is not None:
            tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
            frames: list[str] = []
            coroutine: Any = task.coro
            while (frame := getattr(coroutine, "cr_frame", None)) is not None:
                frames.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                coroutine = coroutine.cr_await
            found.append(f"{task.name}: {' '.join(frames)}")
    return found


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    write_models(Path(sys.argv[1]))
    trio.run(serve, Path(sys.argv[1]))
