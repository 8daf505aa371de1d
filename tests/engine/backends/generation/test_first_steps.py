"""What is computed before a model is ready, and how large its memory is then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from counting_network import CountingNetwork, asks, open_letters, said, whole, write_model

from trireme.engine.errors import TriremeError
from trireme.engine.options import ControlMode


async def test_a_prompt_and_what_follows_are_computed_before_it_is_ready(tmp_path: Path) -> None:
    write_model(tmp_path, warm_up=1)
    async with open_letters(tmp_path) as server:
        assert CountingNetwork.latest.widths == [1, 1]
        (response,) = await whole(server, asks("abc", max_tokens=2))
        assert said(response) == ["abcde"]


@pytest.mark.parametrize("parameters", [{"kv_tokens": 1, "block_tokens": 1}, {"kv_tokens": 2, "block_tokens": 2}])
async def test_there_may_be_no_room_for_that(tmp_path: Path, parameters: dict[str, Any]) -> None:
    write_model(tmp_path, warm_up=1, **parameters)
    async with open_letters(tmp_path):
        assert len(CountingNetwork.latest.widths) == parameters["kv_tokens"] - 1


async def test_samples_of_the_configuration_are_computed_instead(tmp_path: Path) -> None:
    write_model(tmp_path, warm_up=1)
    sample = """
        model_warmup { name: "first" batch_size: 1 inputs { key: "input_ids"
            value { data_type: TYPE_INT64 dims: [ 3 ] zero_data: true } } inputs { key: "sampling_parameters"
            value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "few" } } }
    """
    with (tmp_path / "letters" / "config.pbtxt").open("a") as config:
        config.write(sample)
    (tmp_path / "letters" / "warmup").mkdir()
    (tmp_path / "letters" / "warmup" / "few").write_bytes(b'\x11\x00\x00\x00{"max_tokens": 4}')
    async with open_letters(tmp_path):
        assert CountingNetwork.latest.widths == [1, 1, 1, 1]


@pytest.mark.parametrize(("parameters", "dtype"), [({}, "auto"), ({"dtype": "bfloat16"}, "bfloat16")])
async def test_the_network_is_told_its_type(tmp_path: Path, parameters: dict[str, Any], dtype: str) -> None:
    write_model(tmp_path, **parameters)
    async with open_letters(tmp_path):
        assert CountingNetwork.latest.dtype == dtype


async def test_memory_in_bytes(tmp_path: Path) -> None:
    write_model(tmp_path, kv_bytes="1K", block_tokens=4)
    async with open_letters(tmp_path) as server:
        generated = server.statistics()[0].statistics.generated
        assert generated is not None
        ((core,),) = [list(generated.instances.values())]
        assert core.memory.count == 42, "blocks of 4 tokens of 6 bytes in 1,024 bytes"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (
            {"kv_bytes": "23"},
            "parameter 'kv_bytes' is 23 bytes, and a block of 4 tokens takes 24; expected at least one",
        ),
        ({"kv_bytes": "0"}, "parameter 'kv_bytes' is 0; expected a number of bytes above 0, with k, m, g or t of KiB,"),
        ({"kv_bytes": "1kb"}, "parameter 'kv_bytes' is 1kb; expected a number of bytes above 0"),
        ({"dtype": "int8"}, "parameter 'dtype' is int8; expected one of auto, float32, bfloat16, float16"),
        ({"kv_bytes": "1k", "kv_tokens": 16}, "parameters 'kv_tokens' and 'kv_bytes' are given; expected one"),
    ],
)
async def test_settings_that_are_none(tmp_path: Path, parameters: dict[str, Any], why: str) -> None:
    write_model(tmp_path, block_tokens=4, **parameters)
    with pytest.raises(TriremeError) as caught:
        async with open_letters(tmp_path, model_control_mode=ControlMode.EXPLICIT) as server:
            await server.load_model("letters", {})
    assert why in caught.value.message
