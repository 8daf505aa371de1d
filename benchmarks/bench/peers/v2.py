"""Peers that speak the V2 protocol: Trireme, the real Triton, MLServer."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from servers import FailedError, Server, free_port, serving, trireme, triton

from ..models import MODELS, Kind, Model, write_file, write_manifest, write_repository
from ..settings import Settings
from .base import GIVEN_REGION, MADE_REGION, Call, Form, Peer, is_answered, json_call
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
        if form is Form.SHARED_MEMORY:
            given = {"shared_memory_region": GIVEN_REGION, "shared_memory_byte_size": data.nbytes}
            made = {"shared_memory_region": MADE_REGION, "shared_memory_byte_size": 4 * int(np.prod(model.made[1]))}
            output = {"name": model.output_name, "parameters": made}
            return json_call(path, {"inputs": [{**tensor, "parameters": given}], "outputs": [output]})
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
        return version("trireme-server")

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

    The latter has the python backend alone. Whether there is one for ONNX files is tried out; if not, a `model.py` runs
    them, with ONNX Runtime from an environment of ours if its Python has none.
    """

    name, title = "triton", "Triton"
    kinds, forms = frozenset(Kind), frozenset(Form)
    perf_analyzer = idle = True
    start_s = 3.0
    command = version = ""
    native = False
    packages: Path | None = None

    def install(self) -> str:
        self.command = self.settings.triton_command or shutil.which("tritonserver") or self._install_package()
        packages = self.settings.cache / "onnxruntime"
        self.packages = site_packages(packages / "bin") if packages.exists() else None
        try:
            ready = self._probe()
            if not ready & {"native", "onnx_py"} and self.packages is None:
                self.packages = site_packages(install(packages, [RUNTIME]))
                ready = self._probe()
        except FailedError as error:
            lines = str(error).strip().splitlines()
            raise UnavailableError(f"does not start: {lines[-1] if lines else self.command}") from error
        if "identity" not in ready:
            raise UnavailableError("does not start: its python backend loads no model")
        self.native = "native" in ready
        if not ready & {"native", "onnx_py"}:
            self.kinds -= {Kind.ONNX}
        return self.version

    def _probe(self) -> set[str]:
        """Start it; which of three models it loads: an ONNX file, a `model.py` that runs one, a `model.py`."""
        folder = self.settings.cache / "triton-probe"
        shutil.rmtree(folder, ignore_errors=True)
        identity = write_file(MODELS["identity_fp32"], self.settings.cache / "models")
        write_repository(folder, [replace(identity, name="native")], native=True)
        network = replace(identity, name="onnx_py", kind=Kind.ONNX)
        models = [replace(identity, name="identity"), network]
        write_repository(folder, models, native=False, packages=self.packages)
        with triton(self.command, folder, "--exit-on-error", "false", "--strict-readiness", "false") as server:
            self.version = json.loads(server.get("/v2"))["version"]
            return {
                name for name in ("identity", "onnx_py", "native") if is_answered(server, f"/v2/models/{name}/ready")
            }

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
        write_repository(folder, models, native=self.native, packages=self.packages)
        with triton(self.command, folder, grpc=grpc) as server:
            yield server

    def how(self, model: Model) -> str | None:
        if self.native or model.kind not in {Kind.IDENTITY, Kind.ONNX}:
            return None
        if model.kind is Kind.IDENTITY:
            return "its python backend gives the tensor back"
        return "a model.py with ONNX Runtime, in its python backend"


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
            self.title,
            words,
            http_port,
            metrics_port,
            grpc_port,
            is_ready=lambda server: all(is_answered(server, f"/v2/models/{model.name}/ready") for model in models),
            environment=variables,
            folder=folder,
        ) as server:
            yield server


def _mlserver_settings(model: Model) -> dict[str, object]:
    settings: dict[str, object] = {"name": model.name, "implementation": "served.Served"}
    threads = model.instances * model.threads  # one instance, with all of them
    settings["parameters"] = {"extra": {"file": str(model.file), "kind": model.kind.value, "threads": threads}}
    if model.kind is Kind.ONNX:
        settings |= {"max_batch_size": model.max_batch_size, "max_batch_time": 0.002}
    return settings
