"""Exported programs and compiled packages (docs/reference/backends.md#exported-programs), with the real PyTorch."""

from __future__ import annotations

import inspect
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _pytree
from torch_modules import Scale, Tree

from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.pytorch.formats import load_exported
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError, InvalidArgumentError, UnavailableError

_AOTI_LOAD = torch._inductor.aoti_load_package

X_AND_Y: Any = SimpleNamespace(inputs=("ARGS[0]",), outputs=("RESULT",))
PLATFORM = 'platform: "torch_aoti"'


def export(models: Any, module: torch.nn.Module, *args: Any, shapes: Any = None, **kwargs: Any) -> Any:
    program = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=shapes)
    torch.export.save(program, models.files.version_directory / "model.pt2")
    return program


def export_tree(models: Any) -> Any:
    rows = torch.export.Dim("rows")
    return export(
        models,
        Tree(),
        torch.ones(2, 2),
        {"x": torch.ones(2, 2)},
        scale=torch.ones(1),
        shapes={"a": {0: rows}, "pair": {"x": {0: rows}}, "scale": None},
    )


def tensors(inputs: list[str], outputs: list[str]) -> str:
    text = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ' for name in inputs)
    return text + "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ' for name in outputs)


NAMES = {
    "structure": (["KWARGS[scale]", "ARGS[1][x]", "ARGS[0]"], ["RESULT[scaled][0]", "RESULT[sum]"]),
    "index": (["INPUT__2", "INPUT__1", "INPUT__0"], ["OUTPUT__1", "OUTPUT__0"]),
}


@pytest.mark.parametrize("names", NAMES)
def test_leaves_are_found_by_structure_or_by_index(
    models: Any, begin: Any, pytorch_config: Any, tensor: Any, names: str
) -> None:
    export_tree(models)
    (scale, x, a), (scaled, total) = NAMES[names]
    runner = begin(pytorch_config(PLATFORM, tensors([scale, x, a], [scaled, total])))
    (answer,) = runner.run(
        {
            scale: tensor(scale, FP32, [3]),
            x: tensor(x, FP32, [[10, 20]] * 4),
            a: tensor(a, FP32, [[1, 2]] * 4),
        }
    )
    assert answer[scaled].tolist() == [[3.0, 6.0]] * 4
    assert answer[total].tolist() == [[11.0, 22.0]] * 4


def test_a_single_result_is_called_result(models: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    export(models, Scale(), torch.ones(2, 2), shapes={"x": {0: torch.export.Dim("rows")}})
    text = tensors(["ARGS[0]"], ["RESULT"]).replace("-1, -1", "2")
    runner = begin(pytorch_config(f"{PLATFORM} max_batch_size: 8", text))
    name = "ARGS[0]"
    answers = runner.run({name: tensor(name, FP32, [[1, 2]])}, {name: tensor(name, FP32, [[3, 4]] * 2)}, rows=[1, 2])
    assert [answer["RESULT"].tolist() for answer in answers] == [[[2.0, 4.0]], [[6.0, 8.0]] * 2]


def refusal(begin: Any, config: Any, kind: type[Exception] = InvalidArgumentError) -> str:
    with pytest.raises(kind) as caught:
        begin(config)
    return str(caught.value)


def test_a_name_of_no_leaf_is_refused_with_those_there_are(models: Any, begin: Any, pytorch_config: Any) -> None:
    export_tree(models)
    names = ["ARGS[0]", "ARGS[1][y]", "KWARGS[scale]"]
    assert refusal(begin, pytorch_config(PLATFORM, tensors(names, ["RESULT[sum]"]))) == (
        "unexpected inference input 'ARGS[1][y]' for model 'm', allowed inputs are: ARGS[0], ARGS[1][x], "
        "KWARGS[scale], or INPUT__<index>"
    )


def test_every_leaf_of_the_arguments_must_be_configured(models: Any, begin: Any, pytorch_config: Any) -> None:
    export_tree(models)
    text = refusal(begin, pytorch_config(PLATFORM, tensors(["ARGS[0]"], ["RESULT[sum]"])))
    assert text == "unable to load model 'm', configuration expects 1 inputs, model provides 3"


def test_a_file_that_is_no_package_is_refused(models: Any, begin: Any, pytorch_config: Any) -> None:
    (models.files.version_directory / "model.pt2").write_bytes(b"rubbish")
    text = refusal(begin, pytorch_config(PLATFORM, tensors(["ARGS[0]"], ["RESULT"])), InternalError)
    assert text.startswith("failed to load model 'm': ")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles models with g++, which is not there")
def test_a_compiled_package_answers_as_its_program(
    models: Any, begin: Any, pytorch_config: Any, tensor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    program = export(models, Scale(), torch.ones(2, 2), shapes={"x": {0: torch.export.Dim("rows")}})
    path = models.files.version_directory / "model.pt2"
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    runner = begin(pytorch_config(PLATFORM, tensors(["ARGS[0]"], ["RESULT"])))
    (answer,) = runner.run({"ARGS[0]": tensor("ARGS[0]", FP32, [[1, 2]] * 3)})
    assert answer["RESULT"].tolist() == [[2.0, 4.0]] * 3


class Counting(torch.nn.Module):
    """Makes a tensor of its own, on a device that is written into the program then."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(2, device=x.device)


def test_a_program_is_moved_with_the_devices_that_are_written_into_it(models: Any) -> None:
    export(models, Counting(), torch.ones(2, 2))
    elsewhere = torch.device("meta")
    path = models.files.version_directory / "model.pt2"
    program = load_exported(torch, path, "m", X_AND_Y, elsewhere)
    (result,) = program.run({"ARGS[0]": torch.ones(2, 2, device=elsewhere)})
    assert result.device == elsewhere


class Loader:
    """What ``aoti_load_package`` gives."""

    def __init__(self) -> None:
        _, args = _pytree.tree_flatten(((1,), {}))
        _, result = _pytree.tree_flatten(1)
        self.loader = self
        self._specs = [_pytree.treespec_dumps(spec) for spec in (args, result)]

    def get_call_spec(self) -> list[str]:
        return self._specs

    def get_metadata(self) -> dict[str, str]:
        return {"AOTI_DEVICE_KEY": "cuda"}


def compiled(models: Any, load: Any, device: str, **options: bool) -> None:
    path = models.files.version_directory / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/aotinductor/model/x.so", b"")
    stand_in = SimpleNamespace(
        _inductor=SimpleNamespace(aoti_load_package=load), utils=torch.utils, jit=torch.jit, __version__="2.7.1"
    )
    load_exported(stand_in, path, "m", X_AND_Y, torch.device(device), **options)


@pytest.mark.parametrize("alone", [True, False])
def test_a_compiled_program_is_loaded_for_its_gpu_and_without_locks_unless_it_is_shared(
    models: Any, alone: bool
) -> None:
    told: list[tuple[bool, int]] = []

    def load(path: str, run_single_threaded: bool = False, device_index: int = -1) -> Loader:
        told.append((run_single_threaded, device_index))
        return Loader()

    assert inspect.signature(load).parameters.keys() == inspect.signature(_AOTI_LOAD).parameters.keys()
    compiled(models, load, "cuda:1", alone=alone)
    assert told == [(alone, 1)]


@pytest.mark.parametrize("shared", [False, True])
def test_a_program_that_instances_share_keeps_its_locks(
    models: Any, pytorch_config: Any, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    export(models, Scale(), torch.ones(2, 2))
    told: list[bool] = []

    def load(*args: Any, alone: bool) -> Any:
        told.append(alone)
        return load_exported(*args, alone=alone)

    monkeypatch.setattr("trireme.engine.backends.pytorch.backend.load_exported", load)
    flag = 'parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } }' if shared else ""
    PyTorchBackend({}).load(pytorch_config(f"{PLATFORM} {flag}", tensors(["ARGS[0]"], ["RESULT"])), models.files)
    assert told == [not shared]


def test_a_torch_that_cannot_choose_the_gpu_is_too_old(models: Any) -> None:
    with pytest.raises(UnavailableError, match=r"on GPUs need PyTorch 2.8 or later, not 2.7.1"):
        compiled(models, lambda path, run_single_threaded=False: Loader(), "cuda:0")


def test_programs_may_be_loaded_at_the_same_time(models: Any, pytorch_config: Any) -> None:
    """torch can read one at a time only."""
    export_tree(models)
    (scale, x, a), outputs = NAMES["index"]
    config = pytorch_config(PLATFORM, tensors([scale, x, a], list(outputs)))
    backend = PyTorchBackend({})
    with ThreadPoolExecutor(8) as threads:
        loads = [threads.submit(backend.load, config, models.files) for _ in range(16)]
    for load in loads:
        load.result().close()
