"""How servers are driven: perf_analyzer, or a closed loop of our own, and what each measures."""

from __future__ import annotations

import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from load import ATTEMPTS, HungError, Protocol, run_perf_analyzer
from servers import FailedError, Server

from .loop import Load, put_load
from .machine import open_files
from .models import Kind, Model
from .peers.base import DTYPES, Form, Peer
from .settings import Settings

PROTOCOLS = {
    Form.GRPC: Protocol.GRPC,
    Form.SHARED_MEMORY: Protocol.GRPC,
    Form.STREAMS: Protocol.GRPC_STREAM,
}
LOAD_METRICS = ("throughput", "p50_us", "p99_us", "cpu_us")
SPARE_FILES = 300
"""Of those that a process may have open, for other things than connections."""
_A_FEW_TIMES_S = 2.0
"""In which 1,000 models are asked some nine times each."""
IDLE_S = 3.0
"""How long a server that has started is left alone before its memory is read."""


@dataclass(frozen=True)
class Subject:
    """What is measured: a peer, its server, and a model as it serves it.

    Attributes:
        models: all that are served, by name.
        server: None if the client starts it.
        perf_analyzer: the command that starts it.
    """

    peer: Peer
    model: Model
    models: Mapping[str, Model]
    server: Server | None
    perf_analyzer: str
    settings: Settings

    @property
    def running(self) -> Server:
        assert self.server is not None, "this client asks a running server"
        return self.server


class Client(ABC):
    """A way to measure.

    Attributes:
        metrics: what it measures; at concurrency 1 latency comes first.
        starts: whether it starts and stops servers itself.
    """

    metrics: tuple[str, ...] = LOAD_METRICS
    starts = False
    form: Form

    @property
    @abstractmethod
    def title(self) -> str: ...

    def refuses(self, peer: Peer, model: Model) -> str | None:
        """Why the peer cannot be measured so; None if it can."""
        return peer.refuses(model, self.form)

    def how(self, peer: Peer, model: Model) -> str | None:
        """How the peer takes part, where that is not as others do."""
        return peer.how(model)

    def expected_s(self, settings: Settings, peer: Peer) -> float:
        """How long a sample takes, roughly."""
        return settings.window_s + 1.5

    @abstractmethod
    def sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        """Measure once.

        Raises:
            FailedError, HungError, OSError: it cannot be measured.
        """


def random_data(model: Model) -> np.ndarray:
    """One inference's input: [0, 1) for FP32, 1 for integers."""
    if model.given[0] == "INT32":
        return np.ones(model.shape, np.int32)
    return np.random.default_rng(0).random(model.shape, DTYPES[model.given[0]])


@dataclass(frozen=True)
class PerfAnalyzer(Client):
    """perf_analyzer, three windows.

    Attributes:
        flags: more of them.
        least_s: of a window.
    """

    form: Form = Form.BINARY
    flags: tuple[str, ...] = ()
    least_s: float = 0.0

    @property
    def title(self) -> str:
        return "perf_analyzer"

    def refuses(self, peer: Peer, model: Model) -> str | None:
        if not peer.perf_analyzer:
            return "perf_analyzer cannot drive it"
        return super().refuses(peer, model)

    def expected_s(self, settings: Settings, peer: Peer) -> float:
        return 3 * max(settings.seconds, self.least_s) + 2.0

    def sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        for _ in range(ATTEMPTS):
            try:
                return self._sample(subject, concurrency)
            except HungError:  # it does so now and then, with any server
                continue
        raise FailedError(f"perf_analyzer did not end, {ATTEMPTS} times")

    def _sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        if not subject.perf_analyzer:
            raise FailedError("there is no perf_analyzer")
        server, model = subject.running, subject.model
        seconds = max(subject.settings.seconds, self.least_s)
        requests_before = server.statistics(model.name)["inference_stats"]["success"]["count"]
        cpu_before_s = server.cpu_s()
        flags = ["--measurement-interval", str(round(seconds * 1000)), "--percentile", "50"]
        flags += ["--stability-percentage", "999", "--max-trials", "3", *self.flags, *self._form_flags(model)]
        report = run_perf_analyzer(
            subject.perf_analyzer,
            server,
            model.name,
            concurrency,
            *flags,
            protocol=PROTOCOLS.get(self.form, Protocol.HTTP),
            timeout_s=30 + 10 * seconds,
        )
        requests = server.statistics(model.name)["inference_stats"]["success"]["count"] - requests_before
        if not requests:
            raise FailedError("no request was answered")
        cpu_us = (server.cpu_s() - cpu_before_s) / requests * 1e6
        return {"throughput": report.throughput, "p50_us": report.p50_us, "p99_us": report.p99_us, "cpu_us": cpu_us}

    def _form_flags(self, model: Model) -> list[str]:
        if self.form is Form.JSON:
            return ["--input-tensor-format", "json", "--output-tensor-format", "json"]
        if self.form is Form.SHARED_MEMORY:
            output_bytes = 4 * int(np.prod(model.made[1]))
            return ["--shared-memory", "system", "--output-shared-memory-size", str(output_bytes)]
        return []


@dataclass(frozen=True)
class ClosedLoop(Client):
    """Our own client: the same request again and again, as many at a time as the concurrency says.

    Attributes:
        least_s: of a window, for networks that take long.
        or_json: whether a peer that has not got the form is asked with JSON.
    """

    form: Form = Form.JSON
    least_s: float = 0.0
    or_json: bool = False

    @property
    def title(self) -> str:
        return "closed loop"

    def refuses(self, peer: Peer, model: Model) -> str | None:
        return peer.refuses(model, self._form(peer))

    def how(self, peer: Peer, model: Model) -> str | None:
        return "asked with JSON" if self._form(peer) is not self.form else peer.how(model)

    def _form(self, peer: Peer) -> Form:
        return Form.JSON if self.or_json and self.form not in peer.forms else self.form

    def _window_s(self, settings: Settings) -> float:
        return max(settings.window_s, self.least_s)

    def expected_s(self, settings: Settings, peer: Peer) -> float:
        return 1.2 * self._window_s(settings) + 1.5

    def sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        window_s = self._window_s(subject.settings)
        if (alone := subject.peer.measure_alone(subject.model, window_s)) is not None:
            return alone
        form = self._form(subject.peer)
        requests = [request_bytes(subject.peer, subject.model, form)]
        with self.prepared(subject):
            return ask(subject, requests, form, concurrency, window_s)

    def prepared(self, subject: Subject) -> AbstractContextManager[None]:
        """What the server must know while it is asked."""
        return nullcontext()


def request_bytes(peer: Peer, model: Model, form: Form) -> bytes:
    """A request as the closed loop's connections take it."""
    data = random_data(model)
    if form is not Form.GRPC:
        return peer.encode(model, data, form).encode()
    from tritonclient.grpc import service_pb2

    request = vars(service_pb2)["ModelInferRequest"](model_name=model.name, raw_input_contents=[data.tobytes()])
    request.inputs.add(name=model.input_name, datatype=model.given[0], shape=data.shape)
    return request.SerializeToString()


def ask(
    subject: Subject,
    requests: list[bytes],
    form: Form,
    concurrency: int,
    window_s: float,
    *,
    connections: int = 0,
    asked: int = 0,
    warm_up_s: float = 0.2,
) -> dict[str, float]:
    """Put load on the running server for so many seconds.

    Args:
        warm_up_s: before that; a fifth of it if that is more.
        connections: that are open, if more than are asked at a time.
        asked: those of them that are asked, in turn; 0 for no more than at a time.

    Returns:
        What the client has seen, the server's CPU time a request, and its memory at the end, with all connections open.
    """
    server = subject.running
    memory_bytes = 0

    def cpu_s() -> float:
        nonlocal memory_bytes
        used_s = server.cpu_s()
        memory_bytes = server.memory_bytes()
        return used_s

    port, transport = (server.grpc_port or 0, "grpc") if form is Form.GRPC else (server.http_port, "http")
    warm_up_s, asked = max(warm_up_s, window_s / 5), asked or concurrency
    load = Load(port, transport, requests, connections or concurrency, asked, concurrency, warm_up_s, window_s)
    seen = put_load(load, cpu_s, timeout_s=90 + 4 * window_s)
    return {**seen, "memory_mib": memory_bytes / (1 << 20)}


@dataclass(frozen=True)
class ManyModels(Client):
    """Requests to one of many models, by those to a server that has this one alone: what it costs that others are
    loaded. Then requests to all in turn, of which no two make a batch, from when each has been asked a few times."""

    form: Form = Form.BINARY
    metrics = ("cpu_us", "growth", "throughput", "p50_us", "model_kib", "ready_ms")

    @property
    def title(self) -> str:
        return "closed loop"

    def refuses(self, peer: Peer, model: Model) -> str | None:
        if peer.how(model) is not None:
            return "would need a process for each model"
        return super().refuses(peer, model) or (None if peer.perf_analyzer else "serves no repository of models")

    def expected_s(self, settings: Settings, peer: Peer) -> float:
        return 3 * (1.2 * settings.window_s + 1.5) + peer.start_s + _A_FEW_TIMES_S

    def sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        requests = [request_bytes(subject.peer, model, self.form) for model in subject.models.values()]
        window_s = subject.settings.window_s
        peer, model = subject.peer, subject.model
        with tempfile.TemporaryDirectory() as folder, peer.serve([model], Path(folder), grpc=False) as server:
            alone = replace(subject, models={model.name: model}, server=server)
            one = ask(alone, requests[:1], self.form, concurrency, window_s)
        one_of_many = ask(subject, requests[:1], self.form, concurrency, window_s)
        many = ask(subject, requests, self.form, concurrency, window_s, warm_up_s=_A_FEW_TIMES_S)
        kib = subject.running.memory_bytes() / 1024 / len(subject.models)
        growth = one_of_many["cpu_us"] / one["cpu_us"]
        return {**many, "growth": growth, "model_kib": kib, "ready_ms": subject.running.ready_s * 1000}


@dataclass(frozen=True)
class ManyConnections(Client):
    """Requests on few connections while many more are open, by those while no other one is: what it costs that others
    are open. Then requests on all in turn.

    Attributes:
        connections: how many are open; fewer if the limit of open files is lower than Trireme needs for them.
    """

    form: Form = Form.BINARY
    connections: int = 10_000
    metrics = ("cpu_us", "growth", "throughput", "p50_us", "connections", "connection_kib")

    @property
    def title(self) -> str:
        return "closed loop"

    def refuses(self, peer: Peer, model: Model) -> str | None:
        return super().refuses(peer, model) or (None if peer.perf_analyzer else "left out: it does not ask for so many")

    def expected_s(self, settings: Settings, peer: Peer) -> float:
        return 3 * (1.2 * settings.window_s + 1.5) + 12

    def sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        requests = [request_bytes(subject.peer, subject.model, self.form)]
        window_s = subject.settings.window_s
        connections = min(self.connections, open_files() // 2 - SPARE_FILES)
        alone = ask(subject, requests, self.form, concurrency, window_s)
        few = ask(subject, requests, self.form, concurrency, window_s, connections=connections)
        many = ask(subject, requests, self.form, concurrency, window_s, connections=connections, asked=connections)
        kib = (many["memory_mib"] - alone["memory_mib"]) * 1024 / connections
        growth = few["cpu_us"] / alone["cpu_us"]
        return {**many, "growth": growth, "connections": connections, "connection_kib": max(kib, 0.1)}


@dataclass(frozen=True)
class StartUp(Client):
    """A fresh server: the time until each of its models has answered a request, and its memory when it is idle."""

    form: Form = Form.JSON
    metrics = ("ready_ms", "memory_mib")
    starts = True

    @property
    def title(self) -> str:
        return "one request for each model"

    def expected_s(self, settings: Settings, peer: Peer) -> float:
        return peer.start_s + IDLE_S + 2

    def sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        models = list(subject.models.values())
        with tempfile.TemporaryDirectory() as folder, subject.peer.serve(models, Path(folder), grpc=True) as server:
            for model in models:
                subject.peer.infer(server, model, random_data(model))
            ready_ms = (time.monotonic() - server.started_s) * 1000
            time.sleep(IDLE_S)
            memory = statistics.median(server.memory_bytes() for _ in range(3))
        return {"ready_ms": ready_ms, "memory_mib": memory / (1 << 20)}


def verify(peer: Peer, server: Server, models: Mapping[str, Model], expected: dict[str, np.ndarray]) -> None:
    """Ask each model once; its output must be what `expected` says, which is filled by the first peer.

    Raises:
        FailedError: an output is not what it must be.
    """
    for model in list(models.values())[:10]:
        if model.kind is Kind.SEQUENCE:
            continue
        data = random_data(model)
        made = peer.infer(server, model, data)
        if model.kind is not Kind.ONNX:
            expected[model.name] = data.ravel()
        right = expected.setdefault(model.name, made)
        if made.shape != right.shape or not np.allclose(made, right, rtol=1e-3, atol=1e-4):
            raise FailedError(f"{peer.title} does not answer as it must for {model.name}")
