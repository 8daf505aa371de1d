"""How the weights of a network lie in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from trireme.engine.backends.generation.weights import LinearWeights

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def network(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    torch.manual_seed(1)
    made: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **more)).eval()
    for weights in made.parameters():
        torch.nn.init.normal_(weights)
    return made.to(dtype)


@pytest.mark.parametrize("more", [{}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packs", [False, True])
def test_a_network_computes_what_it_did(more: dict[str, Any], dtype: torch.dtype, packs: bool) -> None:
    model = network(dtype, **more)
    allowed = 1e-4 if dtype is torch.float32 else 0.1
    rows = [torch.arange(count)[None] for count in (1, 2, 7, 45)]
    with torch.inference_mode():
        wanted = [model(tokens).logits for tokens in rows]
        weights = LinearWeights(model)
        packed = weights.pack() if packs else ()
        for tokens, logits in zip(rows, wanted, strict=True):
            assert torch.allclose(model(tokens).logits, logits, atol=allowed * float(logits.abs().max()))
    assert bool(packed) is (packs and dtype is torch.float32)


def test_layers_of_one_input_are_one_product() -> None:
    model = network()
    LinearWeights(model)
    attention = model.model.layers[1].self_attn
    given = torch.randn(1, 3, SIZES["hidden_size"])
    parts = [layer(given) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    again = attention.q_proj(given)  # the input has not been kept
    assert again.untyped_storage().data_ptr() != parts[0].untyped_storage().data_ptr()
    assert torch.equal(again, parts[0])


def test_weights_are_there_once() -> None:
    model = network()
    LinearWeights(model)
    layer = model.model.layers[1]
    for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        module = layer.self_attn if "q_proj" in names else layer.mlp
        assert len({getattr(module, name).weight.untyped_storage().data_ptr() for name in names}) == 1
    assert layer.mlp.down_proj.weight.t().is_contiguous()


def test_large_ones_are_not_kept_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = LinearWeights(network())
    monkeypatch.setattr("trireme.engine.backends.generation.weights._MOST_PACKED_BYTES", 10_000)
    assert not weights.pack()


def test_what_an_embedding_is_read_from_stays_as_it_is() -> None:
    model = network(tie_word_embeddings=True)
    LinearWeights(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.is_contiguous()
