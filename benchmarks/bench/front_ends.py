"""Trireme with front ends in processes of their own: what the engine's process and theirs need for a request."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from servers import trireme

from .clients import Client, Subject, request_bytes, verify
from .loop import Load, put_load
from .models import Model, write_repository
from .peers.base import Form, Peer
from .peers.v2 import Trireme
from .settings import Settings

PROGRAM = "trireme.api.cli.front_end"
"""In the command line of a front end."""


@dataclass(frozen=True)
class FrontEnds(Client):
    """Our own client, in a closed loop, on a server of its own; which does not poll, for polls are no work.

    Attributes:
        count: how many front ends there are.
    """

    form: Form = Form.BINARY
    count: int = 1
    metrics = ("throughput", "engine_us", "front_end_us", "p50_us", "p99_us")
    starts = True

    @property
    def title(self) -> str:
        return "closed loop"

    def refuses(self, peer: Peer, model: Model) -> str | None:
        return None if isinstance(peer, Trireme) else "has no front ends in processes of their own"

    def expected_s(self, settings: Settings, peer: Peer) -> float:
        return 1.2 * settings.window_s + peer.start_s + 2.5

    def sample(self, subject: Subject, concurrency: int) -> dict[str, float]:
        peer, model = subject.peer, subject.model
        assert isinstance(peer, Trireme), "others are refused"
        flags = ["--front-ends", str(self.count), "--poll-us", "0"]
        window_s = subject.settings.window_s
        notes: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as folder:
            write_repository(Path(folder), subject.models.values(), native=True)
            with trireme(Path(folder), *flags, grpc=True, program=peer.program, name=peer.title) as server:

                def cpu_s() -> float:
                    notes.append(cpu_by_role(server.processes()))
                    return sum(notes[-1])

                verify(peer, server, subject.models, {})
                requests = [request_bytes(peer, model, self.form)]
                at_once = (concurrency, concurrency, concurrency)
                grpc = self.form is Form.GRPC
                port, transport = (server.grpc_port or 0, "grpc") if grpc else (server.http_port, "http")
                load = Load(port, transport, requests, *at_once, max(0.2, window_s / 5), window_s)
                seen = put_load(load, cpu_s, timeout_s=90 + 4 * window_s)
        return {**seen, **by_role(notes[0], notes[1], seen["cpu_us"])}


def by_role(before: tuple[float, float], after: tuple[float, float], cpu_us: float) -> dict[str, float]:
    """The shares of engine and front ends in the CPU time of a request, by what `cpu_by_role` said at both ends."""
    engine_s, front_ends_s = after[0] - before[0], after[1] - before[1]
    share = cpu_us / ((engine_s + front_ends_s) or 1.0)
    return {"engine_us": engine_s * share, "front_end_us": front_ends_s * share}


def cpu_by_role(processes: Iterable[psutil.Process]) -> tuple[float, float]:
    """CPU seconds of the engine's process and what it has started, and of front ends."""
    engine_s = front_ends_s = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            if PROGRAM in process.cmdline():
                front_ends_s += times.user + times.system
            else:
                engine_s += times.user + times.system
    return engine_s, front_ends_s
