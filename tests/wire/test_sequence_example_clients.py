"""The calls that tritonclient's public sequence example clients make, in our own words, against the shipped models."""

from __future__ import annotations

import asyncio
import queue
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio

PATIENCE_S = 60
VALUES = [11, 7, 5, 3, 2, 0, 1]


@dataclass(frozen=True)
class Sequence:
    """What one sequence sends, and what must come back."""

    model: str
    id: int | str
    values: list[int]
    expected: list[int]

    def requests(self, client: Any) -> Iterator[dict[str, Any]]:
        """The arguments of each call, with the tensors of this kind of client."""
        for index, value in enumerate(self.values):
            tensor = client.InferInput("INPUT", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.full([1, 1], value, np.int32))
            yield {
                "model_name": self.model,
                "inputs": [tensor],
                "outputs": [client.InferRequestedOutput("OUTPUT")],
                "request_id": f"{self.id}_{index + 1}",
                "sequence_id": self.id,
                "sequence_start": index == 0,
                "sequence_end": index == len(self.values) - 1,
            }


def plain_sequences() -> list[Sequence]:
    """Two integer ids and a text that is no number, as the examples send them: 1 is added to what comes first."""
    negative = [-value for value in VALUES]
    return [
        Sequence("simple_sequence", 1000, [0, *VALUES], [1, *VALUES]),
        Sequence("simple_sequence", 1001, [100, *negative], [101, *negative]),
        Sequence("simple_sequence", str(uuid.uuid4()), [20, *negative], [21, *negative]),
    ]


def dynamic_sequences() -> list[Sequence]:
    """As with the examples' flag ``-d``: the id is added to what comes last, and texts are summed up."""
    negative = [-value for value in VALUES]
    sums = [20, 9, 2, -3, -6, -8, -8, -9]
    return [
        Sequence("simple_dyna_sequence", 1000, [0, *VALUES], [1, *VALUES[:-1], 1001]),
        Sequence("simple_dyna_sequence", 1001, [100, *negative], [101, *negative[:-1], 1000]),
        Sequence("simple_string_dyna_sequence", "1002", [20, *negative], [*sums[:-1], 1002 - 9]),
    ]


@pytest.fixture(params=[plain_sequences, dynamic_sequences], ids=["plain", "dynamic"])
def sequences(request: pytest.FixtureRequest) -> list[Sequence]:
    return request.param()


def output(result: Any) -> int:
    array = result.as_numpy("OUTPUT")
    assert (array.shape, array.dtype) == ((1, 1), np.int32)
    return int(array[0][0])


def check_stream(sequences: list[Sequence], results: list[Any]) -> None:
    """Answers of one stream, which go by the ids of their requests."""
    came: dict[str, list[int]] = {}
    for result in results:
        name, _, number = result.get_response().id.rpartition("_")
        came.setdefault(name, []).append(output(result))
        assert len(came[name]) == int(number), "answers of a sequence come in the order of its requests"
    assert came == {str(sequence.id): sequence.expected for sequence in sequences}


def test_http_sync(live: Any, sequences: list[Sequence]) -> None:
    with http.InferenceServerClient(live.url) as client:
        for sequence in sequences:
            answers = [output(client.infer(**request)) for request in sequence.requests(http)]
            assert answers == sequence.expected


def test_http_aio(live: Any, sequences: list[Sequence]) -> None:
    async def one(client: Any, sequence: Sequence) -> list[int]:
        return [output(await client.infer(**request)) for request in sequence.requests(http)]

    async def ask() -> None:
        async with http_aio.InferenceServerClient(live.url) as client:
            answers = await asyncio.gather(*(one(client, sequence) for sequence in sequences))
        assert answers == [sequence.expected for sequence in sequences]

    asyncio.run(ask())


def test_grpc_sync(live: Any, sequences: list[Sequence]) -> None:
    with grpc.InferenceServerClient(live.grpc_url) as client:
        for sequence in sequences:
            answers = [output(client.infer(**request)) for request in sequence.requests(grpc)]
            assert answers == sequence.expected


def test_grpc_stream(live: Any, sequences: list[Sequence]) -> None:
    """All requests of all sequences are sent before any answer is read."""
    came: queue.Queue[tuple[Any, Any]] = queue.Queue()
    results: list[Any] = []
    with grpc.InferenceServerClient(live.grpc_url) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        for sequence in sequences:
            for request in sequence.requests(grpc):
                client.async_stream_infer(**request)
        for _ in range(sum(len(sequence.values) for sequence in sequences)):
            result, error = came.get(timeout=PATIENCE_S)
            assert error is None
            results.append(result)
        client.stop_stream()
    check_stream(sequences, results)


def test_grpc_aio(live: Any, sequences: list[Sequence]) -> None:
    async def one(client: Any, sequence: Sequence) -> list[int]:
        return [output(await client.infer(**request)) for request in sequence.requests(grpc_aio)]

    async def ask() -> None:
        async with grpc_aio.InferenceServerClient(live.grpc_url) as client:
            answers = await asyncio.gather(*(one(client, sequence) for sequence in sequences))
        assert answers == [sequence.expected for sequence in sequences]

    asyncio.run(ask())


def test_grpc_aio_stream(live: Any, sequences: list[Sequence]) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for sequence in sequences:
            for request in sequence.requests(grpc_aio):
                yield request

    async def ask() -> list[Any]:
        results: list[Any] = []
        async with grpc_aio.InferenceServerClient(live.grpc_url) as client:
            answers: Any = client.stream_infer(inputs_iterator=requests(), stream_timeout=None)
            async for result, error in answers:
                assert error is None
                results.append(result)
        return results

    check_stream(sequences, asyncio.run(ask()))
