"""Networks of transformers, computed step by step, against their own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from reference_networks import ARCHITECTURES, CONTEXT, NEW, SIZES, Played, Reference, one_thread

from trireme.engine.backends.generation.attention import KeyValueMemory, in_row, step_tensors
from trireme.engine.backends.generation.network import Network
from trireme.engine.errors import InternalError, UnavailableError, UnsupportedError
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationLimits, Iterations, Piece, Step
from trireme.engine.generation.requests import Generation


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module", params=ARCHITECTURES)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("count", [1, 2, 8, 32])
def test_texts_are_what_transformers_generates_one_by_one(reference: Reference, count: int, packs: bool) -> None:
    played = Played(reference, count, packs=packs)
    played.check(reference)
    assert played.widest == count


def test_so_they_are_where_prompts_go_in_pieces(reference: Reference) -> None:
    played = Played(reference, 32, most_tokens=11, most_running=8)
    played.check(reference)
    assert played.core.counts.steps > 50


@pytest.mark.parametrize("shares", [False, True])
def test_so_they_are_where_beginnings_are_shared_or_not(reference: Reference, shares: bool) -> None:
    played = Played(reference, 16, shares=shares, most_running=2)
    played.check(reference)
    assert (played.memory.found > 100) is shares


@pytest.mark.parametrize("held", [0, 40])
def test_so_they_are_where_memory_runs_out(reference: Reference, held: int) -> None:
    played = Played(reference, 16, blocks=26, most_running=8, held=held, swaps_from=4)
    played.check(reference)
    counts = played.core.counts
    assert (counts.swaps if held else counts.recomputations) > 3


def test_choices_of_a_prompt_go_on_from_copies(reference: Reference) -> None:
    network = Network(reference.directory, 60, 4)
    memory = BlockMemory(60, 4)
    ended: list[Generation] = []
    core = Iterations(memory, IterationLimits(context=CONTEXT, most_tokens=60, most_running=4), ended.append)
    core.arrive(Generation(0, list(reference.prompts[1]), NEW, choices=3))
    while (step := core.begin_step(0.0)) is not None:
        drawing = [piece.generation for piece in step.pieces if piece.draws]
        drawn = {}
        for each, logits in zip(drawing, network.run(step), strict=True):
            # The choices begin with different tokens, and are greedy from then on.
            drawn[each] = logits.argsort()[::-1][: each.wide].tolist()
        core.end_step(drawn, lambda _generation: False)
    first, *others = sorted(ended, key=lambda each: each.choice)
    assert first.tokens == reference.texts[1]
    for other in others:
        alone = Generation(0, list(other.tokens[: other.prompt + 1]), NEW - 1)
        core.arrive(alone)
        while (step := core.begin_step(0.0)) is not None:
            drawn = [int(logits.argmax()) for logits in network.run(step)]
            core.end_step({alone: drawn} if drawn else {}, lambda _generation: False)
        assert alone.tokens == other.tokens


@pytest.mark.parametrize(("dtype", "nbytes"), [("auto", 2), ("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_a_network_is_computed_in_the_type_that_is_asked_for(dtype: str, nbytes: int, tmp_path: Path) -> None:
    """It is stored in bfloat16."""
    torch.manual_seed(5)
    model: Any = ARCHITECTURES["llama"]().bfloat16().eval()
    model.save_pretrained(tmp_path)
    network = Network(tmp_path, 10, 4, dtype=dtype)
    core = Iterations(BlockMemory(10, 4), IterationLimits(context=CONTEXT), lambda _ended: None)
    core.arrive(Generation(0, [1, 2, 3], 2))
    step = core.begin_step(0.0)
    assert step is not None
    (found,) = network.run(step)
    assert network.token_bytes == 2 * 2 * 2 * 8 * nbytes, "keys and values of two layers with two heads of 8"
    computed = getattr(torch, "bfloat16" if dtype == "auto" else dtype)
    assert {weights.dtype for weights in network._model.parameters()} == {computed}
    with torch.inference_mode():
        wanted = model.float()(torch.tensor([[1, 2, 3]])).logits[0, -1].numpy()
    assert abs(found - wanted).max() < (1e-5 if dtype == "float32" else 0.02)


def test_a_directory_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        Network(tmp_path, 10, 4)
    where = tmp_path / "config.json"
    assert str(caught.value) == f"unable to find '{where}'; expected a model in Hugging Face's layout"


def test_broken_weights_are_an_error_that_names_the_directory(tmp_path: Path) -> None:
    ARCHITECTURES["llama"]().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(InternalError, match=f"unable to load the network in '{tmp_path}'"):
        Network(tmp_path, 10, 4)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_that_are_missing_are_an_error(name: str, tmp_path: Path) -> None:
    """They would be random numbers; those that a network has twice need be there once."""
    ARCHITECTURES[name]().save_pretrained(tmp_path)
    Network(tmp_path, 10, 4)
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    lost = next(each for each in weights if "mlp" in each)
    safetensors.torch.save_file(
        {each: weights[each] for each in weights if each != lost}, tmp_path / "model.safetensors"
    )
    with pytest.raises(
        InternalError, match=f"1 of its weights are missing, such as '{lost}'; expected all that config"
    ):
        Network(tmp_path, 10, 4)


def test_nothing_is_said_but_in_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """transformers has much to say where a network is loaded."""
    ARCHITECTURES["llama"]().save_pretrained(tmp_path)
    capfd.readouterr()
    Network(tmp_path, 10, 4)
    assert capfd.readouterr() == ("", "")


def test_an_architecture_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(InternalError, match="no-such-model"):
        Network(tmp_path, 10, 4)


def test_attention_that_is_not_computed_here_is_an_error(tmp_path: Path) -> None:
    settings = {**SIZES, "head_dim": 8, "attn_logit_softcapping": 30.0}
    transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**settings)).save_pretrained(tmp_path)
    network = Network(tmp_path, 10, 4)
    core = Iterations(BlockMemory(10, 4), IterationLimits(context=CONTEXT), lambda _ended: None)
    core.arrive(Generation(0, [1, 2, 3], 2))
    step = core.begin_step(0.0)
    assert step is not None
    with pytest.raises(
        UnsupportedError, match="the network's attention has 'softcap', which the backend 'generation' lacks"
    ):
        network.run(step)


def test_steps_are_carried_out_without_the_code_of_a_network_that_is_known(reference: Reference) -> None:
    calls, played = [], Played(reference, 4)
    network = played.network
    network._model.register_forward_hook(lambda *_arguments: calls.append(1))
    for number, prompt in enumerate(reference.prompts[4:12]):
        played.core.arrive(Generation(number, list(prompt), NEW))
    played.play()
    assert played.core.counts.steps > NEW
    assert not calls


def test_others_are_computed_by_their_own_code(tmp_path: Path) -> None:
    """Which experts a token has, and so what is computed, is in its numbers."""
    torch.manual_seed(5)
    sizes = {**SIZES, "num_local_experts": 4}
    model: Any = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes)).eval()
    model.save_pretrained(tmp_path)
    network = Network(tmp_path, 40, 4)
    core = Iterations(BlockMemory(40, 4), IterationLimits(context=CONTEXT), lambda _ended: None)
    generations = [Generation(number, [number + 1, 2, 3], NEW) for number in range(3)]
    for each in generations:
        core.arrive(each)
    while (step := core.begin_step(0.0)) is not None:
        drawing = [piece.generation for piece in step.pieces if piece.draws]
        drawn = zip(drawing, network.run(step), strict=True)
        core.end_step({each: [int(logits.argmax())] for each, logits in drawn}, lambda _generation: False)
    for each in generations:
        prompt = torch.tensor([each.tokens[:3]])
        wanted = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False)
        assert each.tokens == wanted[0].tolist()


def test_texts_are_computed_together_as_far_as_their_copies_stay_in_the_cache() -> None:
    memory = KeyValueMemory(torch, 400, 4, 0, torch.device("cpu"))
    tokens = torch.zeros((1, 8, 512))  # 32 KiB of keys and values for each token, 128 for a block
    memory.places(0, 0, tokens, tokens)
    blocks = BlockMemory(400, 4, shares=False)
    pieces = []
    for number, length in enumerate([*[14] * 6, 60, 90, 120, 400]):
        generation = Generation(number, [1] * length, NEW)
        generation.table = blocks.begin(generation.tokens, b"", ())
        pieces.append(Piece(generation, length - 1, length, draws=True))
    layout = step_tensors(torch, in_row(pieces), Step(pieces, ()), memory).layout.tolist()
    assert layout == [[4, 1, 4], [2, 1, 4], [1, 1, 15], [1, 1, 23], [1, 1, 30], [1, 1, 100]]
