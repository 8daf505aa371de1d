"""What is installed is what is in the folders: packages, modules, data files, command and entry points."""

from __future__ import annotations

import email
import importlib.metadata
import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from house_rules import Source, imports
from markdown_it import MarkdownIt
from repository_models import link_models

from trireme.engine.version import VERSION

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "actors",
    "api",
    "apps",
    "cluster",
    "engine",
    "foresight",
    "clients",
    "front_ends",
    "gateway",
    "package",
    "proto",
    "python_backend",
    "simulations",
)
TOP = "package"
"""The folder that is `trireme` itself; each other one is a package in it."""
BESIDE_FOLDERS = (
    "CHANGELOG.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
)
DISTRIBUTION = "trireme-server"
MODELS_MODULE = "triton_python_backend_utils"
"""Whoever runs a model brings it: Trireme, or Triton."""
UNPINNED = {"onnxruntime-gpu": "another version for CUDA 12 than for CUDA 13"}

IMPORT_EACH = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""

LOAD_COMMAND_AND_BACKENDS = """
import importlib.metadata, sys
(distribution,) = importlib.metadata.distributions(name="trireme-server", path=[sys.argv[1]])
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


def below_trireme(path: Path) -> Path:
    """Where a file of one of the folders is in the installed `trireme`."""
    return path.relative_to(TOP) if path.parts[0] == TOP else path


def dotted(path: Path) -> str:
    return ".".join(("trireme", *below_trireme(path).parts))


def python_files() -> list[Path]:
    return [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and with the wheel that is built from it."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE_FOLDERS:
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the wheel."""
    target = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


@pytest.fixture(scope="module")
def metadata(installed: Path) -> Message:
    return email.message_from_string((installed / f"trireme_server-{VERSION}.dist-info" / "METADATA").read_text())


@pytest.fixture(scope="module")
def fresh(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which the wheel has been installed; what it needs is that of this one."""
    target = tmp_path_factory.mktemp("fresh")
    venv.create(target, symlinks=True)
    (wheel,) = built.glob("*.whl")
    command = [sys.executable, "-m", "pip", "--python", str(target), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--no-compile", str(wheel)], check=True)
    (packages,) = target.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    return target / "bin"


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
    assert sorted(setuptools["packages"]) == sorted(map(dotted, packages_in_folders()))
    assert setuptools["package-dir"] == {dotted(Path(folder)): folder for folder in FOLDERS}


def test_every_package_is_typed() -> None:
    """A `py.typed` in each package tells type checkers to read the annotations."""
    assert [path for path in packages_in_folders() if not (ROOT / path / "py.typed").is_file()] == []
    assert [path for path in packages_in_folders() if not (ROOT / path / "__init__.py").is_file()] == []


def test_wheel_holds_every_file(installed: Path) -> None:
    """Code and data of every package, under `trireme/`, and nothing outside of it."""
    kinds = ("*.py", "*.pb", "*.proto", "py.typed")
    files = {path.relative_to(ROOT) for folder in FOLDERS for kind in kinds for path in (ROOT / folder).rglob(kind)}
    assert {path for path in files if not (installed / "trireme" / below_trireme(path)).is_file()} == set()
    assert Path("proto/model_config.pb") in files
    assert {path.name for path in installed.iterdir()} == {"trireme", f"trireme_server-{VERSION}.dist-info"}


def test_every_module_of_the_wheel_imports(installed: Path) -> None:
    """Nothing that a module needs was left behind in the source tree. The slow test of fleets on Ray imports those that
    need it, which is not installed here."""
    paths = [path for path in python_files() if not re.search(r"^import ray$", (ROOT / path).read_text(), re.MULTILINE)]
    names = [dotted(path.with_suffix("")).removesuffix(".__init__") for path in paths]
    files = json.loads(run_installed(installed, IMPORT_EACH, *names))
    assert set(files) == set(names)
    assert [file for file in files.values() if not file.startswith(str(installed))] == []


def test_the_chart_has_the_servers_version() -> None:
    chart = (ROOT / "deploy" / "helm" / "trireme" / "Chart.yaml").read_text()
    versions = re.findall(r"^(?:version|appVersion): (.*)$", chart, re.MULTILINE)
    assert versions == [VERSION, VERSION]


def test_metadata_are_complete(metadata: Message) -> None:
    assert (metadata["Name"], metadata["License-Expression"]) == (DISTRIBUTION, "Apache-2.0")
    for field in ("Summary", "Author", "Keywords", "Requires-Python"):
        assert metadata[field], field
    labels = {each.partition(",")[0] for each in metadata.get_all("Project-URL", ())}
    assert labels == {"Repository", "Documentation", "Changelog", "Issues"}
    classifiers = metadata.get_all("Classifier", ())
    assert {"Framework :: Trio", "Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(classifiers)
    assert {"all", "access", "cloud", "cuda12", "cuda13"} <= set(metadata.get_all("Provides-Extra", ()))


def description(metadata: Message) -> str:
    return str(metadata.get_payload())


def test_links_of_the_description_are_absolute(metadata: Message) -> None:
    """The package index shows README.md without the files beside it."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    shown = [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for block in MarkdownIt("commonmark").parse(description(metadata))
        for token in block.children or ()
        if token.type in ("link_open", "image")
    ]
    (base,) = (url.split(", ")[1] for url in metadata.get_all("Project-URL", ()) if url.startswith("Repository"))
    assert [link for link in shown if not link.startswith("https://")] == []
    ours = [link.removeprefix(f"{base}/") for link in shown if link.startswith(base)]
    assert len(ours) > 30
    assert {f"blob/v{VERSION}/docs/benchmarks.md#goals", f"raw/v{VERSION}/docs/bench/bench.png"} <= set(ours)
    paths = {link.split("/", 2)[2].partition("#")[0] for link in ours}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_description_is_the_readme_but_for_links(metadata: Message) -> None:
    described, written = description(metadata).splitlines(), (ROOT / "README.md").read_text().splitlines()
    assert len(described) == len(written)
    assert [line for line, told in zip(written, described, strict=True) if line != told and "](" not in line] == []


def test_extras_ask_for_trireme_by_its_name(project: dict[str, Any]) -> None:
    """An extra that is made of others names those that there are."""
    extras = project["project"]["optional-dependencies"]
    inner = [given for requirements in extras.values() for given in requirements if normal(given) == DISTRIBUTION]
    assert {name for given in inner for name in given[given.index("[") + 1 : -1].split(",")} <= extras.keys()
    texts = "\n".join(path.read_text() for folder in (*FOLDERS, "docs") for path in (ROOT / folder).rglob("*.[pm][yd]"))
    named = {name for names in re.findall(r"trireme-server\[([\w,-]+)\]", texts) for name in names.split(",")}
    assert named <= extras.keys()
    assert not re.search(r"\btrireme\[[\w{]", texts), "that is another project's package"


def test_cuda_12_and_13_are_not_mixed(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    for version in ("12", "13"):
        packages = [*extras[f"cuda{version}"], *extras["tensorrt-cuda12" if version == "12" else "tensorrt"]]
        built_for = {found[1] for each in packages if (found := re.search(r"-cu(?:da)?(1\d)", each))}
        assert built_for == {version}


def test_wheel_runs_in_a_fresh_environment(fresh: Path, tmp_path: Path) -> None:
    """The command, the module and the version, where nothing of the sources can be found."""

    def told(*words: str) -> str:
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    python = str(fresh / "python")
    assert (
        told(str(fresh / "trireme"), "--version") == told(python, "-m", "trireme", "--version") == f"trireme {VERSION}"
    )
    version, file = told(python, "-c", "import trireme; print(trireme.__version__, trireme.__file__)").split()
    assert (version, Path(file).is_relative_to(fresh.parent)) == (VERSION, True)


@pytest.mark.slow
def test_wheel_installs_with_all_that_it_needs(built: Path, tmp_path: Path) -> None:
    """What the metadata ask for is enough to serve, in an environment of nothing else."""
    venv.create(tmp_path / "all", symlinks=True)
    (wheel,) = built.glob("*.whl")
    wanted = f"{DISTRIBUTION}[all] @ {wheel.as_uri()}"
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "all"), "install", "--quiet", "--no-compile"]
    done = subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), wanted], capture_output=True, text=True)
    if "connection broken" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr}")
    assert done.returncode == 0, done.stderr
    serve_simple(tmp_path / "all" / "bin" / "python", tmp_path)


def test_wheel_serves_in_a_fresh_environment(fresh: Path, tmp_path: Path) -> None:
    serve_simple(fresh / "python", tmp_path)


def serve_simple(python: Path, tmp_path: Path) -> None:
    """Ask the model `simple`, served by that interpreter."""
    models = link_models(tmp_path / "models", "simple")
    words = ["-m", "trireme", "serve", f"--model-repository={models}", "--http-address=127.0.0.1", "--http-port=0"]
    words += ["--allow-grpc=false", "--allow-metrics=false", "--front-ends=0"]
    process = subprocess.Popen([str(python), *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        started = (re.search(r"Started HTTPService at 127\.0\.0\.1:(\d+)", line) for line in process.stdout)
        port = next(found[1] for found in started if found)
        numbers = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
        asked = json.dumps({"inputs": [{"name": name, **numbers} for name in ("INPUT0", "INPUT1")]}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/simple/infer", asked) as answer:
            outputs = {each["name"]: each["data"] for each in json.load(answer)["outputs"]}
        assert outputs == {"OUTPUT0": list(range(0, 32, 2)), "OUTPUT1": [0] * 16}
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.kill()
        process.communicate()


def test_commands_and_backends_resolve(installed: Path, project: dict[str, Any]) -> None:
    """The `trireme` command, those that other packages add to it, and the backends that come with Trireme are there."""
    names = ("generation", "onnxruntime", "openvino", "pytorch", "python", "tensorflow", "tensorrt")
    assert run_installed(installed, LOAD_COMMAND_AND_BACKENDS, str(installed)).splitlines() == [
        "console_scripts trireme True",
        *(f"trireme.commands {name} True" for name in sorted(project["project"]["entry-points"]["trireme.commands"])),
        *(f"backend {name} True" for name in names),
        "version True",
    ]


def test_everything_imported_is_declared(project: dict[str, Any]) -> None:
    """The library imports only what `dependencies` installs; a runtime comes with its extra, the compiler with dev."""
    declared = {normal(name) for name in project["project"]["dependencies"]}
    extras = project["project"]["optional-dependencies"]
    optional = {
        "actors/tracing.py": "tracing",
        "api/cli/bench.py": "terminal",
        "api/cli/cluster.py": "ray",
        "api/cli/input_values.py": "models",
        "api/cli/tables.py": "terminal",
        "api/cli/top.py": "terminal",
        "api/openai/chat.py": "generate",
        "cluster/": "ray",
        "engine/backends/generation/": "generate",
        "engine/backends/onnxruntime/": "cpu",
        "engine/tracing/spans.py": "tracing",
        "foresight/search/fronts.py": "bench",
        "foresight/": "terminal",
        "proto/compile.py": "dev",
        "simulations/command.py": "terminal",
    }
    chosen = {"api/cli/init.py"}  # what a new repository's models are made with, which the command asks for by name
    distributions = importlib.metadata.packages_distributions()
    undeclared = []
    for path in python_files():
        if path.as_posix() in chosen:
            continue
        source = Source(path.as_posix(), (ROOT / path).read_text())
        extra = next((extra for start, extra in optional.items() if source.path.startswith(start)), "")
        allowed = declared | {normal(name) for name in extras.get(extra, ())}
        for line, module, _ in imports(source):
            top = module.split(".")[0]
            if top not in {"trireme", MODELS_MODULE, *sys.stdlib_module_names}:
                providers = {normal(name) for name in distributions.get(top, [top])}
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
    assert {normal(requirement) for requirement in wanted} - pinned == {DISTRIBUTION, *UNPINNED}
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
