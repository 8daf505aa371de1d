"""The models of `python_backend.py`: a repository of `model.py` files that Trireme and the real Triton serve alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servers import identity_config, write_identity

SMALL, LARGE = 16, 1 << 20
"""FP32 numbers in a tensor."""

STEPS = ("step_1", "step_2", "step_3")

ADD_SUB_PY = '''"""Sum and difference of two tensors."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            first = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            second = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", first + second), pb_utils.Tensor("OUTPUT1", first - second)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
'''

CHAIN_PY = f'''"""Three models one after the other, each on what the one before has answered."""

import triton_python_backend_utils as pb_utils

STEPS = {STEPS!r}


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]

    def answer(self, tensor):
        for step in STEPS:
            given = pb_utils.Tensor("INPUT0", tensor.as_numpy())
            call = pb_utils.InferenceRequest(model_name=step, inputs=[given], requested_output_names=["OUTPUT0"])
            response = call.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            tensor = pb_utils.get_output_tensor_by_name(response, "OUTPUT0")
        return pb_utils.InferenceResponse([tensor])
'''


@dataclass(frozen=True)
class Case:
    """A model that is measured.

    Attributes:
        concurrencies: requests in flight.
    """

    model: str
    what: str
    concurrencies: tuple[int, ...]


CASES = (
    Case("identity", f"identity FP32[{SMALL}]", (1, 16)),
    Case("identity_large", f"identity FP32[{LARGE}]", (1, 4)),
    Case("add_sub", f"add_sub FP32[{SMALL}]", (1, 16)),
    Case("chain", f"BLS chain of {len(STEPS)}, FP32[{SMALL}]", (1, 16)),
)


def write_models(repository: Path) -> None:
    """Write the models of `CASES`, and those that the chain calls: one instance each. Those with small tensors have
    dynamic batching."""
    for name in ("identity", *STEPS):
        write_identity(repository, name, SMALL, max_batch_size=64)
    write_identity(repository, "identity_large", LARGE, max_batch_size=0)
    _write(repository, "chain", CHAIN_PY, identity_config("chain", "python", SMALL, max_batch_size=64))
    more = "".join(
        f'{kind} {{ name: "{name}1" data_type: TYPE_FP32 dims: [ {SMALL} ] }}\n'
        for kind, name in (("input", "INPUT"), ("output", "OUTPUT"))
    )
    _write(repository, "add_sub", ADD_SUB_PY, identity_config("add_sub", "python", SMALL, max_batch_size=64) + more)


def _write(repository: Path, name: str, code: str, config: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(config)
