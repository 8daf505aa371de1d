"""Peers that speak the V2 protocol: Trireme, the real Triton, MLServer."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
from servers import FailedError, Server, free_port, serving, trireme, triton

from ..models import MODELS, Kind, Model, write_file, write_manifest, write_repository
from ..settings import Settings
from .base import Call, Form, Peer, json_call
from .environment import UnavailableError, install, library_folder, site_packages

PROGRAMS = Path(__file__).with_name("programs")
TRITON_PACKAGE, CLIENT_PACKAGE = "nvidia-pytriton==0.7.0", "tritonclient==2.50.0"
RUNTIME = f"onnxruntime=={version('onnxruntime')}"


class V2Peer(Peer):
    """What they have in common: how they are asked."""

    def encode(self, model: Model, data: np.ndarray, form: Form) -> Call:
        path = f"/v2/models/{model.name}/infer"
        tensor: dict[str, object] = {"name": model.input_name, "datatype": model.given[0], "shape": list(data.shape)}
        if form is Form.JSON:
            return json_call(path, {"inputs": [{**tensor, "data": data.ravel().tolist()}]})
        raw = data.tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        return Call(path, head + raw, {"Inference-Header-Content-Length": str(len(head))})

    def decode(self, model: Model, body: bytes) -> np.ndarray:
        return np.array(json.loads(body)["outputs"][0]["data"])


class Trireme(V2Peer):
    name, title = "trireme", "Trireme"
    kinds, forms = frozenset(Kind), frozenset(Form)
    perf_analyzer = idle = True
    start_s = 1.5
    program: tuple[str, ...] | None = None

    def install(self) -> str:
        return version("trireme")

    @contextmanager
    def serve(self, models: Sequence[Model], folder: Path, *, grpc: bool) -> Iterator[Server]:
        write_repository(folder, models, native=True)
        flags = ["--allow-client-shm", "true"] if grpc else []
        with trireme(folder, *flags, grpc=grpc, program=self.program, name=self.title) as server:
            yield server


class Earlier(Trireme):
    """Trireme at another commit, from an environment of its own."""

    name, title = "earlier", "earlier Trireme"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.program = tuple(shlex.split(settings.earlier or ""))

    def install(self) -> str:
        if not self.program:
            raise UnavailableError("--earlier does not say how it is started")
        return shlex.join(self.program)


class Triton(V2Peer):
    """The real Triton: the one that the user names or has, or else the one inside NVIDIA's Python package.

    The latter has the python backend alone. Whether there is one for ONNX files is tried out.
    """

    name, title = "triton", "Triton"
    kinds, forms = frozenset(Kind), frozenset(Form)
    perf_analyzer = idle = True
    start_s = 3.0
    command = ""
    native = False

    def install(self) -> str:
        self.command = self.settings.triton_command or shutil.which("tritonserver") or self._install_package()
        with ExitStack() as stack:
            try:
                server = stack.enter_context(self._probe([MODELS["identity_fp32"]], native=True))
                self.native = True
            except FailedError:
                try:
                    server = stack.enter_context(self._probe([MODELS["identity_fp32"]], native=False))
                except FailedError as error:
                    lines = str(error).strip().splitlines()
                    raise UnavailableError(f"does not start: {lines[-1] if lines else self.command}") from error
            return json.loads(server.get("/v2"))["version"]

    @contextmanager
    def _probe(self, models: Sequence[Model], *, native: bool) -> Iterator[Server]:
        folder = self.settings.cache / "triton-probe"
        shutil.rmtree(folder, ignore_errors=True)
        write_repository(folder, [write_file(each, self.settings.cache / "models") for each in models], native=native)
        with triton(self.command, folder) as server:
            yield server

    def _install_package(self) -> str:
        """The command that starts the server inside NVIDIA's package."""
        folder = self.settings.cache / "triton"
        binaries = install(folder, [TRITON_PACKAGE, RUNTIME])
        packages = site_packages(binaries)
        inside = packages / "pytriton" / "tritonserver"
        backend = folder / "backends" / "python"
        shutil.copytree(inside / "backends" / "python", backend, dirs_exist_ok=True)
        stub = inside / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
        if not stub.exists():
            raise UnavailableError(f"its package has no python backend for this Python: {stub.name}")
        shutil.copy(stub / "triton_python_backend_stub", backend)
        libraries = f"{packages / 'nvidia_pytriton.libs'}:{library_folder()}"
        words = ["env", f"PATH={binaries}:{os.environ.get('PATH', '')}", f"LD_LIBRARY_PATH={libraries}"]
        words += [str(inside / "bin" / "tritonserver"), "--backend-directory", str(backend.parent)]
        return shlex.join([*words, "--cache-directory", str(inside / "caches")])

    @contextmanager
    def serve(self, models: Sequence[Model], folder: Path, *, grpc: bool) -> Iterator[Server]:
        write_repository(folder, models, native=self.native)
        with triton(self.command, folder, grpc=grpc) as server:
            yield server

    def how(self, model: Model) -> str | None:
        if self.native or model.kind not in {Kind.IDENTITY, Kind.ONNX}:
            return None
        return "its python backend gives the tensor back" if model.kind is Kind.IDENTITY else "in its python backend"


def perf_analyzer(settings: Settings) -> str:
    """The command that starts perf_analyzer: the user's, or else the one inside NVIDIA's client package.

    Raises:
        UnavailableError: it cannot be had.
    """
    if found := settings.perf_analyzer or shutil.which("perf_analyzer"):
        return found
    binaries = install(settings.cache / "perf_analyzer", [CLIENT_PACKAGE], "--no-deps", "--only-binary", ":all:")
    program = binaries / "perf_analyzer"
    if not program.exists():
        raise UnavailableError(f"{CLIENT_PACKAGE} brings none for this machine")
    command = shlex.join(["env", f"LD_LIBRARY_PATH={_libraries(settings)}", str(program)])
    done = subprocess.run([*shlex.split(command), "--version"], capture_output=True, text=True, check=False)
    if "error while loading" in done.stderr:
        raise UnavailableError(done.stderr.strip().splitlines()[-1])
    return command


def _libraries(settings: Settings) -> Path:
    """A folder with the two libraries that perf_analyzer needs and few machines have; Triton's package brings them."""
    folder = settings.cache / "perf_analyzer" / "libraries"
    folder.mkdir(parents=True, exist_ok=True)
    found = site_packages(install(settings.cache / "triton", [TRITON_PACKAGE, RUNTIME])) / "nvidia_pytriton.libs"
    for name, pattern in (("libb64.so.0d", "libb64-*.so.0d"), ("libcudart.so.12", "libcudart-*.so.12*")):
        for library in found.glob(pattern):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(library)
    return folder


class MLServer(V2Peer):
    name, title = "mlserver", "MLServer"
    forms = frozenset({Form.JSON, Form.GRPC})
    start_s = 6.0
    _binaries = Path()

    def install(self) -> str:
        self._binaries = install(self.settings.cache / "mlserver", ["mlserver==1.7.1", RUNTIME])
        return "1.7.1"

    @contextmanager
    def serve(self, models: Sequence[Model], folder: Path, *, grpc: bool) -> Iterator[Server]:
        http_port, grpc_port, metrics_port = free_port(), free_port(), free_port()
        ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
        # In one process: faster than its parallel workers, where models are as small as here.
        settings = {"host": "127.0.0.1", **ports, "parallel_workers": 0, "debug": False}
        (folder / "settings.json").write_text(json.dumps(settings))
        write_manifest(folder / "manifest.json", models)
        for model in models:
            home = folder / model.name
            home.mkdir()
            shutil.copy(PROGRAMS / "mlserver_model.py", home / "served.py")
            (home / "model-settings.json").write_text(json.dumps(_mlserver_settings(model)))
        variables = {"PATH": f"{self._binaries}:{os.environ.get('PATH', '')}"}
        words = [str(self._binaries / "mlserver"), "start", str(folder)]
        with serving(
            self.title, words, http_port, metrics_port, grpc_port, environment=variables, folder=folder
        ) as server:
            yield server


def _mlserver_settings(model: Model) -> dict[str, object]:
    settings: dict[str, object] = {"name": model.name, "implementation": "served.Served"}
    settings["parameters"] = {"extra": {"file": str(model.file), "kind": model.kind.value, "threads": model.threads}}
    if model.kind is Kind.ONNX:
        settings |= {"max_batch_size": model.max_batch_size, "max_batch_time": 0.002}
    return settings
