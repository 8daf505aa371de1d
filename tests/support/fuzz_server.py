"""A server to be fuzzed, as a process of its own: models of every kind, short limits, and a count of what it holds.

python fuzz_server.py REPOSITORY [by_front_end]     # an empty folder; says its ports on the first line

A line on its standard input is answered with one of JSON: `_held`, or `_stacks`; at the end of the input it stops.
What it logs goes to standard error, whatever clients say: there is no log for them to see or change.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import trio
from http2_held import watch

from trireme.actors import InferenceServer
from trireme.api.cli import front_end
from trireme.api.cli.command import GrpcSettings
from trireme.api.cli.front_end import FrontEndSettings
from trireme.api.cli.http_flags import HttpSettings
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.service import GrpcService
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.logging import LogSettings
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
from trireme.front_ends.calls import EngineCalls
from trireme.front_ends.child_process import FrontEndCommand
from trireme.front_ends.processes import FrontEnds

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


async def serve(repository: Path, by_front_end: bool) -> None:
    options = ServerOptions(
        model_repository=(repository,),
        model_control_mode=ControlMode.EXPLICIT,
        startup_models=("*",),
        exit_timeout_s=5,
    )
    limits = Limits(head_timeout_s=3, body_timeout_s=3, write_timeout_s=3, linger_timeout_s=1)
    http = HttpSettings(
        ServiceOptions(("127.0.0.1:0",), limits=limits), HttpOptions(max_input_bytes=1 << 20, allow_client_shm=True)
    )
    grpc = GrpcSettings(GrpcServiceOptions(("127.0.0.1:0",), limits=limits), GrpcOptions(allow_client_shm=True))
    served = _serve_by_front_end if by_front_end else _serve_here
    async with (
        InferenceServer(options, backends=BackendRegistry(lambda _name: {}, {"echo": EchoBackend})) as server,
        trio.open_nursery() as nursery,
    ):
        ports, report, close = await served(server, http, grpc, nursery)
        print(json.dumps(ports), flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            asked = _stacks() if line.startswith("stacks") else _held(server) | report()
            print(json.dumps(asked), flush=True)
        await close()


Served = tuple[dict[str, int], Callable[[], dict[str, int]], Callable[[], Awaitable[object]]]
"""The ports, what else the services hold, and what ends them."""


async def _serve_here(server: InferenceServer, http: HttpSettings, grpc: GrpcSettings, nursery: trio.Nursery) -> Served:
    http_service = HttpService(HttpApplication(server, http.options), http.service)
    calls = GrpcApplication(server, grpc.options)
    grpc_service = GrpcService(calls.services, grpc.service, guards=calls.guards)
    (http_address,) = await nursery.start(http_service.serve)
    (grpc_address,) = await nursery.start(grpc_service.serve)

    def report() -> dict[str, int]:
        connections = http_service.statistics().connections + grpc_service.statistics().connections
        return {"connections": connections, "calls": watch(grpc_service).calls}

    async def close() -> None:
        http_service.close()
        grpc_service.close()

    return {"http": http_address, "grpc": grpc_address}, report, close


async def _serve_by_front_end(
    server: InferenceServer, http: HttpSettings, grpc: GrpcSettings, nursery: trio.Nursery
) -> Served:
    log = LogSettings(verbose=0)
    settings = pickle.dumps(FrontEndSettings(1, False, server.options, log, http, grpc))
    command = FrontEndCommand((sys.executable, "-m", front_end.__name__), settings)
    front_ends = FrontEnds(server, EngineCalls(server.management), 1, command.start)
    await nursery.start(front_ends.run)
    ports = {"HTTPService": "http", "GRPCInferenceService": "grpc"}

    async def close() -> None:
        await front_ends.drain(5.0)
        nursery.cancel_scope.cancel()

    return {ports[name]: port for name, _, port in front_ends.addresses}, dict, close


def _held(server: InferenceServer) -> dict[str, int]:
    """What it holds at this moment."""
    gc.collect()
    return {
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "requests": server.budget_statistics().requests,
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
    trio.run(serve, Path(sys.argv[1]), "by_front_end" in sys.argv[2:])
