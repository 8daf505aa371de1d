"""Peers with interfaces of their own, whose models are Python programs: LitServe and Ray Serve."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from servers import Server, free_port, serving

from ..models import Kind, Model, write_manifest
from .base import Call, Form, Peer, is_answered, json_call
from .environment import install
from .v2 import PROGRAMS, RUNTIME


class PythonServer(Peer):
    """What they have in common: a program that serves what a manifest lists."""

    release: str
    package: str
    program: str
    health: str
    _binaries = Path()

    def install(self) -> str:
        self._binaries = install(self.settings.cache / self.name, [f"{self.package}=={self.release}", RUNTIME])
        return self.release

    @contextmanager
    def serve(self, models: Sequence[Model], folder: Path, *, grpc: bool) -> Iterator[Server]:
        port = free_port()
        write_manifest(folder / "manifest.json", models)
        words = [str(self._binaries / "python"), str(PROGRAMS / self.program), str(folder / "manifest.json"), str(port)]
        variables = {"PATH": f"{self._binaries}:{os.environ.get('PATH', '')}", **self.variables()}
        with serving(
            self.title,
            [*words, *self.arguments()],
            port,
            is_ready=lambda server: self.is_ready(server, models),
            environment=variables,
            folder=folder,
        ) as server:
            yield server

    def refuses(self, model: Model, form: Form | None) -> str | None:
        if model.kind is Kind.IDENTITY and form is Form.BINARY:
            return "its identity program takes JSON"
        return super().refuses(model, form)

    def arguments(self) -> list[str]:
        return []

    def variables(self) -> dict[str, str]:
        return {}

    def is_ready(self, server: Server, models: Sequence[Model]) -> bool:
        return is_answered(server, self.health)

    def encode(self, model: Model, data: np.ndarray, form: Form) -> Call:
        return json_call(f"/{model.name}", {"input": data.ravel().tolist()})

    def decode(self, model: Model, body: bytes) -> np.ndarray:
        return np.array(json.loads(body)["output"])


class LitServe(PythonServer):
    name, title = "litserve", "LitServe"
    package, release, program, health = "litserve", "0.2.19", "litserve_app.py", "/health"
    start_s = 6.0

    def encode(self, model: Model, data: np.ndarray, form: Form) -> Call:
        if form is Form.JSON:
            return super().encode(model, data, form)
        return json_call(f"/{model.name}", {"bytes": base64.b64encode(data.tobytes()).decode()})


class RayServe(PythonServer):
    name, title = "ray-serve", "Ray Serve"
    package, release, program, health = "ray[serve]", "2.60.0", "ray_app.py", "/-/routes"
    start_s = 15.0
    _temporary = ""

    @contextmanager
    def serve(self, models: Sequence[Model], folder: Path, *, grpc: bool) -> Iterator[Server]:
        # A short path: the names of its sockets are limited.
        self._temporary = tempfile.mkdtemp(prefix="ray-")
        try:
            with super().serve(models, folder, grpc=grpc) as server:
                yield server
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def arguments(self) -> list[str]:
        return [self._temporary]

    def variables(self) -> dict[str, str]:
        return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

    def is_ready(self, server: Server, models: Sequence[Model]) -> bool:
        try:
            routes = json.loads(server.get(self.health))
        except (OSError, SystemExit, ValueError):
            return False
        return all(f"/{model.name}" in routes for model in models)

    def encode(self, model: Model, data: np.ndarray, form: Form) -> Call:
        if form is Form.JSON:
            return super().encode(model, data, form)
        return Call(f"/{model.name}", data.tobytes(), {"Content-Type": "application/octet-stream"})
