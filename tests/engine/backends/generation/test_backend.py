"""Generating models behind a server: what they answer, to whom, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from counting_network import (
    ALPHABET,
    CountingNetwork,
    Gate,
    asks,
    open_letters,
    refused,
    said,
    whole,
    write_model,
)
from python_models import until

from trireme.engine.backends.generation import backend
from trireme.engine.errors import InternalError
from trireme.engine.generation.iterations import Step
from trireme.engine.options import ControlMode
from trireme.engine.request import InferenceRequest


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    yield
    CountingNetwork.before = staticmethod(lambda _step: None)


def held_up(gate: Gate) -> None:
    CountingNetwork.before = staticmethod(gate)


async def until_entered(gate: Gate) -> None:
    assert await trio.to_thread.run_sync(gate.entered.wait, 60)


async def test_a_text_goes_on(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        (response,) = await whole(server, asks("abc", max_tokens=4))
        assert said(response) == ["abcdefg"]
        assert [tensor.name for tensor in response.outputs] == ["text_output"]
        flags = (
            "exclude_input_in_output",
            "return_finish_reason",
            "return_num_input_tokens",
            "return_num_output_tokens",
        )
        (response,) = await whole(server, asks("abc", flags=flags, max_tokens=4))
        assert said(response) == ["defg"]
        assert said(response, "finish_reason") == ["length"]
        assert said(response, "num_input_tokens") == [3]
        assert said(response, "num_output_tokens") == [4]


async def test_a_step_leaves_a_core_to_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(backend, "usable_cores", lambda: 8)
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        await whole(server, asks("abc", max_tokens=1))
        assert CountingNetwork.latest.threads == 7


async def test_it_ends_where_the_model_says(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        flags = ("return_finish_reason",)
        (response,) = await whole(server, asks("vw", flags=flags, max_tokens=40))
        assert (said(response), said(response, "finish_reason")) == (["vwxy"], ["stop"])
        (response,) = await whole(server, asks("vw", max_tokens=4, ignore_eos=True))
        assert said(response) == ["vwxyz{"]


async def test_without_a_limit_it_goes_on_as_long_as_there_is_room(tmp_path: Path) -> None:
    write_model(tmp_path)
    write_model(tmp_path, "small", kv_tokens=32)
    async with open_letters(tmp_path) as server:
        for name, room in (("letters", 64), ("small", 32)):
            (response,) = await whole(server, asks("ab", model=name, ignore_eos=True))
            assert len(said(response)[0]) == room


async def test_it_ends_before_a_stop_string_or_token(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        responses = await whole(server, asks("a", stream=True, max_tokens=20, stop=["xy", "ef"]))
        assert "".join(said(each)[0] for each in responses) == "bcd"
        (response,) = await whole(server, asks("a", max_tokens=20, stop_token_ids=[ALPHABET.index("e")]))
        assert said(response) == ["abcd"]


async def test_a_stream_comes_as_it_is_drawn(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        flags = ("return_finish_reason", "return_num_output_tokens")
        responses = await whole(server, asks("abc", stream=True, flags=flags, max_tokens=3))
        assert [said(each) for each in responses] == [["d"], ["e"], ["f"]]
        assert [said(each, "finish_reason") for each in responses] == [[""], [""], ["length"]]
        assert [said(each, "num_output_tokens") for each in responses] == [[1], [1], [1]]


async def test_tokens_go_in_and_come_out(tmp_path: Path) -> None:
    write_model(tmp_path, tokenizer=False)
    async with open_letters(tmp_path) as server:
        (response,) = await whole(server, asks(tokens=[5, 6], max_tokens=3))
        assert said(response, "output_ids") == [7, 8, 9]
        assert "the model has no tokenizer ('" in (text := await refused(server, asks("abc")))
        assert text.endswith("tokenizer.json'); send 'input_ids'")


async def test_choices_come_together(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        flags = ("return_finish_reason",)
        (response,) = await whole(server, asks("abc", flags=flags, max_tokens=3, n=3))
        assert said(response) == ["abcdef"] * 3
        assert said(response, "finish_reason") == ["length"] * 3


async def test_log_probabilities_are_told(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        (response,) = await whole(server, asks("a", flags=("return_logprobs",), max_tokens=2, logprobs=1))
        (told,) = map(json.loads, said(response, "logprobs"))
        assert [each["token"] for each in told] == ["b", "c"]
        assert told[0]["logprob"] == pytest.approx(0.0)
        assert [each["token"] for each in told[0]["top"]] == ["b"]


async def test_requests_that_come_meanwhile_are_in_the_next_step(tmp_path: Path) -> None:
    write_model(tmp_path)
    gate = Gate()
    async with open_letters(tmp_path) as server, trio.open_nursery() as nursery:
        held_up(gate)
        texts: list[str] = []

        async def go_on(text: str) -> None:
            (response,) = await whole(server, asks(text, max_tokens=5))
            texts.append(said(response)[0])

        nursery.start_soon(go_on, "a")
        await until_entered(gate)
        for text in "bcdefg":
            nursery.start_soon(go_on, text)
        await until(lambda: server.model_statistics()[0].inflight == 7)
        gate.opened.set()
    assert sorted(texts) == ["abcdef", "bcdefg", "cdefgh", "defghi", "efghij", "fghijk", "ghijkl"]
    assert max(CountingNetwork.latest.widths) == 7


async def test_more_than_may_run_wait_in_the_queue(tmp_path: Path) -> None:
    write_model(tmp_path, max_running=2)
    async with open_letters(tmp_path) as server:
        texts: list[str] = []

        async def go_on() -> None:
            (response,) = await whole(server, asks("a", max_tokens=3))
            texts.append(said(response)[0])

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(go_on)
        assert texts == ["abcd"] * 12
        assert max(CountingNetwork.latest.widths) == 2


async def test_a_slow_reader_holds_up_no_other(tmp_path: Path) -> None:
    """Nor its own text: it gets larger pieces when it reads again."""
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        slow = await server.admit(asks("ab", stream=True, max_tokens=20))
        assert slow.window is not None
        for _ in range(63):
            slow.window.enter()  # answers that wait for a slow client
        for _ in range(3):
            (response,) = await whole(server, asks("a", max_tokens=10))
            assert said(response) == ["abcdefghijk"]
        slow.window.leave(63)
        told = [said(each)[0] async for each in slow.responses()]
        assert "".join(told) == "cdefghijklmnopqrstuv"
        assert len(told) < 20


async def test_who_leaves_frees_its_memory_and_others_go_on(tmp_path: Path) -> None:
    write_model(tmp_path, kv_tokens=64, block_tokens=4)
    gate = Gate()
    async with open_letters(tmp_path) as server:
        held_up(gate)
        reply = await server.admit(asks("abcdefgh", stream=True, max_tokens=50))
        await until_entered(gate)
        reply.cancel()
        gate.opened.set()
        for _ in range(20):  # more than there is memory for, one after the other
            (response,) = await whole(server, asks("b" * 40, max_tokens=20))
            assert said(response) == ["b" * 40 + "cdefghijklmnopqrstuv"]
        await until(lambda: not server.model_statistics()[0].inflight)


async def test_memory_for_one_serves_all_in_turn(tmp_path: Path) -> None:
    write_model(tmp_path, kv_tokens=16, block_tokens=4, max_running=4)
    async with open_letters(tmp_path) as server:
        texts: list[str] = []

        async def go_on() -> None:
            (response,) = await whole(server, asks("abcd", max_tokens=12))
            texts.append(said(response)[0])

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(go_on)
        assert texts == ["abcdefghijklmnop"] * 5


async def test_logits_that_are_no_numbers_cost_their_request_alone(tmp_path: Path) -> None:
    write_model(tmp_path)

    class Broken(CountingNetwork):
        pass

    original = CountingNetwork.run

    def run(self: CountingNetwork, step: Step) -> np.ndarray:
        logits = original(self, step)
        drawing = [piece.generation for piece in step.pieces if piece.draws]
        for row, generation in enumerate(drawing):
            if generation.tokens[0] == ALPHABET.index("q"):
                logits[row] = np.nan
        return logits

    CountingNetwork.run = run
    try:
        async with open_letters(tmp_path) as server:
            failures: list[str] = []

            async def fail() -> None:
                with pytest.raises(InternalError) as caught:
                    await whole(server, asks("q", max_tokens=5))
                failures.append(caught.value.message)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                (response,) = await whole(server, asks("a", max_tokens=5))
            assert said(response) == ["abcdef"]
            assert failures == ["the model's logits are not numbers (NaN or infinite)"]
    finally:
        CountingNetwork.run = original


async def test_a_step_that_fails_costs_the_requests_in_it_and_no_later_ones(tmp_path: Path) -> None:
    write_model(tmp_path)

    def fail(_step: Step) -> None:
        raise InternalError("a step of 3 tokens failed: out of memory")

    async with open_letters(tmp_path) as server:
        CountingNetwork.before = staticmethod(fail)
        with pytest.raises(InternalError, match="a step of 3 tokens failed: out of memory"):
            await whole(server, asks("abc"))
        CountingNetwork.before = staticmethod(lambda _step: None)
        (response,) = await whole(server, asks("abc", max_tokens=1))
        assert said(response) == ["abcd"]


async def test_a_step_that_ends_its_thread_costs_the_instance_which_is_started_again(tmp_path: Path) -> None:
    write_model(tmp_path)

    def leave(_step: Step) -> None:
        raise SystemExit(3)

    async with open_letters(tmp_path) as server:
        CountingNetwork.before = staticmethod(leave)
        with pytest.raises(InternalError, match="exit status 3"):
            await whole(server, asks("abc"))
        CountingNetwork.before = staticmethod(lambda _step: None)
        await until(lambda: server.model_ready("letters"))
        (response,) = await whole(server, asks("abc", max_tokens=1))
        assert said(response) == ["abcd"]


@pytest.mark.parametrize("leaves", [False, True], ids=["does not read", "has left"])
async def test_a_step_that_hangs_is_given_up_though_its_client_is_away(tmp_path: Path, leaves: bool) -> None:
    write_model(tmp_path)
    gate = Gate()
    async with open_letters(tmp_path, hang_limit_s=0.2) as server:
        held_up(gate)
        slow = await server.admit(asks("ab", stream=True, max_tokens=20))
        assert slow.window is not None
        await until_entered(gate)
        if leaves:
            slow.cancel()
        else:
            while not slow.window.crowded:
                slow.window.enter()  # answers that nobody reads
        await until(lambda: not server.model_ready("letters"))
        if not leaves:
            with pytest.raises(InternalError, match=r"gave no answer within 0\.2 s and was given up"):
                [each async for each in slow.responses()]
        CountingNetwork.before = staticmethod(lambda _step: None)
        gate.opened.set()
        await until(lambda: server.model_ready("letters"))
        (response,) = await whole(server, asks("abc", max_tokens=1))
        assert said(response) == ["abcd"]


async def test_what_waits_is_answered_before_the_model_goes(tmp_path: Path) -> None:
    write_model(tmp_path)
    gate = Gate()
    async with open_letters(tmp_path, model_control_mode=ControlMode.EXPLICIT, startup_models=("letters",)) as server:
        held_up(gate)
        async with trio.open_nursery() as nursery:

            async def go_on() -> None:
                (response,) = await whole(server, asks("a", max_tokens=5))
                assert said(response) == ["abcdef"]

            nursery.start_soon(go_on)
            await until_entered(gate)
            nursery.start_soon(server.unload_model, "letters")
            gate.opened.set()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (asks(), "expected one of 'text_input' and 'input_ids', got none"),
        (asks("a", tokens=[1]), "expected one of 'text_input' and 'input_ids', got both"),
        (asks(""), "64 tokens are to follow a prompt of 0; expected 1 or more of both"),
        (
            asks("a", max_tokens=64),
            "the prompt has 1 tokens and 64 are to follow, which is more than the model's context of 64",
        ),
        (
            asks("a" * 100),
            "the prompt has 100 tokens and 1 are to follow, which is more than the model's context of 64",
        ),
        (asks(tokens=[256]), "token 256 in the prompt; expected 0 to 255"),
        (asks(tokens=[-1]), "token -1 in the prompt; expected 0 to 255"),
        (asks("a", max_tokens=0), "max_tokens is 0; expected 1 or more"),
        (asks("a", max_tokens="many"), 'max_tokens is "many"; expected an integer'),
        (asks("a", max_tokens=1.5), "max_tokens is 1.5; expected an integer"),
        (asks("a", max_tokens=True), "max_tokens is true; expected an integer"),
        (asks("a", temperature="hot"), 'temperature is "hot"; expected a number'),
        (asks("a", top_p=2), "top_p is 2.0; expected more than 0 up to 1"),
        (asks("a", n=65), "n is 65; expected 1 to 64"),
        (asks("a", stop=[""]), "stop is an array; expected a text or an array of texts, none empty"),
        (asks("a", stop_token_ids=[1.5]), "stop_token_ids is an array; expected an array of integers"),
        (asks("a", logit_bias=[1]), "logit_bias is an array; expected an object of numbers by token"),
        (asks("a", logit_bias={"300": 1}), "a logit bias for token 300; expected 0 to 255"),
        (asks("a", ignore_eos="perhaps"), 'ignore_eos is "perhaps"; expected true or false'),
        (asks("a", lora_name=7), "lora_name is 7; expected a text that is not empty"),
        (asks("a", lora_name="doll"), "lora_name is 'doll', which is not known; expected none, as the model has none"),
        (asks("a", temprature=1), "'sampling_parameters' has 'temprature', which is not known here"),
        (asks("a", parameters="[1]"), "'sampling_parameters' is an array; expected a JSON object"),
        (
            asks("a", parameters="{"),
            "'sampling_parameters' is no JSON: Expecting property name enclosed in double quotes: line 1 column 2",
        ),
    ],
)
async def test_a_wrong_request_is_refused_with_its_reason(tmp_path: Path, request_: InferenceRequest, why: str) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        assert (await refused(server, request_)).startswith(why)
        (response,) = await whole(server, asks("a", max_tokens=1))
        assert said(response) == ["ab"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("max_batch_size: 4", "max_batch_size is 4; expected 0"),
        (
            "input { name: 'x' data_type: TYPE_FP32 dims: 1 }",
            "input 'x' of type FP32; expected some of text_input (BYTES)",
        ),
        (
            'parameters { key: "max_running" value { string_value: "0" } }',
            "parameter 'max_running' is 0; expected 1 or more",
        ),
        (
            'parameters { key: "max_tokens_per_step" value { string_value: "8" } }',
            "a step of 8 tokens has no room for prompts beside 64 generations",
        ),
    ],
)
async def test_a_model_that_cannot_be_is_not_loaded(tmp_path: Path, lines: str, why: str) -> None:
    directory = write_model(tmp_path)
    path = directory.parent / "config.pbtxt"
    path.write_text(f"{path.read_text()}{lines}\n")
    async with open_letters(tmp_path, exit_on_error=False) as server:
        (row,) = server.repository_index()
        assert why in row.reason


async def test_a_model_without_its_configuration_is_not_loaded(tmp_path: Path) -> None:
    directory = write_model(tmp_path)
    (directory / "config.json").unlink()
    async with open_letters(tmp_path, exit_on_error=False) as server:
        (row,) = server.repository_index()
        assert "config.json'; expected a model in Hugging Face's layout" in row.reason


async def test_requests_choose_an_adapter_or_none(tmp_path: Path) -> None:
    """Those of different adapters share no blocks, whatever their prompts are."""
    directory = write_model(tmp_path, block_tokens=4)
    for name in ("sheep", "doll"):
        (directory / "adapters" / name).mkdir(parents=True)
    seen: set[tuple[str, bytes]] = set()

    def look(step: Step) -> None:
        seen.update((piece.generation.adapter, piece.generation.salt) for piece in step.pieces)

    async with open_letters(tmp_path) as server:
        CountingNetwork.before = staticmethod(look)
        choices: list[dict[str, Any]] = [{"lora_name": "doll"}, {"lora_name": "sheep"}, {"lora_name": None}, {}]
        for chosen in choices:
            (response,) = await whole(server, asks("abcdefgh", max_tokens=2, n=2, **chosen))
            assert said(response) == ["abcdefghij"] * 2
        assert seen == {("doll", b"doll"), ("sheep", b"sheep"), ("", b"")}
        assert await refused(server, asks("a", lora_name="cat")) == (
            "lora_name is 'cat', which is not known; expected one of doll, sheep"
        )


async def test_a_model_whose_adapters_cannot_be_found_is_not_loaded(tmp_path: Path) -> None:
    directory = write_model(tmp_path)
    (directory / "multi_lora.json").write_text("[]")
    async with open_letters(tmp_path, exit_on_error=False) as server:
        (row,) = server.repository_index()
        assert "multi_lora.json': expected a JSON object" in row.reason


async def test_special_tokens_are_text_where_that_is_asked_for(tmp_path: Path) -> None:
    directory = write_model(tmp_path)
    path = directory / "tokenizer.json"
    about = json.loads(path.read_text())
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    about["added_tokens"].append({"id": ALPHABET.index("c"), "content": "c", **flags})
    path.write_text(json.dumps(about))
    async with open_letters(tmp_path) as server:
        for wanted, text in (({}, "bde"), ({"skip_special_tokens": False}, "bcde")):
            chosen: dict[str, Any] = wanted
            (response,) = await whole(server, asks("a", flags=("exclude_input_in_output",), max_tokens=4, **chosen))
            assert said(response) == [text]
