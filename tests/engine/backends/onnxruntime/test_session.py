"""Files, parameters and threads of a session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from onnx import TensorProto, helper

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.backends.onnxruntime.session import reason, run_options
from trireme.engine.backends.waiting_threads import WaitingThreads
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES, FP32, INT64
from trireme.engine.errors import InternalError, InvalidArgumentError, UnavailableError


def config(**rest: Any) -> ModelConfig:
    inputs, outputs = (ModelInput("X", FP32, (4,)),), (ModelOutput("Y", FP32, (4,)),)
    return ModelConfig("m", max_batch_size=8, input=inputs, output=outputs, **rest)


def options_of(models: Any, **rest: Any) -> Any:
    loaded = OnnxRuntimeBackend({}).load(config(**rest), models.files)
    return loaded.create_instance(InstanceSpec("m_0")).session.get_session_options()


def refusal(models: Any, kind: type[Exception] = InvalidArgumentError, **rest: Any) -> str:
    with pytest.raises(kind) as caught:
        OnnxRuntimeBackend({}).load(config(**rest), models.files)
    return str(caught.value)


def waits_in_a_loop(session: Any) -> bool:
    options, found = session.get_session_options(), []
    for kind in ("intra", "inter"):
        try:
            found.append(options.get_session_config_entry(f"session.{kind}_op.allow_spinning"))
        except RuntimeError:  # it is not set
            found.append("1")
    assert found[0] == found[1]
    return found[0] == "1"


def test_threads_of_many_sessions_do_not_wait_in_a_loop(models: Any) -> None:
    models.unary()
    backend = OnnxRuntimeBackend({})
    backend.services.waiting_threads = WaitingThreads(5)
    loaded = backend.load(config(parameters={"intra_op_thread_count": "2"}), models.files)
    instances = [loaded.create_instance(InstanceSpec(f"m_{number}")) for number in range(3)]
    assert [waits_in_a_loop(instance.session) for instance in instances] == [True, True, False]
    instances.pop(0).close()
    another = loaded.create_instance(InstanceSpec("m_3"))
    assert [waits_in_a_loop(each.session) for each in (*instances, another)] == [True, False, True]


def test_a_session_that_cannot_be_made_leaves_its_share_to_others(models: Any) -> None:
    backend = OnnxRuntimeBackend({})
    backend.services.waiting_threads = WaitingThreads(2)
    parameters = {"intra_op_thread_count": "2"}
    models.path.write_bytes(b"garbage")
    with pytest.raises(InternalError):
        backend.load(config(parameters=parameters), models.files)
    models.unary()
    loaded = backend.load(config(parameters=parameters), models.files)
    assert waits_in_a_loop(loaded.create_instance(InstanceSpec("m_0")).session)


class TestFiles:
    def test_the_configured_file_name(self, models: Any) -> None:
        models.unary()
        models.path.rename(models.path.with_name("net.onnx"))
        OnnxRuntimeBackend({}).load(config(default_model_filename="net.onnx"), models.files)

    def test_a_directory_with_the_model_in_it(self, models: Any) -> None:
        models.unary()
        content = models.path.read_bytes()
        models.path.unlink()
        models.path.mkdir()
        (models.path / "model.onnx").write_bytes(content)
        OnnxRuntimeBackend({}).load(config(), models.files)

    @pytest.mark.parametrize("directory", [False, True])
    def test_no_file(self, models: Any, directory: bool) -> None:
        path = models.path
        if directory:
            path.mkdir()
            path /= "model.onnx"
        text = refusal(models, UnavailableError)
        assert text == f"unable to find '{path}' for model instance 'm'"

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"garbage", "onnx runtime error 7: Protobuf parsing failed."),
            (b"", "onnx runtime error 2: No graph was found in the protobuf."),
        ],
    )
    def test_a_file_that_is_no_model(self, models: Any, content: bytes, why: str) -> None:
        models.path.write_bytes(content)
        assert refusal(models, InternalError) == f"unable to load model 'm' from '{models.path}': {why}"

    def test_a_model_of_a_later_format(self, models: Any) -> None:
        models.graph([], [], [], ir_version=99)
        text = refusal(models, InternalError)
        assert text.startswith(
            f"unable to load model 'm' from '{models.path}': onnx runtime error 1: Unsupported model IR version: 99"
        )

    def test_an_unknown_operator(self, models: Any) -> None:
        models.unary("NoSuchOperator")
        text = refusal(models, InternalError)
        assert text.startswith(f"unable to load model 'm' from '{models.path}': onnx runtime error 10: ")
        assert "No Op registered for NoSuchOperator" in text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : /src/model_load_utils.h:46 void f(const std::map<int>&, bool) Opset 99",
            "onnx runtime error 1: Opset 99",
        ),
        (
            "/src/state.cc:2995 py::methods(py::module&, Fn)::<lambda(const py::Options&)> must be false\n",
            "onnx runtime error: must be false",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Status Message: matmul_helper.h:59 Compute MatMul (dimension) mismatch",
            "onnx runtime error 1: Status Message: Compute MatMul (dimension) mismatch",
        ),
        ("Required inputs (['X']) are missing", "onnx runtime error: Required inputs (['X']) are missing"),
    ],
)
def test_reasons_are_readable(text: str, plain: str) -> None:
    assert reason(RuntimeError(text)) == plain


class TestParameters:
    @pytest.mark.parametrize(
        ("level", "expected"),
        [
            (-1, "ORT_ENABLE_BASIC"),
            (0, "ORT_ENABLE_ALL"),
            (1, "ORT_ENABLE_EXTENDED"),
            (2, "ORT_DISABLE_ALL"),
            (7, "ORT_ENABLE_ALL"),
        ],
    )
    def test_graph_level(self, models: Any, level: int, expected: str) -> None:
        models.unary()
        options = options_of(models, graph_level=level)
        assert options.graph_optimization_level == getattr(onnxruntime.GraphOptimizationLevel, expected)

    def test_thread_counts(self, models: Any) -> None:
        models.unary()
        options = options_of(models, parameters={"intra_op_thread_count": "3", "inter_op_thread_count": "2"})
        assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)

    @pytest.mark.parametrize("count", ["0", "-1"])
    def test_thread_counts_that_mean_the_default(self, models: Any, count: str) -> None:
        models.unary()
        options = options_of(models, parameters={"intra_op_thread_count": count, "inter_op_thread_count": count})
        assert (options.intra_op_num_threads, options.inter_op_num_threads) == (0, 0)

    @pytest.mark.parametrize(("mode", "expected"), [("0", "ORT_SEQUENTIAL"), ("1", "ORT_PARALLEL")])
    def test_execution_mode(self, models: Any, mode: str, expected: str) -> None:
        models.unary()
        options = options_of(models, parameters={"execution_mode": mode})
        assert options.execution_mode == getattr(onnxruntime.ExecutionMode, expected)

    def test_memory(self, models: Any) -> None:
        models.unary()
        options = options_of(models)
        assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (True, True)
        key = "session.use_device_allocator_for_initializers"
        options = options_of(models, parameters={"enable_mem_arena": "0", "enable_mem_pattern": "False", key: "1"})
        assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
        assert options.get_session_config_entry(key) == "1"

    def test_arena_shrinkage_is_an_option_of_every_run(self, models: Any, start: Any, tensor: Any) -> None:
        key = "memory.enable_memory_arena_shrinkage"
        parameters = {key: "cpu:0"}
        assert run_options(onnxruntime, config(parameters=parameters)).get_run_config_entry(key) == "cpu:0"
        models.unary()
        runner = start(config(parameters=parameters))
        assert runner.run({"X": tensor("X", FP32, [[1, 2, 3, 4]])})[0]["Y"].tolist() == [[1, 2, 3, 4]]

    def test_a_shrinkage_of_nonsense_fails_the_run_with_the_runtimes_reason(
        self, models: Any, start: Any, tensor: Any
    ) -> None:
        models.unary()
        runner = start(config(parameters={"memory.enable_memory_arena_shrinkage": "nowhere:0"}))
        with pytest.raises(InternalError, match=r"^onnx runtime error 2: "):
            runner.run({"X": tensor("X", FP32, [[1, 2, 3, 4]])})

    @pytest.mark.parametrize(
        ("key", "value", "text"),
        [
            (
                "execution_mode",
                "2",
                "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
            ),
            ("execution_mode", "fast", "failed to convert 'fast' to integral number"),
            ("intra_op_thread_count", "many", "failed to convert 'many' to integral number"),
            ("inter_op_thread_count", "", "failed to convert '' to integral number"),
            ("enable_mem_arena", "yes", "failed to convert 'yes' to boolean"),
            ("enable_mem_pattern", "2", "failed to convert '2' to boolean"),
        ],
    )
    def test_values_that_are_refused(self, models: Any, key: str, value: str, text: str) -> None:
        models.unary()
        assert refusal(models, parameters={key: value}) == text

    def test_an_operation_library_that_is_not_there(self, models: Any) -> None:
        models.unary()
        text = refusal(models, InternalError, op_library_filenames=("/nowhere/ops.so",))
        assert text.startswith(
            "unable to load model 'm', custom operation library '/nowhere/ops.so': onnx runtime error"
        )


class TestBackendOptions:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"default-max-batch-size": "four"}, "failed to convert 'four' to integral number"),
            ({"enable-global-threadpool": "maybe"}, "failed to convert 'maybe' to boolean"),
            ({"intra_op_thread_count": "x"}, "failed to convert 'x' to integral number"),
        ],
    )
    def test_values_that_are_refused(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            OnnxRuntimeBackend(options)
        assert caught.value.message == text

    def test_one_pool_of_threads_for_all_sessions(self, models: Any) -> None:
        """In a process of its own: the pool belongs to the process, and sessions made before it would be in its way."""
        models.unary()
        program = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from trireme.engine.backends.interface import InstanceSpec, ModelFiles\n"
            "from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend\n"
            "from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput\n"
            "options = {'enable-global-threadpool': '1', 'intra_op_thread_count': '3', 'inter_op_thread_count': '1'}\n"
            "backend = OnnxRuntimeBackend(options)\n"
            "files = ModelFiles(Path(sys.argv[1]), 1)\n"
            "found = backend.auto_complete(ModelConfig('m', max_batch_size=4), files)\n"
            "threads = len(os.listdir('/proc/self/task'))\n"
            "wanted = {'intra_op_thread_count': '7'}\n"
            "config = ModelConfig('m', max_batch_size=4, input=found.input, output=found.output, parameters=wanted)\n"
            "model = backend.load(config, files)\n"
            "instances = [model.create_instance(InstanceSpec(f'm_{i}')) for i in range(3)]\n"
            "print(len(os.listdir('/proc/self/task')) - threads)\n"
            "print(instances[0].session.get_session_options().use_per_session_threads)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program, str(models.files.model_directory)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=Path(__file__).parent,
        )
        assert (ran.stdout.split(), ran.stderr, ran.returncode) == (["0", "False"], "", 0)


def test_without_the_package_a_model_says_what_to_install(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    models.unary()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    backend = OnnxRuntimeBackend({})
    with pytest.raises(UnavailableError, match=r"needs the package onnxruntime: pip install trireme-server\[cpu\]"):
        backend.load(config(), models.files)
    with pytest.raises(UnavailableError, match=r"pip install trireme-server\[cpu\]"):
        backend.auto_complete(ModelConfig("m"), models.files)


def test_the_package_is_not_imported_before_a_model_needs_it() -> None:
    program = (
        "import sys; from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend; OnnxRuntimeBackend({});"
        "print('onnxruntime' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "False"


def test_the_runtime_does_not_write_its_warnings(models: Any, capfd: pytest.CaptureFixture[str], start: Any) -> None:
    """An initialiser among the inputs is worth a warning to ONNX Runtime."""
    models.graph(
        [helper.make_node("Add", ["X", "B"], ["Y"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "XB"],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor("B", TensorProto.FLOAT, [1, 4], [1, 2, 3, 4])],
    )
    start(config())
    assert capfd.readouterr() == ("", "")


def test_a_failed_run_is_told_once_in_the_answer(
    models: Any, capfd: pytest.CaptureFixture[str], start: Any, tensor: Any
) -> None:
    models.unary("Cast", datatype="BYTES", output_datatype="INT64", to=TensorProto.INT64)
    inputs, outputs = (ModelInput("X", BYTES, (4,)),), (ModelOutput("Y", INT64, (4,)),)
    runner = start(ModelConfig("m", max_batch_size=8, input=inputs, output=outputs))
    with pytest.raises(InternalError, match=r"onnx runtime error 6: .* Cast node"):
        runner.run({"X": tensor("X", BYTES, [[b"no", b"number", b"at", b"all"]])})
    assert capfd.readouterr() == ("", "")
