"""What is installed is what is in the folders: packages, modules, data files, command and entry points."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from house_rules import Source, imports

ROOT = Path(__file__).parents[1]
FOLDERS = ("actors", "api", "engine", "front_ends", "proto", "python_backend", "simulations")

IMPORT_EACH = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""

LOAD_COMMAND_AND_BACKENDS = """
import importlib.metadata, sys
(distribution,) = importlib.metadata.distributions(name="trireme", path=[sys.argv[1]])
for point in distribution.entry_points:
    print(point.group, point.name, callable(point.load()))
from trireme.engine.backends.registry import OWN, BackendRegistry
backends = BackendRegistry(lambda name: {})
for name in OWN:
    print("backend", name, backends.get(name).name == name)
from trireme.engine.version import VERSION
print("version", distribution.version == VERSION)
"""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_folders() -> Iterator[Path]:
    """Every folder with Python code below these, relative to the root."""
    for folder in FOLDERS:
        for path in [ROOT / folder, *(ROOT / folder).rglob("*/")]:
            if path.is_dir() and any(path.glob("*.py")):
                yield path.relative_to(ROOT)


def python_files() -> list[Path]:
    return [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the wheel, built from a copy of the sources."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run_installed(installed: Path, code: str, *arguments: str) -> str:
    """What `code` prints in a Python that finds trireme in `installed` before anywhere else."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {"PYTHONPATH": str(installed), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=installed, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_packages_are_the_folders(project: dict[str, Any]) -> None:
    """`packages` in pyproject.toml lists every folder with code, and no other."""
    setuptools = project["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted("trireme." + ".".join(path.parts) for path in packages_in_folders())
    assert setuptools["package-dir"] == {f"trireme.{folder}": folder for folder in FOLDERS}


def test_every_package_is_typed() -> None:
    """A `py.typed` in each package tells type checkers to read the annotations."""
    assert [path for path in packages_in_folders() if not (ROOT / path / "py.typed").is_file()] == []
    assert [path for path in packages_in_folders() if not (ROOT / path / "__init__.py").is_file()] == []


def test_wheel_holds_every_file(installed: Path) -> None:
    """Code and data of every package, under `trireme/`, and nothing outside of it."""
    kinds = ("*.py", "*.pb", "*.proto", "py.typed")
    files = {path.relative_to(ROOT) for folder in FOLDERS for kind in kinds for path in (ROOT / folder).rglob(kind)}
    assert {path for path in files if not (installed / "trireme" / path).is_file()} == set()
    assert Path("proto/model_config.pb") in files
    assert {path.name for path in installed.iterdir() if path.is_dir()} == {"trireme", "trireme-0.1.0.dist-info"}


def test_every_module_of_the_wheel_imports(installed: Path) -> None:
    """Nothing that a module needs was left behind in the source tree."""
    names = [".".join(("trireme", *path.with_suffix("").parts)).removesuffix(".__init__") for path in python_files()]
    files = json.loads(run_installed(installed, IMPORT_EACH, *names))
    assert set(files) == set(names)
    assert [file for file in files.values() if not file.startswith(str(installed))] == []


def test_command_and_backends_resolve(installed: Path) -> None:
    """The `trireme` command and the backends that come with Trireme are there."""
    names = ("onnxruntime", "openvino", "pytorch", "python", "tensorflow", "tensorrt")
    assert run_installed(installed, LOAD_COMMAND_AND_BACKENDS, str(installed)).splitlines() == [
        "console_scripts trireme True",
        *(f"backend {name} True" for name in names),
        "version True",
    ]


def test_everything_imported_is_declared(project: dict[str, Any]) -> None:
    """The library imports only what `dependencies` installs; a runtime comes with its extra, the compiler with dev."""
    declared = {normal(name) for name in project["project"]["dependencies"]}
    extras = project["project"]["optional-dependencies"]
    optional = {
        "actors/tracing.py": "tracing",
        "api/cli/tables.py": "terminal",
        "engine/backends/onnxruntime/": "cpu",
        "engine/tracing/spans.py": "tracing",
        "proto/compile.py": "dev",
        "simulations/command.py": "terminal",
    }
    distributions = importlib.metadata.packages_distributions()
    undeclared = []
    for path in python_files():
        source = Source(path.as_posix(), (ROOT / path).read_text())
        extra = next((extra for start, extra in optional.items() if source.path.startswith(start)), "")
        allowed = declared | {normal(name) for name in extras.get(extra, ())}
        for line, module, _ in imports(source):
            top = module.split(".")[0]
            if top not in {"trireme", *sys.stdlib_module_names}:
                providers = {normal(name) for name in distributions.get(top, [])}
                if not providers & allowed:
                    undeclared.append(f"{source.path}:{line}: {module}")
    assert undeclared == []


def test_what_only_some_need_is_an_extra(project: dict[str, Any]) -> None:
    dependencies = {normal(name) for name in project["project"]["dependencies"]}
    assert not {name for name in dependencies if name.startswith(("opentelemetry", "nvidia"))}
    assert not dependencies & {"rich", "redis", "onnxruntime", "pillow", "prometheus-client"}


def test_everything_installed_is_pinned(project: dict[str, Any]) -> None:
    """constraints.txt names one version of every direct dependency, extras included."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {normal(name) for name in pins}
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *(requirement for extra in extras for requirement in extra)]
    assert {requirement for requirement in wanted if normal(requirement) not in pinned} == set()
    assert pins["protobuf"].startswith("6.33."), "tritonclient does not accept protobuf 7"


def test_only_tritonclient_holds_protobuf_back(project: dict[str, Any]) -> None:
    """The library runs on protobuf 6 and 7; the cap comes with the extras that install tritonclient."""
    dependencies, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    assert [each for each in dependencies if normal(each) == "protobuf" and "<" in each] == []
    with_client = {name for name, given in extras.items() if "tritonclient" in map(normal, given)}
    assert with_client == {name for name, given in extras.items() if "protobuf<7" in given}


def normal(requirement: str) -> str:
    """The name in a requirement, in the one spelling that package indexes use."""
    name = requirement.split("[")[0]
    for sign in "<>=!~; ":
        name = name.split(sign)[0]
    return name.lower().replace("_", "-").replace(".", "-")


def test_make_help_names_every_command() -> None:
    # Under `make test`, the inner make would also say which directory it enters and leaves.
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    (commands,) = (line.split()[1:] for line in (ROOT / "Makefile").read_text().splitlines() if line[:7] == ".PHONY:")
    assert sorted(line.split()[1] for line in shown) == sorted(commands)
