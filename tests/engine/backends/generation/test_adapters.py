"""Adapters of a network, several in one step, against what PEFT and transformers' `generate` make of the same files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from reference_networks import one_thread

from trireme.engine.backends.generation.adapter_config import AdapterConfig
from trireme.engine.backends.generation.network import Network
from trireme.engine.config.adapters import find_adapters
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationLimits, Iterations
from trireme.engine.generation.requests import Generation

VOCABULARY, CONTEXT, NEW, COUNT = 97, 128, 8, 16


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, **sizes)
    return transformers.GPT2LMHeadModel(config)


LLAMA_ADAPTERS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "everything": {"r": 2, "lora_alpha": 3, "target_modules": "all-linear", "use_rslora": True},
    "regex": {
        "r": 3,
        "lora_alpha": 6,
        "target_modules": r".*\.(gate|up|down)_proj",
        "exclude_modules": ["layers.1.mlp.up_proj"],
        "rank_pattern": {"down_proj": 5},
        "alpha_pattern": {r"layers\.0\.mlp\.down_proj": 11},
    },
    "head": {
        "target_modules": ["lm_head", "o_proj"],
        "layers_to_transform": [0, 2],
        "layers_pattern": "layers",
        "r": 6,
    },
}
GPT2_ADAPTERS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "fan_in_fan_out": True},
    "everything": {"r": 2, "lora_alpha": 5, "target_modules": ["c_attn", "c_proj", "c_fc"], "use_rslora": True},
    "one": {"r": 8, "lora_alpha": 16, "target_modules": ["c_fc"], "layers_to_transform": 1, "layers_pattern": "h"},
}
NETWORKS: dict[str, tuple[Callable[[], Any], dict[str, dict[str, Any]]]] = {
    "llama": (llama, LLAMA_ADAPTERS),
    "gpt2": (gpt2, GPT2_ADAPTERS),
}


def stored(model: Any, directory: Path, settings: Mapping[str, Any], seed: int) -> Any:
    """A random adapter of a network, which is stored; the network with it."""
    import peft  # it takes seconds: as long as all else that the tests import

    torch.manual_seed(seed)
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
    found = peft.get_peft_model(copy.deepcopy(model), config).eval()
    for name, weights in found.named_parameters():
        if "lora_" in name:
            weights.data.normal_(0, 0.5)
    found.save_pretrained(str(directory))
    return found


class Reference:
    """A random network with adapters, and what PEFT makes of some prompts.

    Attributes:
        adapters: of the prompts; every fourth or fifth has none.
        prompts: all begin alike, but for the first ones.
    """

    def __init__(self, kind: str, directory: Path) -> None:
        make, settings = NETWORKS[kind]
        torch.manual_seed(5)
        model = make().eval()
        for weights in model.parameters():
            weights.data.mul_(3)
        model.save_pretrained(directory)
        self.directory = directory
        models = {"": model}
        for seed, (name, given) in enumerate(settings.items()):
            models[name] = stored(model, directory / "adapters" / name, given, seed)
        chance = Random(3)
        beginning = [chance.randrange(VOCABULARY) for _ in range(18)]
        names = list(models)
        self.adapters = [names[number % len(names)] for number in range(COUNT)]
        self.prompts = [
            [*beginning, *(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 12)))] for _ in range(COUNT)
        ]
        self.texts = [
            self._generated(models[name], prompt) for name, prompt in zip(self.adapters, self.prompts, strict=True)
        ]

    def _generated(self, model: Any, prompt: list[int]) -> list[int]:
        tokens = torch.tensor([prompt])
        mask = torch.ones_like(tokens)
        made = model.generate(input_ids=tokens, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
        return made[0].tolist()


@pytest.fixture(scope="module", autouse=True)
def on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module", params=NETWORKS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(request.param, tmp_path_factory.mktemp(request.param))


def played(reference: Reference, *, blocks: int = 400, shares: bool = True, **given: Any) -> tuple[Iterations, int]:
    """Generate all texts and compare them; how, and most different adapters of a step."""
    limits = IterationLimits(**{"context": CONTEXT, "most_tokens": 500, "most_running": COUNT, **given})
    core = Iterations(BlockMemory(blocks, 4, shares=shares), limits, lambda _ended: None)
    network = Network(reference.directory, blocks, 4, limits.held, adapters=find_adapters(reference.directory))
    generations = [
        Generation(number, list(prompt), NEW, salt=name.encode(), adapter=name)
        for number, (name, prompt) in enumerate(zip(reference.adapters, reference.prompts, strict=True))
    ]
    for generation in generations:
        core.arrive(generation)
    mixed = 0
    while (step := core.begin_step(0.0)) is not None:
        mixed = max(mixed, len({piece.generation.adapter for piece in step.pieces}))
        drawing = [piece.generation for piece in step.pieces if piece.draws]
        drawn = zip(drawing, network.run(step), strict=True)
        core.end_step({each: [int(logits.argmax())] for each, logits in drawn}, lambda _generation: False)
    for generation, text in zip(generations, reference.texts, strict=True):
        assert generation.tokens == text, f"{generation.adapter or 'no adapter'}, prompt {generation.number}"
    return core, mixed


def test_adapters_differ(reference: Reference) -> None:
    """Else these tests would show nothing."""
    first = {text[len(prompt)] for text, prompt in zip(reference.texts, reference.prompts, strict=True)}
    assert len(first) > len(set(reference.adapters))


def test_a_step_with_all_adapters_and_none(reference: Reference) -> None:
    _, mixed = played(reference)
    assert mixed == len(set(reference.adapters))


def test_prompts_in_pieces_and_beginnings_that_are_shared_by_those_of_one_adapter(reference: Reference) -> None:
    core, _ = played(reference, most_tokens=11, most_running=4)
    each = COUNT - len(set(reference.adapters)) - 4
    assert core.memory.found >= each * 16, "16 of 18 tokens of the common beginning are in full blocks"
    apart, _ = played(reference, shares=False, most_running=4)
    assert apart.memory.found == 0


@pytest.mark.parametrize("held", [0, 40])
def test_memory_that_runs_out(reference: Reference, held: int) -> None:
    core, _ = played(reference, blocks=30, most_running=8, held=held, swaps_from=4, shares=False)
    assert (core.counts.swaps if held else core.counts.recomputations) >= 2


def test_a_set_of_adapters_that_changes_with_each_step(reference: Reference) -> None:
    played(reference, most_running=1)


# ---- files ----


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("good")
    model = llama()
    model.save_pretrained(directory)
    stored(model, directory / "adapters" / "good", LLAMA_ADAPTERS["attention"], 1)
    return directory


class Broken:
    """An adapter that is like the good one, but for what a test changes."""

    def __init__(self, good: Path, directory: Path) -> None:
        self.good = good
        self.directory = directory
        self.config = json.loads((good / "adapters" / "good" / "adapter_config.json").read_text())
        self.weights = safetensors.torch.load_file(good / "adapters" / "good" / "adapter_model.safetensors")

    def failure(self) -> TriremeError:
        (self.directory / "adapter_config.json").write_text(json.dumps(self.config))
        safetensors.torch.save_file(self.weights, self.directory / "adapter_model.safetensors")
        return self.load()

    def load(self) -> TriremeError:
        with pytest.raises(TriremeError) as caught:
            Network(self.good, 10, 4, adapters={"doll": self.directory})
        assert caught.value.message.startswith("unable to load the adapter 'doll': ")
        return caught.value


@pytest.fixture
def broken(good: Path, tmp_path: Path) -> Broken:
    return Broken(good, tmp_path)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"peft_type": "IA3"}, "'peft_type' is \"IA3\"; expected 'LORA'"),
        ({"task_type": "SEQ_CLS"}, "'task_type' is \"SEQ_CLS\"; expected 'CAUSAL_LM'"),
        ({"bias": "all"}, "'bias' is \"all\"; expected 'none'"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is not supported"),
        ({"use_dora": True}, "'use_dora' is not supported"),
        ({"lora_bias": True}, "'lora_bias' is not supported"),
        ({"some_new_setting": {"x": 1}}, "'some_new_setting' is not supported"),
        (
            {"init_lora_weights": "pissa_niter_16"},
            "'init_lora_weights' is \"pissa_niter_16\"; expected one that leaves",
        ),
        ({"r": 0}, "'r' is 0; expected an integer of 1 or more"),
        ({"r": True}, "'r' is true; expected an integer of 1 or more"),
        ({"lora_alpha": "16"}, "'lora_alpha' is \"16\"; expected a number"),
        ({"rank_pattern": {"q_proj": 0}}, "'rank_pattern.q_proj' is 0; expected an integer of 1 or more"),
        ({"rank_pattern": [4]}, "'rank_pattern' is \\[4\\]; expected an object"),
        ({"alpha_pattern": {"(": 4}}, "'alpha_pattern' has the regular expression '\\('"),
        ({"target_modules": None}, "'target_modules' is null; expected a regular expression, or an array of names"),
        ({"target_modules": [1]}, "'target_modules' is \\[1\\]; expected a regular expression, or an array"),
        ({"target_modules": "["}, "'target_modules' has the regular expression '\\['"),
        ({"layers_to_transform": ["1"]}, "'layers_to_transform' is \\[\"1\"\\]; expected an integer, or an array"),
        (
            {"target_modules": ["c_attn"]},
            "its target_modules are \\['c_attn'\\]; expected some of the network's layers",
        ),
        ({"target_modules": ["embed_tokens"]}, "'model.embed_tokens', which is Embedding; expected linear layers"),
        ({"target_modules": ["q_proj"]}, "has weights for '.*v_proj', which is not in target_modules"),
        ({"target_modules": ["q_proj", "k_proj", "v_proj"]}, "has no lora_A for the layer '.*k_proj'"),
        ({"r": 5}, r"lora_A for the layer '.*' has the shape \[4, 32\]; expected \[5, 32\] with rank 5"),
    ],
)
def test_a_configuration_that_cannot_be_computed(broken: Broken, settings: dict[str, Any], why: str) -> None:
    broken.config |= settings
    failure = broken.failure()
    assert isinstance(failure, InvalidArgumentError)
    with pytest.raises(TriremeError, match=why):
        raise failure


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({FIRST: torch.full((4, 32), torch.nan)}, "lora_A for the layer 'model.layers.0.self_attn.q_proj' has numbers"),
        ({FIRST: torch.zeros((4, 32), dtype=torch.int32)}, "has numbers that are not finite"),
        ({FIRST: torch.zeros((4, 16))}, r"has the shape \[4, 16\]; expected \[4, 32\] with rank 4"),
        ({"base_model.model.lm_head.base_layer.weight": torch.zeros((97, 32))}, "other weights of the layer 'lm_head'"),
        ({"model.q_proj.lora_A": torch.zeros(1)}, "has 'model.q_proj.lora_A'; expected names such as"),
    ],
)
def test_weights_that_are_not_what_was_said(broken: Broken, tensors: dict[str, Any], why: str) -> None:
    broken.weights |= tensors
    with pytest.raises(TriremeError, match=why):
        raise broken.failure()


def test_files_that_are_missing_or_broken(broken: Broken) -> None:
    where = broken.directory
    failure = broken.load()
    assert isinstance(failure, UnavailableError)
    assert failure.message.endswith(
        f"unable to find '{where / 'adapter_config.json'}'; expected an adapter as PEFT stores it"
    )
    (where / "adapter_config.json").write_text("{")
    (where / "adapter_model.safetensors").write_bytes(b"garbage")
    assert "adapter_config.json'" in broken.load().message
    (where / "adapter_config.json").write_text("[]")
    assert broken.load().message.endswith("expected a JSON object")
    (where / "adapter_config.json").write_text(json.dumps(broken.config))
    failure = broken.load()
    assert isinstance(failure, InternalError)
    assert "adapter_model.safetensors'" in failure.message


@pytest.mark.parametrize("kind", NETWORKS)
def test_layers_are_those_that_peft_chooses(kind: str, tmp_path: Path) -> None:
    """Also for settings that are odd."""
    import peft
    from peft.tuners import tuners_utils

    make, adapters = NETWORKS[kind]
    model = make()
    paths = [path for path, _ in model.named_modules() if path]
    odd: list[dict[str, Any]] = [
        {"target_modules": ["c_proj", "proj"], "exclude_modules": r".*mlp.*"},
        {"target_modules": ["q_proj", "c_attn"], "layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
        {"target_modules": ["q_proj", "c_attn"], "layers_to_transform": 2},
        {"target_modules": ["q_proj", "c_attn"], "layers_to_transform": []},
    ]
    for given in (*adapters.values(), *odd):
        config = peft.LoraConfig(**given)
        ours = AdapterConfig(tmp_path, {**given})
        if not ours.all_linear:
            check = tuners_utils.check_target_module_exists
            assert [path for path in paths if ours.targets(path)] == [path for path in paths if check(config, path)]
