"""Sequences over the wire: order, sums, refusals, whichever way the requests come in."""

from __future__ import annotations

import queue
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

PATIENCE_S = 60
STEPS = 6

Ask = Callable[..., int]


def tensor(kind: Any, *values: int) -> Any:
    made = kind.InferInput("INPUT", [len(values), 1], "INT32")
    made.set_data_from_numpy(np.array(values, np.int32).reshape(-1, 1))
    return made


def asking(client: Any, kind: Any) -> Ask:
    """``ask(key, value, flags="", model=...)`` for one request; `flags` has "s" for the start and "e" for the end."""

    def ask(key: int | str, value: int, flags: str = "", model: str = "running_sum") -> int:
        result = client.infer(
            model, [tensor(kind, value)], sequence_id=key, sequence_start="s" in flags, sequence_end="e" in flags
        )
        return int(result.as_numpy("OUTPUT")[0, 0])

    return ask


@pytest.fixture(params=["http", "grpc"])
def connection(live: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A client, and the module that its tensors come from."""
    kind, url = (http, live.url) if request.param == "http" else (grpc, live.grpc_url)
    with kind.InferenceServerClient(url) as client:
        yield client, kind


@pytest.fixture
def ask(connection: tuple[Any, Any]) -> Ask:
    return asking(*connection)


# Order and sums


def test_a_sequence_may_come_over_any_connection_and_protocol(live: Any) -> None:
    """Two clients a protocol take turns with the requests of forty sequences; "1" and 1 are two of them."""
    draw = random.Random(4)
    values = {key: [draw.randrange(-1000, 1000) for _ in range(STEPS)] for key in (*range(1, 21), *map(str, range(20)))}
    sums: dict[int | str, list[int]] = {key: [] for key in values}
    together = threading.Barrier(4, timeout=PATIENCE_S)

    def serve_turn(number: int) -> None:
        kind, url = (http, live.url) if number % 2 else (grpc, live.grpc_url)
        try:
            with kind.InferenceServerClient(url) as client:
                ask = asking(client, kind)
                for step in range(STEPS):
                    for key in list(values)[(number + step) % 4 :: 4]:
                        sums[key].append(ask(key, values[key][step], "s" * (step == 0) + "e" * (step == STEPS - 1)))
                    together.wait()
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(serve_turn, range(4)))
    assert sums == {key: list(accumulate(each)) for key, each in values.items()}


@pytest.mark.parametrize("model", ["running_sum", "simple_string_dyna_sequence"])
def test_a_stream_of_interleaved_sequences_keeps_the_order_of_each(live: Any, model: str) -> None:
    """Hundreds of requests are on their way at once, on two streams; sums tell what was executed after what."""
    draw = random.Random(5)
    came: queue.Queue[tuple[Any, Any]] = queue.Queue()
    values = {str(key): [draw.randrange(-1000, 1000) for _ in range(20)] for key in range(7000, 7030)}
    clients: list[Any] = [grpc.InferenceServerClient(live.grpc_url) for _ in range(2)]
    for client in clients:
        client.start_stream(lambda result, error: came.put((result, error)))
    left = {key: list(enumerate(each)) for key, each in values.items()}
    while left:
        key = draw.choice(list(left))
        step, value = left[key].pop(0)
        clients[int(key) % 2].async_stream_infer(
            model,
            [tensor(grpc, value)],
            request_id=key,
            sequence_id=key,
            sequence_start=step == 0,
            sequence_end=not left[key],
        )
        if not left[key]:
            del left[key]
    sums: dict[str, list[int]] = {key: [] for key in values}
    for _ in range(sum(len(each) for each in values.values())):
        result, error = came.get(timeout=PATIENCE_S)
        assert error is None
        sums[result.get_response().id].append(int(result.as_numpy("OUTPUT")[0, 0]))
    for client in clients:
        client.stop_stream()
        client.close()
    expected = {key: list(accumulate(each)) for key, each in values.items()}
    if model == "simple_string_dyna_sequence":
        for key, each in expected.items():
            each[-1] += int(key)
    assert sums == expected


def test_start_and_end_on_one_request_are_a_whole_sequence(ask: Ask) -> None:
    assert [ask(8001, value, "se") for value in (5, 6)] == [5, 6]


def test_a_start_within_a_sequence_begins_anew(ask: Ask) -> None:
    assert [ask(8002, 5, "s"), ask(8002, 6), ask(8002, 7, "s"), ask(8002, 8, "e")] == [5, 11, 7, 15]


# Refusals (docs/reference/sequences.md#admission)


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """Why a request was refused, which must be the client's fault."""
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **named)
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    return str(caught.value.message())


def test_a_sequence_must_have_an_id(connection: tuple[Any, Any]) -> None:
    client, kind = connection
    assert refusal(client.infer, "running_sum", [tensor(kind, 1)]) == (
        "inference request to model 'running_sum' must specify a non-zero or non-empty correlation ID"
    )


def test_a_sequence_must_begin_with_a_start(ask: Ask) -> None:
    text = (
        "inference request for sequence {} to model 'running_sum' must specify the START flag on the first request of "
        "the sequence"
    )
    assert refusal(ask, 8003, 1) == text.format(8003)
    assert refusal(ask, "8003", 1, "e") == text.format("8003")


def test_after_its_end_a_sequence_is_unknown(ask: Ask) -> None:
    ask(8004, 1, "s")
    ask(8004, 1, "e")
    assert "must specify the START flag" in refusal(ask, 8004, 1)


def test_a_request_of_a_sequence_is_one_row(connection: tuple[Any, Any]) -> None:
    client, kind = connection
    assert refusal(client.infer, "running_sum", [tensor(kind, 1, 2)], sequence_id=8005, sequence_start=True) == (
        "inference request to model 'running_sum' must specify batch-size 1 due to requirements of sequence batcher"
    )


def test_an_id_must_be_of_the_type_that_the_model_wants(ask: Ask) -> None:
    text = "sequence batching control 'CORRID' data-type is '{}', but model '{}' expects '{}'"
    numbers, strings = "simple_dyna_sequence", "simple_string_dyna_sequence"
    assert refusal(ask, "8006", 1, "s", numbers).endswith(text.format("BYTES", numbers, "UINT64"))
    assert refusal(ask, 8006, 1, "s", strings).endswith(text.format("UINT64", strings, "BYTES"))


def test_controls_and_states_are_not_for_clients(connection: tuple[Any, Any]) -> None:
    client, kind = connection
    extra = kind.InferInput("SUM_SO_FAR", [1, 1], "INT32")
    extra.set_data_from_numpy(np.array([[100]], np.int32))
    start = {"sequence_id": 8007, "sequence_start": True}
    inputs = [tensor(kind, 1), extra]
    text = "expected 1 inputs but got 2 inputs for model 'running_sum'"
    assert text in refusal(client.infer, "running_sum", inputs, **start)
    asked = [kind.InferRequestedOutput("SUM")]
    text = "unexpected inference output 'SUM' for model 'running_sum'"
    assert text in refusal(client.infer, "running_sum", inputs[:1], outputs=asked, **start)


def test_an_id_that_is_no_number_fails_its_own_requests_alone(ask: Ask) -> None:
    model = "simple_string_dyna_sequence"
    ask("8008", 5, "s", model)
    with pytest.raises(InferenceServerException, match="onnx runtime error"):
        ask("eight", 1, "s", model)
    assert ask("8008", 6, "e", model) == 8019


# Statistics (docs/reference/statistics.md#what-each-event-counts)


def test_rows_that_fill_gaps_count_in_the_batch_and_nowhere_else(
    serve: Any, repository_root: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository_root / "model_repository" / "running_sum", tmp_path / "running_sum")
    with serve(tmp_path) as server, http.InferenceServerClient(server.url) as client:
        ask = asking(client, http)
        for key in (1, 2, 3):
            ask(key, key, "s")
        assert ask(3, 1, "e") == 4
        (record,) = client.get_inference_statistics("running_sum")["model_stats"]
    # One sequence a slot, so the request of the n-th, alone, is row n of its batch.
    assert {each["batch_size"]: each["compute_infer"]["count"] for each in record["batch_stats"]} == {1: 1, 2: 1, 3: 2}
    assert (record["inference_count"], record["execution_count"]) == (4, 4)
    assert (record["inference_stats"]["success"]["count"], record["inference_stats"]["fail"]["count"]) == (4, 0)
