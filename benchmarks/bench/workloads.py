"""The workloads: what is measured, with which model, how it is asked, and how much at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .clients import Client, ClosedLoop, ManyConnections, ManyModels, PerfAnalyzer, StartUp
from .front_ends import FrontEnds
from .models import CORES, FEW, MANY, STEPS
from .peers.base import Form
from .regions import RegionLoop

SEQUENCE_LENGTH = 20
FRONT_ENDS = tuple(count for count in (1, 2, 4, 8) if count == 1 or count < CORES)
"""How many there are in turn: a core is left to the engine."""


@dataclass(frozen=True)
class Row:
    """A row of the tables.

    Attributes:
        model: its name.
        concurrency: requests in flight.
        quick: whether a quick run measures it.
        slow: whether a quick run measures it only once for each peer.
        limited: whether the runtime alone is measured as well.
    """

    workload: str
    what: str
    model: str
    client: Client
    concurrency: int
    quick: bool = False
    slow: bool = False
    limited: bool = False

    @property
    def key(self) -> str:
        """Names it in results."""
        return f"{self.what}, concurrency {self.concurrency}"

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured; the first is what the row is about: latency, where requests come one at a time."""
        metrics = self.client.metrics
        if self.concurrency == 1 and metrics[:2] == ("throughput", "p50_us"):
            return ("p50_us", "throughput", *metrics[2:])
        return metrics


@dataclass(frozen=True)
class Workload:
    """Rows that are measured on the same servers.

    Attributes:
        models: names of those that are served.
        question: what it shows, for the list of workloads.
    """

    name: str
    question: str
    models: tuple[str, ...]
    rows: tuple[Row, ...]


def workload(
    name: str,
    question: str,
    model: str,
    cases: Iterable[tuple[str, Client, tuple[int, ...]]],
    *,
    quick: Iterable[int] = (),
    models: tuple[str, ...] = (),
    slow: bool = False,
    limited: bool = False,
) -> Workload:
    """A workload of one model.

    Args:
        cases: what is asked, how, and at which concurrencies.
        quick: concurrencies that a quick run measures, of each case.
        models: served with it.
        slow, limited: of all rows.
    """
    chosen = set(quick)
    rows = tuple(
        Row(name, what, model, client, concurrency, concurrency in chosen, slow, limited)
        for what, client, concurrencies in cases
        for concurrency in concurrencies
    )
    return Workload(name, question, models or (model,), rows)


def _identity(
    name: str, form: Form, client: Client, concurrencies: tuple[int, ...] = (16, 1), quick: tuple[int, ...] = (16, 1)
) -> Workload:
    cases = [(f"identity FP32[16], {form.value}", client, concurrencies)]
    return workload(name, f"small requests, {form.value}", "identity_fp32", cases, quick=quick)


def _large(name: str, form: Form, client: Client, concurrencies: tuple[int, ...], quick: tuple[int, ...]) -> Workload:
    cases = [(f"identity FP32[1M], {form.value}", client, concurrencies)]
    return workload(name, f"4 MiB each way, {form.value}", "identity_large", cases, quick=quick)


def _python(name: str, what: str, model: str, concurrencies: tuple[int, ...], quick: tuple[int, ...]) -> Workload:
    cases = [(f"{what}, {form.value}", PerfAnalyzer(form), concurrencies) for form in (Form.BINARY, Form.GRPC)]
    return workload(name, what, model, cases, quick=quick)


_SEQUENCES = PerfAnalyzer(Form.STREAMS, ("--sequence-length", str(SEQUENCE_LENGTH), "--max-threads", "4"), least_s=1.0)
_NETWORK_S = 4.0
_IN_FLIGHT = 32
"""Requests to a large network: enough for two instances, and as many full batches that wait."""


def _network(what: str) -> list[tuple[str, Client, tuple[int, ...]]]:
    return [
        (f"{what}, HTTP binary", ClosedLoop(Form.BINARY, least_s=_NETWORK_S, or_json=True), (_IN_FLIGHT,)),
        (f"{what}, shared memory", RegionLoop(least_s=_NETWORK_S), (_IN_FLIGHT,)),
    ]


WORKLOADS = {
    each.name: each
    for each in (
        _identity("identity-json", Form.JSON, ClosedLoop(Form.JSON), (16, 1), (16,)),
        _identity("identity-http", Form.BINARY, PerfAnalyzer(Form.BINARY)),
        _identity("identity-grpc", Form.GRPC, PerfAnalyzer(Form.GRPC)),
        workload(
            "identity-grpc-loop",
            "small requests, gRPC, from our own client, which MLServer can answer",
            "identity_fp32",
            [("identity FP32[16], gRPC, closed loop", ClosedLoop(Form.GRPC), (16,))],
        ),
        _identity("identity-streams", Form.STREAMS, PerfAnalyzer(Form.STREAMS), quick=(16,)),
        _identity("identity-shm", Form.SHARED_MEMORY, PerfAnalyzer(Form.SHARED_MEMORY), (16, 1), ()),
        workload(
            "connections",
            "10,000 connections, asked in turn",
            "identity_fp32",
            [("10,000 connections, HTTP binary", ManyConnections(), (16,))],
        ),
        _large("large-json", Form.JSON, ClosedLoop(Form.JSON), (1,), ()),
        _large("large-http", Form.BINARY, PerfAnalyzer(Form.BINARY), (4, 1), (1,)),
        _large("large-grpc", Form.GRPC, PerfAnalyzer(Form.GRPC), (4, 1), ()),
        _large("large-streams", Form.STREAMS, PerfAnalyzer(Form.STREAMS), (4, 1), ()),
        _large("large-shm", Form.SHARED_MEMORY, PerfAnalyzer(Form.SHARED_MEMORY), (4, 1), (1,)),
        workload(
            "digits",
            "a small network, as JSON and binary",
            "digits",
            [
                ("digits, HTTP JSON", ClosedLoop(Form.JSON), (16,)),
                ("digits, HTTP binary", PerfAnalyzer(Form.BINARY), (16, 1)),
            ],
            quick=(1,),
        ),
        workload(
            "resnet50",
            "a large network, against the runtime alone",
            "resnet50",
            _network("ResNet-50"),
            quick=(_IN_FLIGHT,),
            slow=True,
            limited=True,
        ),
        workload(
            "encoder",
            "a transformer encoder, against the runtime alone",
            "encoder",
            _network("6-layer encoder"),
            limited=True,
        ),
        workload(
            "ensemble",
            "two Python models, one after the other",
            "ensemble",
            [("ensemble of 2 model.py, HTTP binary", PerfAnalyzer(Form.BINARY), (16, 1))],
            models=(*STEPS[:2], "ensemble"),
        ),
        workload(
            "sequences",
            f"sequences of {SEQUENCE_LENGTH} requests on a Python model",
            "running_sum",
            [("sequences, gRPC streams", _SEQUENCES, (1000, 16))],
            quick=(1000,),
        ),
        _python("python", "the same model.py, FP32[16]", "python_identity", (16, 1), (1,)),
        _python("python-large", "the same model.py, FP32[1M]", "python_large", (4, 1), ()),
        _python("chain", "BLS chain of 3", "chain", (16, 1), (1,)),
        workload(
            "models",
            f"{len(MANY):,} models, asked in turn",
            MANY[0],
            [(f"{len(MANY):,} models, HTTP binary", ManyModels(), (16,))],
            quick=(16,),
            models=MANY,
        ),
        workload(
            "front-ends",
            "the engine's and the front ends' CPU, front ends being processes of their own",
            "identity_fp32",
            [
                (f"front ends: {count}, {form.value}", FrontEnds(form, count), (32,))
                for count in FRONT_ENDS
                for form in (Form.BINARY, Form.GRPC)
            ],
        ),
        workload(
            "startup",
            "time to ready, and memory when idle",
            FEW[0],
            [("start with 5 small models", StartUp(), (1,))],
            quick=(1,),
            models=FEW,
            slow=True,
        ),
    )
}


def row_keys(name: str, concurrency: int) -> list[str]:
    """Of the workload's rows at this concurrency."""
    return [row.key for row in WORKLOADS[name].rows if row.concurrency == concurrency]


FEATURED = tuple(
    row_keys(name, concurrency)[0]
    for name, concurrency in (
        *(("identity-http", 16), ("identity-http", 1), ("identity-grpc", 16), ("identity-grpc", 1)),
        *(("identity-streams", 16), ("identity-json", 16), ("large-http", 4), ("large-grpc", 4), ("large-shm", 4)),
        *(("python", 1), ("chain", 16), ("digits", 16), ("resnet50", _IN_FLIGHT), ("encoder", _IN_FLIGHT)),
        ("startup", 1),
    )
)
"""Rows of the chart, if there are more than fit into it."""
