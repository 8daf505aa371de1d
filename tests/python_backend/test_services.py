"""What Python models ask of their server besides other models: loading, metrics, the log
(docs/reference/python-backend.md#module-members)."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest
from calling_models import ADD_ONE, HEAD, TEXT, answer
from python_models import ask, child_processes, open_repository, until, write_model

from trireme.engine.options import ControlMode
from trireme.python_backend.child.segments import SMALLEST_BYTES


async def test_models_control_models(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            found = [pb_utils.is_model_ready("t")]
            pb_utils.load_model("t")
            found.append(pb_utils.is_model_ready("t"))
            found.append(pb_utils.is_model_ready("t", "2"))
            found.append(said(call("t", 1).exec()))
            pb_utils.unload_model("t")
            for use in (lambda: pb_utils.load_model("none"), lambda: pb_utils.is_model_ready("t", "x")):
                try:
                    use()
                except pb_utils.TritonModelException as error:
                    found.append(str(error))
            return [text(found)]
"""
    )
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "m", code, TEXT)
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with open_repository(tmp_path, **options) as server:
        found = await answer(server, "m", 0)
        assert found.startswith("[False, True, False, 2.0, ")
        assert "Failed to load model: Failed to process the request for model 'm_0', message: " in found
        assert "failed to get model version from specified version string 'x'" in found


async def test_models_have_metrics_which_go_with_them(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def initialize(self, args):
            kind = pb_utils.MetricFamily.COUNTER
            self.family = pb_utils.MetricFamily(name="rounds", description="of the model", kind=kind)
            self.metric = self.family.Metric(labels={"model": "m"})

        def execute(self, requests):
            self.metric.increment(value_of(requests[0]))
            try:
                self.metric.increment(-1)
            except pb_utils.TritonModelException as error:
                return [text(f"{self.metric.value()} {error}")]
"""
    )
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        assert server.custom_metrics.values("rounds") == [({"model": "m"}, 0.0)]
        found = await answer(server, "m", 5)
        assert found == (
            "5.0 Failed to increment metric value: Failed to process the request for model 'm_0', message: "
            "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
        )
        assert server.custom_metrics.values("rounds") == [({"model": "m"}, 5.0)]
        (pid,) = child_processes()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: server.custom_metrics.values("rounds") == [({"model": "m"}, 0.0)])
    assert server.custom_metrics.values("rounds") == []


async def test_logger_output_comes_into_the_log_and_what_is_printed_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log writes `bare` records without a preamble, those of a graver level to the standard error."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            import sys
            pb_utils.Logger.log_warn("through the logger")
            print("printed\\non two lines")
            sys.stderr.write("complained\\n")
            os.write(1, b"no end of line")
            return [response(1)]
"""
    )
    directory = write_model(tmp_path, "m", code)
    with caplog.at_level(logging.INFO, "trireme.python"):
        async with open_repository(tmp_path) as server:
            await server.infer(ask("m", 1))
    records = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("WARNING", "through the logger") in records
    (logged,) = [record for record in caplog.records if record.getMessage() == "through the logger"]
    assert (logged.pathname, logged.lineno) == (str(directory / "1" / "model.py"), 43)
    printed = [record for record in caplog.records if getattr(record, "bare", False)]
    on_stdout = [record.getMessage() for record in printed if record.levelno == logging.INFO]
    assert "\n".join(on_stdout).split("\n") == ["printed", "on two lines", "no end of line"]
    assert [record.getMessage() for record in printed if record.levelno > logging.INFO] == ["complained"]


async def test_a_server_that_starts_is_not_asked(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def initialize(self, args):
            try:
                pb_utils.is_model_ready("t")
            except pb_utils.TritonModelException as error:
                self.error = str(error)

        def execute(self, requests):
            return [text(self.error)]
"""
    )
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        assert (await answer(server, "m", 0)).endswith("message: Server not ready")


async def test_a_model_reads_how_much_shared_memory_is_free(tmp_path: Path) -> None:
    """Under the name by which public models import it. What a large answer took is free again after it."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            import c_python_backend_utils as c_utils
            if value_of(requests[0]) == 1:
                return [response(c_utils.shared_memory.free_memory())]
            return [response(*([1] * 100_000))]
"""
    )
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:

        async def free() -> float:
            return float((await server.infer(ask("m", 1))).outputs[0].array[0, 0])

        assert await free() == 0
        await server.infer(ask("m", 2))
        assert await free() == 2 * SMALLEST_BYTES
