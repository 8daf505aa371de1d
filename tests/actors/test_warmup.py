"""Instances warm up before their model is ready, and whatever comes in their place does, too."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import pytest
import trio
from counted_models import CACHED, CONFIG, LOCAL, Counter, counted_request, counted_server, number_of, statistics_of

from trireme.actors import InferenceServer
from trireme.engine.errors import TriremeError
from trireme.engine.options import ControlMode

SAMPLE = """
model_warmup { name: "zeros" batch_size: 3 count: 2
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } }
"""


@pytest.fixture
def counter() -> Counter:
    return Counter()


def reason_of(server: InferenceServer) -> str:
    (entry,) = server.repository_index()
    return entry.reason


async def test_every_instance_executes_every_sample(tmp_path: Path, counter: Counter) -> None:
    """As one batch of requests with one row each, as often as the count says."""
    config = CONFIG + SAMPLE + "instance_group { count: 2 kind: KIND_CPU }"
    async with counted_server(tmp_path, counter, {"m": config}):
        pass
    assert sorted(counter.batches) == [(f"m_0_{index}", ["", "", ""]) for index in (0, 0, 1, 1)]
    assert [inputs["IN"].array.tolist() for inputs in counter.inputs] == [[[0, 0]]] * 12


async def test_no_statistics_speak_of_it(tmp_path: Path, counter: Counter) -> None:
    """And the response cache keeps nothing of it."""
    async with counted_server(tmp_path, counter, {"m": CACHED + SAMPLE}, LOCAL) as server:
        counted = statistics_of(server)
        assert (counted.success.count, counted.execution_count, counted.last_inference_ms) == (0, 0, 0)
        assert (counted.cache_miss.count, counted.pending, counted.batches) == (0, 0, {})
        assert number_of(await server.infer(counted_request((0, 0)))) == 7


async def test_the_model_is_ready_when_it_is_warm(tmp_path: Path, counter: Counter) -> None:
    """A load call is answered then, and not before."""
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with counted_server(tmp_path, counter, {"m": CONFIG + SAMPLE}, **options) as server:
        before = counter.executed
        await server.unload_model("m")
        await server.load_model("m", {})
        assert counter.executed == before + 6
        assert server.model_ready("m")


async def test_every_run_of_a_sample_is_told(
    tmp_path: Path, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    """With verbose logs, in Triton's words."""
    with caplog.at_level(logging.DEBUG, "trireme"):
        async with counted_server(tmp_path, counter, {"m": CONFIG + SAMPLE}):
            pass
    assert [each for each in caplog.messages if "warmup sample" in each] == [
        "Generating warmup sample data for 'zeros'",
        "model 'm' instance m_0 is running warmup sample 'zeros' for iteration 1",
        "model 'm' instance m_0 is running warmup sample 'zeros' for iteration 2",
    ]


async def test_a_sample_that_fails_fails_the_load(tmp_path: Path, counter: Counter) -> None:
    config = CONFIG + 'model_warmup { name: "hot" batch_size: 2 inputs { key: "IN" value {'
    config += 'data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "data" } } }'
    (tmp_path / "m" / "warmup").mkdir(parents=True)
    (tmp_path / "m" / "warmup" / "data").write_bytes(struct.pack("<f", 99))
    async with counted_server(tmp_path, counter, {"m": config}, exit_on_error=False) as server:
        assert not server.model_ready("m")
        assert reason_of(server) == "Invalid argument: failed to run warmup sample 'hot': too warm; too warm; "
        with pytest.raises(TriremeError):
            await server.infer(counted_request())


async def test_a_batch_that_is_too_large_fails_the_load(tmp_path: Path, counter: Counter) -> None:
    config = CONFIG + SAMPLE.replace("batch_size: 3", "batch_size: 9")
    async with counted_server(tmp_path, counter, {"m": config}, exit_on_error=False) as server:
        assert reason_of(server) == (
            "Invalid argument: failed to run warmup sample 'zeros': " + "batch size 9 for 'm_0', max allowed is 8; " * 9
        )
    assert counter.executed == 0


async def test_data_that_do_not_fit_fail_the_load_before_anything_is_executed(tmp_path: Path, counter: Counter) -> None:
    config = CONFIG + SAMPLE.replace("dims: [ 2 ]", "dims: [ -1 ]")
    async with counted_server(tmp_path, counter, {"m": config}, exit_on_error=False) as server:
        assert reason_of(server) == (
            "Invalid argument: warmup setting expects all variable-size dimensions are specified for input 'IN'"
        )
    assert counter.executed == 0


async def test_an_instance_that_was_replaced_is_warm_again(tmp_path: Path, counter: Counter) -> None:
    async with counted_server(tmp_path, counter, {"m": CONFIG + SAMPLE}) as server:
        with pytest.raises(TriremeError):
            await server.infer(counted_request(parameters={"die": True}))
        with trio.fail_after(20):
            assert number_of(await server.infer(counted_request())) == 6 + 1 + 6 + 1
    assert [len(ids) for _, ids in counter.batches] == [3, 3, 1, 3, 3, 1]


async def test_decoupled_models_warm_up(tmp_path: Path, counter: Counter) -> None:
    config = CONFIG + SAMPLE + "model_transaction_policy { decoupled: true }"
    async with counted_server(tmp_path, counter, {"m": config}) as server:
        assert server.model_ready("m")
    assert counter.executed == 6


async def test_models_of_sequences_warm_up(tmp_path: Path, counter: Counter) -> None:
    """With the controls of a sequence that starts, and no slot is taken by it."""
    control = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
    config = CONFIG + SAMPLE + f"sequence_batching {{ {control} }}"
    async with counted_server(tmp_path, counter, {"m": config}) as server:
        assert [inputs["START"].array.tolist() for inputs in counter.inputs] == [[[1]]] * 6
        answer = await server.infer(counted_request(correlation_id=1, sequence_start=True, sequence_end=True))
        assert number_of(answer) == 7
