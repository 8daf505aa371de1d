"""How the weights of a network lie in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from trireme.engine.backends.generation.weights import lay_out

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_one_input_are_one_product(bias: bool) -> None:
    torch.manual_seed(1)
    model: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, attention_bias=bias, mlp_bias=bias)
    ).eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.inference_mode():
        wanted = model(tokens).logits
        lay_out(torch, model)
        products: list[int] = []
        attention = model.model.layers[0].self_attn
        linear = torch.nn.functional.linear
        attention.q_proj.forward.func.__self__._linear = lambda *given: products.append(1) or linear(*given)
        found = model(tokens).logits
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert products == [1]


def test_no_weights_are_there_twice() -> None:
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    lay_out(torch, model)
    layer = model.model.layers[1]
    for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        module = layer.self_attn if "q_proj" in names else layer.mlp
        assert len({getattr(module, name).weight.untyped_storage().data_ptr() for name in names}) == 1
    assert layer.mlp.down_proj.weight.t().is_contiguous()


def test_what_an_embedding_is_read_from_stays_as_it_is() -> None:
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)).eval()
    lay_out(torch, model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.is_contiguous()
