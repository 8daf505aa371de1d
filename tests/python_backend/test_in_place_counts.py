"""When a load that changes instance groups in place returns, instances that go have finalised, and those that come have
initialised."""

from __future__ import annotations

from pathlib import Path

from python_models import CONFIG, ask, open_repository, write_model

from trireme.engine.options import ControlMode

COUNTING = """
    import os

    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.note("initialised")

        def note(self, what):
            with open(os.path.join(pb_utils.get_model_dir(), "../../../notes"), "a") as notes:
                notes.write(what + "\\n")

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
                    for r in requests]

        def finalize(self):
            self.note("finalised")
"""


async def test_a_load_returns_when_instances_have_come_and_gone(tmp_path: Path) -> None:
    config = CONFIG + "instance_group [{ kind: KIND_CPU count: %d }]"
    repository = tmp_path / "repository"  # notes beside it: a change of the model's files would be a reload
    directory = write_model(repository, "m", COUNTING, config % 3)
    notes = tmp_path / "notes"
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with open_repository(repository, **options) as server:
        for count, come, gone in ((1, 3, 2), (3, 5, 2), (2, 5, 3)):
            (directory / "config.pbtxt").write_text(config % count)
            await server.load_model("m", {})
            written = notes.read_text().split()
            assert (written.count("initialised"), written.count("finalised")) == (come, gone)
            assert (await server.infer(ask("m", 1))).outputs[0].array.item() == 1
