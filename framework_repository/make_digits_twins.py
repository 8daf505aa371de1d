"""Writes the `digits` network once for each framework that Trireme serves.

    python framework_repository/make_digits_twins.py [REPOSITORY]

Takes the weights from ``model_repository/digits/1/model.onnx`` and writes, into the repository that this file lies in
unless told another:

* ``digits_torchscript``: a TorchScript module (PyTorch);
* ``digits_exported``: an exported program (PyTorch);
* ``digits_openvino``: OpenVINO's own format;
* ``digits_savedmodel``: a SavedModel (TensorFlow).

* ``digits_numpy``: the weights for its ``model.py`` (Python backend), which is written by hand.

None of that is under version control: the frameworks put the paths of whoever made them into their files.

Needs all of them: ``make serve-all`` installs them, or
``pip install "trireme-server[torch,openvino,tensorflow]" onnx``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ONNX = HERE.parent / "model_repository" / "digits"

CONFIG = """\
# Reads handwritten digits, as model_repository/digits does; written by make_digits_twins.py.
name: "{name}"
backend: "{backend}"
{platform}max_batch_size: 32

input {{
  name: "{input}"
  data_type: TYPE_FP32
  dims: [ 8, 8 ]
}}
output {{
  name: "{output}"
  data_type: TYPE_FP32
  dims: [ 10 ]
  label_filename: "labels.txt"
}}

dynamic_batching {{ }}
instance_group {{
  kind: KIND_CPU
  count: 1
}}
"""

Weights = dict[str, np.ndarray]


def read_weights() -> Weights:
    """``weight1`` to ``weight5`` and ``bias1`` to ``bias5``, and how bright a pixel can be."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(ONNX / "1" / "model.onnx").graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return {name: array for name, array in arrays.items() if name != "channel_axis"}


def torch_module(weights: Weights) -> Any:
    """IMAGE [n, 8, 8] to PROBABILITIES [n, 10]."""
    import torch
    from torch import nn

    layers: list[Any] = [
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(),
        nn.Linear(64, 10), nn.Softmax(1),
    ]  # fmt: skip
    with_weights = [layer for layer in layers if hasattr(layer, "weight")]
    for number, layer in enumerate(with_weights, start=1):
        layer.weight.data = torch.from_numpy(weights[f"weight{number}"].copy())
        layer.bias.data = torch.from_numpy(weights[f"bias{number}"].copy())

    class Digits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.layers((image / 16.0).unsqueeze(1))

    return Digits().eval()


def make_torchscript(weights: Weights, path: Path) -> None:
    import torch

    example = torch.zeros(2, 8, 8)
    torch.jit.trace(torch_module(weights), (example,)).save(str(path / "model.pt"))


def make_exported(weights: Weights, path: Path) -> None:
    import torch

    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(torch_module(weights), (torch.zeros(2, 8, 8),), dynamic_shapes={"image": {0: batch}})
    torch.export.save(program, path / "model.pt2")


def make_openvino(_weights: Weights, path: Path) -> None:
    import openvino

    model = openvino.convert_model(ONNX / "1" / "model.onnx")
    openvino.save_model(model, path / "model.xml", compress_to_fp16=False)


def make_saved_model(weights: Weights, path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.values = {name: tf.Variable(_for_tensorflow(array), name=name) for name, array in weights.items()}

    def digits(image: Any) -> dict[str, Any]:
        values = module.values
        hidden = tf.expand_dims(image / values["brightest"], -1)
        for number in (1, 2, 3):
            hidden = tf.nn.conv2d(hidden, values[f"weight{number}"], 1, "SAME") + values[f"bias{number}"]
            hidden = tf.nn.relu(hidden)
            if number > 1:
                hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
        # The dense layer was trained on channels first.
        hidden = tf.reshape(tf.transpose(hidden, [0, 3, 1, 2]), [-1, 256])
        hidden = tf.nn.relu(hidden @ values["weight4"] + values["bias4"])
        return {"PROBABILITIES": tf.nn.softmax(hidden @ values["weight5"] + values["bias5"])}

    module.digits = tf.function(digits, input_signature=[tf.TensorSpec([None, 8, 8], tf.float32, name="IMAGE")])
    tf.saved_model.save(module, str(path / "model.savedmodel"), signatures=module.digits)


def _for_tensorflow(array: np.ndarray) -> np.ndarray:
    """Convolutions as [height, width, in, out], dense layers as [in, out]."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T if array.ndim == 2 else array


def make_numpy(weights: Weights, path: Path) -> None:
    shutil.copy(HERE / "digits_numpy" / "1" / "model.py", path)
    np.savez(path / "weights.npz", **weights)


TWINS: dict[str, tuple[Any, dict[str, str]]] = {
    "digits_torchscript": (
        make_torchscript,
        {
            "backend": "pytorch",
            "platform": 'platform: "pytorch_libtorch"\n',
            "input": "IMAGE__0",
            "output": "PROBABILITIES__0",
        },
    ),
    "digits_exported": (
        make_exported,
        {"backend": "pytorch", "platform": 'platform: "torch_aoti"\n', "input": "ARGS[0]", "output": "RESULT"},
    ),
    "digits_openvino": (make_openvino, {"backend": "openvino"}),
    "digits_savedmodel": (
        make_saved_model,
        {"backend": "tensorflow", "platform": 'platform: "tensorflow_savedmodel"\n'},
    ),
    "digits_numpy": (make_numpy, {"backend": "python"}),
}


def main(repository: Path) -> None:
    weights = read_weights()
    defaults = {"platform": "", "input": "IMAGE", "output": "PROBABILITIES"}
    for name, (make, fields) in TWINS.items():
        version = repository / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name, **{**defaults, **fields}))
        shutil.copy(ONNX / "labels.txt", repository / name / "labels.txt")
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            make(weights, made)
            shutil.copytree(made, version, dirs_exist_ok=True)
        print(f"wrote {version}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
