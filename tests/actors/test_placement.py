"""Where instances run (`engine.host_policies`), read back from the system; and instances that get no work."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from pathlib import Path

import pytest
import trio
from onnx import TensorProto, helper, save_model
from python_models import ask, child_processes, open_repository, until, until_alive, write_model

from trireme.actors import InferenceServer
from trireme.engine.host_policies import HostPolicy

ALL = frozenset(os.sched_getaffinity(0))
CORE = max(ALL)
NEAR = {"near": HostPolicy(frozenset({CORE}))}

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="one core is all that there are")

WHERE = """
    import os

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.in_process = "in_process" in args["model_config"]

        def execute(self, requests):
            tasks = [0] if self.in_process else map(int, os.listdir("/proc/self/task"))
            cores = sorted(set().union(*map(os.sched_getaffinity, tasks)))
            tensor = pb_utils.Tensor("OUTPUT0", np.array([cores], np.float32))
            return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
"""OUTPUT0 says on which cores its threads may run: all of its process; in the server's, the one that executes."""
PYTHON = """
    backend: "python"
    max_batch_size: 1
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
"""
IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'


async def output_of(server: InferenceServer, name: str, *values: float) -> list[float]:
    response = await server.infer(ask(name, *(values or (0.0,))))
    (output,) = response.outputs
    return output.array.ravel().tolist()


@pytest.mark.parametrize("execution", ["", IN_PROCESS], ids=["process", "in_process"])
@pytest.mark.parametrize(
    ("group", "policies", "cores"),
    [
        ('{ host_policy: "near" }', NEAR, {CORE}),
        ("{ kind: KIND_CPU }", {"cpu": NEAR["near"]}, {CORE}),
        ("{ kind: KIND_MODEL }", {"cpu": NEAR["near"]}, ALL),
        ('{ host_policy: "far" }', NEAR, ALL),
    ],
    ids=["named", "by kind", "of another kind", "not set"],
)
async def test_python_models(
    tmp_path: Path, execution: str, group: str, policies: dict[str, HostPolicy], cores: Collection[int]
) -> None:
    write_model(tmp_path, "where", WHERE, f"{PYTHON}\n    instance_group [{group}]\n    {execution}")
    async with open_repository(tmp_path, host_policies=policies) as server:
        assert await output_of(server, "where") == sorted(cores)
    assert os.sched_getaffinity(0) == ALL


def write_identity(repository: Path, more: str) -> None:
    shape = ["rows", "elements"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "any", ends[:1], ends[1:])
    (repository / "identity" / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(model, repository / "identity" / "1" / "model.onnx")
    (repository / "identity" / "config.pbtxt").write_text(f'backend: "onnxruntime"\nmax_batch_size: 4\n{more}')


def tasks_on(cores: Collection[int]) -> set[str]:
    """Threads of this process that are bound to exactly these cores."""
    found = set[str]()
    for task in os.listdir("/proc/self/task"):
        try:
            if os.sched_getaffinity(int(task)) == cores:
                found.add(task)
        except ProcessLookupError:  # it has ended
            continue
    return found


@pytest.mark.parametrize(("threads", "each"), [("3", 3), ("0", 1)])
async def test_threads_of_onnx_runtime(tmp_path: Path, threads: str, each: int) -> None:
    """The instance's own, and those that its session has made: as many as the model says, or as there are cores."""
    parameter = f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{threads}" }} }}'
    group = 'instance_group [{ count: 2 kind: KIND_CPU host_policy: "near" }]'
    write_identity(tmp_path, f"{group}\n{parameter}")
    before = tasks_on({CORE})  # of other tests
    async with open_repository(tmp_path, host_policies=NEAR) as server:
        await until(lambda: len(tasks_on({CORE}) - before) == 2 * each)  # that of the load may still be ending
        for number in range(50):
            assert await output_of(server, "identity", number) == [number]
    assert os.sched_getaffinity(0) == ALL


async def test_groups_with_policies_of_their_own_share_no_session(tmp_path: Path) -> None:
    other = min(ALL)
    groups = ", ".join(
        f'{{ name: "{name}" kind: KIND_CPU count: 1 host_policy: "{name}" }}' for name in ("near", "other")
    )
    parameter = 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }'
    write_identity(tmp_path, f"instance_group [{groups}]\n{parameter}")
    policies = {**NEAR, "other": HostPolicy(frozenset({other}))}
    before = tasks_on({CORE}) | tasks_on({other})  # of other tests
    async with open_repository(tmp_path, host_policies=policies):
        await until(lambda: [len(tasks_on({core}) - before) for core in (CORE, other)] == [2, 2])


async def test_what_cannot_be_bound_is_an_error_of_the_load(tmp_path: Path) -> None:
    write_identity(tmp_path, "")
    policies = {"cpu": HostPolicy(frozenset({60_000}))}
    async with open_repository(tmp_path, host_policies=policies, exit_on_error=False) as server:
        (entry,) = server.repository_index()
        assert "cannot bind an instance to the cores 60000: Invalid argument" in entry.reason


# ---- passive instances ----

NAMED = """
    import os

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]
            with open(args["model_repository"] + "/made", "a") as made:
                print(self.name, os.getpid(), file=made)

        def execute(self, requests):
            passive = np.array([[float(self.name.startswith("passive"))]], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", passive)]) for _ in requests]
"""
GROUPS = """
    instance_group [
      { name: "passive" count: 2 kind: KIND_CPU passive: true },
      { name: "active" count: 1 kind: KIND_CPU }
    ]
"""


async def test_passive_instances_are_made_and_get_no_work(tmp_path: Path) -> None:
    """One that dies is made again, like any other; they leave with the others."""
    directory = write_model(tmp_path, "named", NAMED, PYTHON + GROUPS)
    before = child_processes()
    answers: list[float] = []

    async def request(server: InferenceServer) -> None:
        answers.extend(await output_of(server, "named"))

    def made() -> list[list[str]]:
        return sorted(line.split() for line in (directory / "made").read_text().splitlines())

    async with open_repository(tmp_path) as server:
        assert [name for name, _ in made()] == ["active_0", "passive_0", "passive_1"]
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(request, server)
        assert answers == [0.0] * 12
        os.kill(int(made()[1][1]), signal.SIGKILL)
        await until(lambda: len(made()) == 4)
        await until_alive(server)
        assert await output_of(server, "named") == [0.0]
        assert server.model_statistics()[0].instances_alive == 3
    assert child_processes() == before
