"""Takes the samples of a plan. What fails costs its row and peer; what has been measured is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from load import HungError
from servers import FailedError, Server

from .clients import Subject, verify
from .document import METRICS, Document, Sample
from .models import Model, with_steps
from .peers.base import Peer
from .plan import Plan, Stage, Turn
from .settings import Settings
from .workloads import WORKLOADS

FAILURES = (FailedError, HungError, OSError, ValueError, KeyError, subprocess.SubprocessError, psutil.Error)
"""What a peer or a client may come up with."""
IDLE_SHARE = 0.03
"""Of one core: what servers that are not being measured may use together; they gather metrics."""
REASON_CHARACTERS = 300
ALLOWED_FAILURES = 2
"""Of starts of a peer in a stage, after which it is not started again."""


class OutOfTimeError(Exception):
    """The time that the run may take is over."""


@dataclass
class Runner:
    """Takes samples.

    Attributes:
        models: as they are served.
        say: prints a line.
        written: called when the document has changed.
        deadline_s: by ``time.monotonic``; no sample is begun later.
    """

    settings: Settings
    peers: Mapping[str, Peer]
    models: Mapping[str, Model]
    perf_analyzer: str
    document: Document
    say: Callable[[str], None]
    written: Callable[[], None]
    deadline_s: float = float("inf")
    _taken: int = 0

    def run(self, plan: Plan) -> None:
        """Raises OutOfTimeError when the time is over."""
        for stage in plan.stages:
            with ExitStack() as stack:
                servers = Servers(self, stage, stack)
                workload = ""
                for turn in stage.turns:
                    if turn.row.workload != workload:
                        workload = turn.row.workload
                        self.say(f"[bold]{workload}[/bold]: {WORKLOADS[workload].question}")
                    if time.monotonic() > self.deadline_s:
                        raise OutOfTimeError
                    self._take(servers, turn, plan.turns)

    def _take(self, servers: Servers, turn: Turn, all_turns: int) -> None:
        self._taken += 1
        missing = self.document.missing.setdefault(turn.row.key, {})
        if turn.peer in missing:
            return
        peer = self.peers[turn.peer]
        try:
            sample = self._sample(servers, turn, peer)
        except FAILURES as error:
            missing[turn.peer] = f"failed: {shortened(str(error) or type(error).__name__)}"
            self.say(f"  [red]{turn.row.key}, {peer.title}: {missing[turn.peer]}")
            servers.stop(turn.peer)
        else:
            self.document.samples.append(sample)
            metrics = [name for name in turn.row.metrics[:2] if name in sample.metrics]
            shown = ", ".join(f"{METRICS[name].title} {sample.metrics[name]:,.5g}" for name in metrics)
            self.say(f"  {self._taken}/{all_turns} {turn.row.key}, {peer.title}: {shown}")
            if sample.others_cpu > IDLE_SHARE:
                self.say(f"  [yellow]the other servers used {sample.others_cpu:.0%} of a core meanwhile")
        self.written()

    def _sample(self, servers: Servers, turn: Turn, peer: Peer) -> Sample:
        client = turn.row.client
        server = None if client.starts else servers.running(turn.peer)
        others = [] if server is None else servers.others(turn.peer)
        subject = Subject(peer, self.models[turn.row.model], servers.models, server, self.perf_analyzer, self.settings)
        with servers.awake(turn.peer):
            before_s, began_s = sum(other.cpu_s() for other in others), time.monotonic()
            metrics = client.sample(subject, turn.row.concurrency)
            used_s = sum(other.cpu_s() for other in others) - before_s
        share = used_s / (time.monotonic() - began_s)
        return Sample(turn.row.key, turn.peer, turn.alternation, metrics, share, os.getloadavg()[0])


def shortened(text: str) -> str:
    """In a line, with its beginning and its end, where an error's cause is."""
    line = " ".join(text.split())
    return (
        line
        if len(line) <= REASON_CHARACTERS
        else f"{line[: REASON_CHARACTERS // 2]} … {line[-REASON_CHARACTERS // 2 :]}"
    )


@dataclass
class Servers:
    """The servers of a stage: each is started when it is first needed, and all end with the stack."""

    runner: Runner
    stage: Stage
    stack: ExitStack
    _running: dict[str, tuple[Server, ExitStack]] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _expected: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, Model]:
        """What they serve, by name."""
        return {model.name: self.runner.models[model.name] for model in with_steps(self.stage.models)}

    def running(self, name: str) -> Server:
        """The server of a peer.

        Raises:
            FailedError: it does not start, or does not answer as it must.
        """
        if name not in self._running:
            if self._failures.get(name, 0) >= ALLOWED_FAILURES:
                raise FailedError("it did not start before")
            try:
                self._start(name)
            except FAILURES:
                self._failures[name] = self._failures.get(name, 0) + 1
                raise
        return self._running[name][0]

    def _start(self, name: str) -> None:
        peer = self.runner.peers[name]
        with ExitStack() as starting:
            folder = Path(starting.enter_context(tempfile.TemporaryDirectory()))
            models = list(self.models.values())
            server = starting.enter_context(peer.serve(models, folder, grpc=self.stage.grpc))
            verify(peer, server, self.models, self._expected)
            if not peer.idle:
                server.signal(signal.SIGSTOP)
            own = self.stack.enter_context(starting.pop_all())
        self._running[name] = (server, own)

    def others(self, name: str) -> list[Server]:
        """Servers that must be idle while the one of this peer is measured."""
        peers = self.runner.peers
        return [server for other, (server, _) in self._running.items() if other != name and peers[other].serves]

    @contextmanager
    def awake(self, name: str) -> Iterator[None]:
        """Let a suspended server go on meanwhile."""
        if self.runner.peers[name].idle or name not in self._running:
            yield
            return
        server = self._running[name][0]
        server.signal(signal.SIGCONT)
        try:
            yield
        finally:
            server.signal(signal.SIGSTOP)

    def stop(self, name: str) -> None:
        """Stop a server after a failure, so that it is started afresh for the next row."""
        if name in self._running:
            self._running.pop(name)[1].close()
            self._failures[name] = self._failures.get(name, 0) + 1
