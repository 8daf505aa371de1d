"""What follows from names and files, without opening a model
(docs/reference/model-configuration.md#backend-platform-and-file)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.config.platforms import complete_backend
from trireme.engine.errors import InvalidArgumentError

MakeModel = Callable[..., Path]

BY_FILE = [
    ("model.savedmodel/", "tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    ("model.graphdef", "tensorflow", "tensorflow_graphdef", "model.graphdef"),
    ("model.plan", "tensorrt", "tensorrt_plan", "model.plan"),
    ("model.onnx", "onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ("model.onnx/", "onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ("model.xml", "openvino", "", "model.xml"),
    ("model.pt", "pytorch", "pytorch_libtorch", "model.pt"),
    ("model.pt2", "pytorch", "torch_aoti", "model.pt2"),
    ("model.py", "python", "", "model.py"),
]


def _complete(directory: Path, **fields: str) -> tuple[str, str, str]:
    message = ModelConfigMessage(**fields)
    complete_backend(message, directory)
    assert message.name == directory.name
    return message.backend, message.platform, message.default_model_filename


@pytest.mark.parametrize(("file", "backend", "platform", "filename"), BY_FILE)
def test_a_file_tells_everything(make_model: MakeModel, file: str, backend: str, platform: str, filename: str) -> None:
    assert _complete(make_model(files=(file,))) == (backend, platform, filename)


@pytest.mark.parametrize(("file", "backend", "platform", "filename"), BY_FILE)
def test_a_given_filename_tells_as_much(
    make_model: MakeModel, file: str, backend: str, platform: str, filename: str
) -> None:
    assert _complete(make_model(), default_model_filename=filename) == (backend, platform, filename)


@pytest.mark.parametrize(
    ("platform", "backend", "filename"),
    [
        ("tensorflow_savedmodel", "tensorflow", "model.savedmodel"),
        ("tensorflow_graphdef", "tensorflow", "model.graphdef"),
        ("tensorrt_plan", "tensorrt", "model.plan"),
        ("onnxruntime_onnx", "onnxruntime", "model.onnx"),
        ("pytorch_libtorch", "pytorch", ""),
        ("libtorch", "pytorch", ""),
        ("torch_aoti", "pytorch", "model.pt2"),
        ("ensemble", "", ""),
        ("unheard_of", "", ""),
    ],
)
def test_a_given_platform_tells_the_backend(make_model: MakeModel, platform: str, backend: str, filename: str) -> None:
    assert _complete(make_model(files=("model.py",)), platform=platform) == (backend, platform, filename)


@pytest.mark.parametrize(
    ("backend", "platform", "filename"),
    [
        ("tensorrt", "tensorrt_plan", "model.plan"),
        ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ("openvino", "", "model.xml"),
        ("pytorch", "pytorch_libtorch", "model.pt"),
        ("python", "", "model.py"),
        ("tensorflow", "", ""),
        ("my_own", "", ""),
    ],
)
def test_a_given_backend_tells_the_filename(make_model: MakeModel, backend: str, platform: str, filename: str) -> None:
    assert _complete(make_model(), backend=backend) == (backend, platform, filename)


@pytest.mark.parametrize("file", ["config.json", "modules.json"])
def test_a_network_of_hugging_face_is_known_by_its_files(make_model: MakeModel, file: str) -> None:
    """Unless there is something else that tells the backend."""
    assert _complete(make_model(files=(file,))) == ("generation", "", "")
    assert _complete(make_model(files=(file, "model.onnx")))[0] == "onnxruntime"
    assert _complete(make_model(files=(file,)), backend="my_own") == ("my_own", "", "")


def test_given_values_stay(make_model: MakeModel) -> None:
    directory = make_model(files=("model.onnx",))
    assert _complete(directory, backend="onnxruntime", default_model_filename="other.onnx") == (
        "onnxruntime",
        "onnxruntime_onnx",
        "other.onnx",
    )
    assert _complete(directory, backend="python") == ("python", "", "model.py")
    assert _complete(directory, backend="python", platform="onnxruntime_onnx") == (
        "python",
        "onnxruntime_onnx",
        "model.py",
    )


@pytest.mark.parametrize(
    ("files", "backend"),
    [
        (("model.py", "model.onnx"), "onnxruntime"),
        (("model.pt", "model.pt2", "model.py"), "pytorch"),
        (("model.plan", "model.graphdef"), "tensorflow"),
        (("model.plan/", "model.savedmodel", "model.pt/", "model.py"), "python"),
    ],
)
def test_order_of_the_table_decides(make_model: MakeModel, files: tuple[str, ...], backend: str) -> None:
    assert _complete(make_model(files=files))[0] == backend


def test_torchscript_goes_before_an_aoti_package(make_model: MakeModel) -> None:
    assert _complete(make_model(files=("model.pt", "model.pt2")))[1:] == ("pytorch_libtorch", "model.pt")
    assert _complete(make_model(name="n", files=("model.pt2",)), backend="pytorch")[1:] == ("torch_aoti", "model.pt2")


def test_only_the_first_sub_directory_counts(make_model: MakeModel) -> None:
    directory = make_model(files=("model.onnx",))
    (directory / "0extra").mkdir()
    (directory / "0extra" / "model.py").touch()
    assert _complete(directory)[0] == "python"


def test_name_tells_the_backend_when_nothing_else_does(make_model: MakeModel) -> None:
    assert _complete(make_model(name="addsub.my.own")) == ("my.own", "", "model.my.own")


def test_without_any_hint_the_model_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    text = (
        "Invalid model name: Could not determine backend for model '{}' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )
    with pytest.raises(InvalidArgumentError) as caught:
        _complete(make_model(files=("model.bin",)))
    assert str(caught.value) == text.format("m")
    with pytest.raises(InvalidArgumentError) as caught:
        _complete(tmp_path / "absent")
    assert str(caught.value) == text.format("absent")
