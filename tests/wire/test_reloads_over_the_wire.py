"""Triton's own clients hammer a model, over HTTP and gRPC, while others load it again and again: reloads, version
changes, configurations and files of the request, instances in place. No error, never a mixed answer, none that is older
than the one before.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from later_files import later_change
from valued_models import CONFIG, CONFIG_JSON, Gates, ensemble_config
from valued_models import write_model as write

from trireme.engine.options import ControlMode

CONTROL = {"model_control_mode": ControlMode.EXPLICIT}
POLICY = "version_policy { latest { num_versions: 1 } }\n"

Protocol = Any
"""One of the client modules: they have the same names."""


@dataclass
class World:
    """What clients must find: in generation g the model adds g, and `versions` tells which version that is."""

    versions: dict[float, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    answers: dict[str, int] = field(default_factory=dict)

    def hammer(self, name: str, ask: Callable[[], tuple[str, set[float]]], min_generation: float = 0) -> None:
        """Ask until it is over; `ask` gives an answer's version, empty if it does not matter, and its values."""
        last = min_generation
        self.answers[name] = 0
        while not self.over.is_set():
            version, values = ask()
            assert len(values) == 1, f"{name} got an answer of two generations: {values}"
            (value,) = values
            assert version in ("", self.versions[value]), f"{name}: generation {value} is not version {version}"
            assert value >= last, f"{name} got generation {value} after {last}"
            last = value
            self.answers[name] += 1


def asking(protocol: Protocol, client: Any, model: str) -> Callable[[], tuple[str, set[float]]]:
    """Asks for all outputs of a model, and looks at who has answered."""

    def ask() -> tuple[str, set[float]]:
        tensor = protocol.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        result = client.infer(model, [tensor])
        response = result.get_response()
        version = response["model_version"] if isinstance(response, dict) else response.model_version
        outputs = [result.as_numpy(name) for name in ("OUT", "BY")]
        values = {float(output[0]) for output in outputs if output is not None}
        return (version if model == "a" else ""), values

    return ask


def load_generation(client: Any, root: Path, generation: int, world: World) -> None:
    """One change of the model, of five kinds in turn; the last does not change what it answers."""
    kind = generation % 5
    version = world.versions[generation - 1] if kind in (0, 4) else str(generation)
    world.versions[generation] = version
    if kind == 3:
        files = {f"file:{version}/value.txt": str(generation).encode()}
        client.load_model("a", config=CONFIG_JSON % ("a", ""), files=files)
        return
    write(root, "a", {int(version): generation}, CONFIG + POLICY)
    if kind == 2:
        client.load_model("a", config=CONFIG_JSON % ("a", ',"parameters":{"k":{"string_value":"v"}}'))
    else:
        client.load_model("a")
    if kind == 1:
        groups = f',"instance_group":[{{"count":{1 + generation % 3},"kind":"KIND_CPU"}}]'
        policy = ',"version_policy":{"latest":{"num_versions":1}}'
        client.load_model("a", config=CONFIG_JSON % ("a", groups + policy))


@pytest.mark.parametrize("reloads", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_many_reloads(tmp_path: Path, serve: Callable[..., Any], reloads: int) -> None:
    """Of a model, and with it of the ensemble that uses it."""
    world = World({1: "1"})
    write(tmp_path, "a", {1: 1}, CONFIG + POLICY)
    write(tmp_path, "e", {1: 0}, ensemble_config("a"))
    with (
        serve(tmp_path, Gates().backends(), **CONTROL, startup_models=("a", "e")) as live,
        http.InferenceServerClient(live.url) as over_http,
        grpc.InferenceServerClient(live.grpc_url) as over_grpc,
        ThreadPoolExecutor(5) as pool,
    ):

        def hammer(protocol: Protocol, url: str, model: str) -> None:
            with protocol.InferenceServerClient(url) as client:
                world.hammer(f"{protocol.__name__} {model}", asking(protocol, client, model))

        clients = [
            pool.submit(hammer, protocol, url, model)
            for protocol, url in ((http, live.url), (grpc, live.grpc_url))
            for model in ("a", "e")
        ]
        try:
            for generation in range(2, 2 + reloads):
                load_generation((over_http, over_grpc)[generation % 2], tmp_path, generation, world)
                assert over_http.is_model_ready("a")
                assert over_grpc.is_model_ready("e")
                assert asking(http, over_http, "e")()[1] == {generation}
                assert asking(grpc, over_grpc, "a")() == (world.versions[generation], {generation})
        finally:
            world.over.set()
        for client in clients:
            client.result()
        assert min(world.answers.values()) > 0
    assert live.server.drained


def test_real_models(tmp_path: Path, serve: Callable[..., Any], repository_root: Path) -> None:
    """ONNX Runtime: other versions and other instances; every answer is right, and none is of an older version."""
    source = repository_root / "model_repository" / "identity_fp32"
    shutil.copytree(source, tmp_path / "identity_fp32")
    over = threading.Event()
    numbers = iter(range(1 << 24))
    answers: list[int] = []

    def ask(protocol: Protocol, client: Any) -> str:
        data = np.full((1, 16), next(numbers), np.float32)
        tensor = protocol.InferInput("INPUT0", [1, 16], "FP32")
        tensor.set_data_from_numpy(data)
        result = client.infer("identity_fp32", [tensor])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), data)
        response = result.get_response()
        return response["model_version"] if isinstance(response, dict) else response.model_version

    def hammer(protocol: Protocol, url: str) -> None:
        last = 0
        with protocol.InferenceServerClient(url) as client:
            while not over.is_set():
                version = int(ask(protocol, client))
                assert version >= last
                last = version
                answers.append(version)

    with (
        serve(tmp_path, **CONTROL, startup_models=("identity_fp32",)) as live,
        http.InferenceServerClient(live.url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        clients = [pool.submit(hammer, http, live.url), pool.submit(hammer, grpc, live.grpc_url)]
        try:
            config = client.get_model_config("identity_fp32")
            for generation in range(2, 22):
                if generation % 3:
                    with later_change(tmp_path / "identity_fp32"):
                        shutil.copytree(source / "1", tmp_path / "identity_fp32" / str(generation))
                    client.load_model("identity_fp32")
                    assert int(ask(http, client)) == generation
                else:
                    groups = [{"count": 1 + generation % 2, "kind": "KIND_CPU"}]
                    client.load_model("identity_fp32", config=json.dumps({**config, "instance_group": groups}))
        finally:
            over.set()
        for each in clients:
            each.result()
    assert len(set(answers)) > 3
