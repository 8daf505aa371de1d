"""What a configuration's warm-up samples come to (docs/reference/model-configuration.md#warm-up)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from model_configs import read_config

from trireme.engine.config import prepare_for_load
from trireme.engine.config.sequence import sequence_batching
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.gpu.discovery import Gpu, Gpus
from trireme.engine.instances.warmup import WarmupSample, settling_samples, warmup_samples
from trireme.engine.scheduling.sequence.initial_state import state_layout

BASE = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "S" data_type: TYPE_STRING dims: [ 2 ] optional: true }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
ZEROS = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }'


def samples_of(directory: Path, text: str, base: str = BASE) -> tuple[WarmupSample, ...]:
    model = directory / "m"
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text(base + text)
    config = prepare_for_load(read_config(model), None)
    sequences = sequence_batching(config)
    states = None if sequences is None else state_layout(sequences.states, config.max_batch_size > 0, model, False)
    return warmup_samples(config, model, states)


def sample_of(directory: Path, inputs: str, base: str = BASE) -> WarmupSample:
    (sample,) = samples_of(directory, f'model_warmup {{ name: "w" batch_size: 1 {inputs} }}', base)
    return sample


def given(name: str, datatype: str, dims: str, what: str) -> str:
    return f'inputs {{ key: "{name}" value {{ data_type: {datatype} dims: [ {dims} ] {what} }} }}'


def test_requests_runs_and_samples_without_requests(tmp_path: Path) -> None:
    """A batch size of 0 is skipped; a count of 0 is 1."""
    text = f'model_warmup {{ name: "skipped" {ZEROS} }} model_warmup {{ name: "once" batch_size: 3 {ZEROS} }}'
    text += f'model_warmup {{ name: "twice" batch_size: 1 count: 2 {ZEROS} }}'
    samples = samples_of(tmp_path, text)
    assert [(sample.name, sample.requests, sample.runs) for sample in samples] == [("once", 3, 1), ("twice", 1, 2)]
    jobs = samples[0].jobs(7)
    assert [(job.rows, job.model_name, job.model_version, job.nbytes) for job in jobs] == [(1, "m", 7, 8)] * 3


def test_zeros_and_empty_strings(tmp_path: Path) -> None:
    """Also where random strings are asked for; the batch dimension is added."""
    for kind in ("zero_data", "random_data"):
        sample = sample_of(tmp_path, ZEROS + given("S", "TYPE_STRING", "2", f"{kind}: true"))
        assert sample.inputs["IN"].array.tolist() == [[0, 0]]
        assert sample.inputs["S"].array.tolist() == [[b"", b""]]


def test_random_data_are_random_bytes(tmp_path: Path) -> None:
    """The same ones for every input of a sample, and at every load."""
    override = given("X", "TYPE_UINT8", "16", "random_data: true")
    text = given("IN", "TYPE_FP32", "4", "random_data: true") + override
    first, second = sample_of(tmp_path, text), sample_of(tmp_path, text)
    data = bytes(first.inputs["IN"].buffer)
    assert len(set(data)) > 4
    assert data == bytes(first.inputs["X"].buffer) == bytes(second.inputs["IN"].buffer)


def test_data_from_files(tmp_path: Path) -> None:
    """Of a file that is too long the beginning counts; strings are as on the wire."""
    folder = tmp_path / "m" / "warmup"
    folder.mkdir(parents=True)
    (folder / "numbers").write_bytes(struct.pack("<3f", 1, 2, 3))
    (folder / "texts").write_bytes(b"\1\0\0\0a\2\0\0\0bc")
    text = given("IN", "TYPE_FP32", "2", 'input_data_file: "numbers"')
    sample = sample_of(tmp_path, text + given("S", "TYPE_STRING", "2", 'input_data_file: "texts"'))
    assert sample.inputs["IN"].array.tolist() == [[1, 2]]
    assert sample.inputs["S"].array.tolist() == [[b"a", b"bc"]]


def test_reshape_is_applied_and_other_inputs_are_handed_on(tmp_path: Path) -> None:
    base = BASE.replace("dims: [ -1 ]", "dims: [ 2 ] reshape { shape: [ 1, 2 ] }")
    sample = sample_of(tmp_path, ZEROS + given("START", "TYPE_INT32", "1", "zero_data: true"), base)
    assert sample.inputs["IN"].shape == (1, 1, 2)
    assert sample.inputs["START"].shape == (1, 1)


def test_a_model_without_batches(tmp_path: Path) -> None:
    sample = sample_of(tmp_path, ZEROS, BASE.replace("max_batch_size: 4", ""))
    assert sample.inputs["IN"].shape == (2,)


SEQUENCES = """
sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state { input_name: "OLD" output_name: "NEW" data_type: TYPE_FP32 dims: [ 2 ]
    initial_state { name: "zeros" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }
}
"""


def test_controls_and_states_are_those_of_a_start_unless_given(tmp_path: Path) -> None:
    """Each request has a state of its own, for the model to write."""
    (sample,) = samples_of(tmp_path, SEQUENCES + f'model_warmup {{ name: "w" batch_size: 2 {ZEROS} }}')
    first, second = sample.jobs(1)
    assert {name: tensor.array.tolist() for name, tensor in first.inputs.items()} == {
        "IN": [[0, 0]],
        "START": [[1]],
        "ID": [[0]],
        "OLD": [[0, 0]],
    }
    assert first.state is not None
    assert first.state is not second.state
    own = given("START", "TYPE_INT32", "1", "zero_data: true")
    (sample,) = samples_of(tmp_path, SEQUENCES + f'model_warmup {{ name: "w" batch_size: 1 {ZEROS} {own} }}')
    assert sample.jobs(1)[0].inputs["START"].array.tolist() == [[0]]


PREFIX = "[request id: <id_unknown>] "


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            given("IN", "TYPE_FP32", "-1", "zero_data: true"),
            "warmup setting expects all variable-size dimensions are specified for input 'IN'",
        ),
        (
            given("IN", "TYPE_FP32", "2", ""),
            f"{PREFIX}warmup setting expects input 'IN' to have input_data_type set",
        ),
        (
            given("IN", "TYPE_FP32", "2", 'input_data_file: "short"'),
            f"{PREFIX}warmup setting expects 8 bytes, but the data provided from shortonly has 4 bytes",
        ),
        (
            given("IN", "TYPE_INT32", "2", "zero_data: true"),
            f"{PREFIX}inference input 'IN' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            given("IN", "TYPE_INVALID", "2", "zero_data: true"),
            f"{PREFIX}inference input 'IN' data-type is '<invalid>', but model 'm' expects 'FP32'",
        ),
        (
            ZEROS + given("S", "TYPE_STRING", "2", 'input_data_file: "short"'),
            f"{PREFIX}expected 2 string elements for inference input 'S' for model 'm', got 1",
        ),
    ],
)
def test_what_is_wrong_with_a_sample_is_said_in_tritons_words(tmp_path: Path, inputs: str, text: str) -> None:
    folder = tmp_path / "m" / "warmup"
    folder.mkdir(parents=True)
    (folder / "short").write_bytes(b"\0\0\0\0")
    with pytest.raises(InvalidArgumentError) as raised:
        sample_of(tmp_path, inputs)
    assert raised.value.message == text


def test_a_shape_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"unexpected shape for input 'S' .* Expected \[-1,2\], got \[1,3\]"):
        sample_of(tmp_path, ZEROS + given("S", "TYPE_STRING", "3", "zero_data: true"))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InternalError) as raised:
        sample_of(tmp_path, given("IN", "TYPE_FP32", "2", 'input_data_file: "none"'))
    path = tmp_path / "m" / "warmup" / "none"
    assert raised.value.message == f"failed to open text file for read {path}: No such file or directory"


def test_data_are_not_for_writing(tmp_path: Path) -> None:
    """All requests share them."""
    array = sample_of(tmp_path, ZEROS).inputs["IN"].array
    with pytest.raises(ValueError, match="read-only"):
        array += np.float32(1)


# Settling


FIXED = """
backend: "pytorch"
input {{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] reshape {{ shape: [ 1, 2 ] }} }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }}
max_batch_size: {most}
"""
ON_GPU = "instance_group { kind: KIND_GPU gpus: [ 0 ] } "


def settled(directory: Path, text: str, base: str = FIXED, most: int = 4, runs: int = 3) -> list[tuple[int, int]]:
    """Batch size and runs of each sample."""
    model = directory / "m"
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text(base.format(most=most) + text)
    config = prepare_for_load(read_config(model), None, gpus=Gpus((Gpu(0),)))
    samples = settling_samples(config, runs)
    assert all(sample.settling for sample in samples)
    for sample in samples:
        assert sample.inputs["IN"].array.tolist() == [[[0, 0]]]
    return [(sample.requests, sample.runs) for sample in samples]


def test_an_instance_on_a_gpu_settles_for_each_batch_size(tmp_path: Path) -> None:
    assert settled(tmp_path, ON_GPU) == [(4, 3), (3, 3), (2, 3), (1, 3)]
    sizes = [size for size, _ in settled(tmp_path, ON_GPU, most=300)]
    assert sizes == [300, 256, 128, *range(64, 0, -1)], "beyond, it would take too long"


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("instance_group { kind: KIND_CPU }", 3),
        (ON_GPU, 0),
        (ON_GPU + 'parameters { key: "WARM_UP_BATCH_SIZES" value { string_value: "false" } }', 3),
        (ON_GPU + f'model_warmup {{ name: "own" batch_size: 1 {ZEROS} }}', 3),
        (ON_GPU + "sequence_batching { }", 3),
        (ON_GPU + 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }', 3),
        (ON_GPU + 'input { name: "X" data_type: TYPE_STRING dims: [ 1 ] }', 3),
    ],
)
def test_where_nothing_is_to_settle(tmp_path: Path, text: str, runs: int) -> None:
    assert settled(tmp_path, text, runs=runs) == []
