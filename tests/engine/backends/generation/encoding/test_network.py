"""Encoders, computed without padding, against transformers' own results for each text by itself."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_encoders import ALPHABET, CLASSIFIERS, CONTEXT, ENCODERS, PAD, SIZES, random_network, write_encoder

from trireme.engine.backends.generation.encoding.layout import read_layout
from trireme.engine.backends.generation.encoding.network import EncoderNetwork
from trireme.engine.backends.generation.encoding.packed import TokenRow
from trireme.engine.errors import InternalError, InvalidArgumentError, UnsupportedError


def some_texts(count: int = 32) -> list[TokenRow]:
    """Of mixed lengths, some the same."""
    chance = Random(3)
    lengths = [1, 2, 60, 7, 7, *(chance.randint(1, 60) for _ in range(count))]
    return [TokenRow([chance.randrange(4, len(ALPHABET)) for _ in range(length)]) for length in lengths[:count]]


def loaded(directory: Path, dtype: str = "auto", **parameters: str) -> EncoderNetwork:
    layout = read_layout(directory, parameters)
    assert layout is not None
    return EncoderNetwork(layout, dtype=dtype)


def own(network: Any, text: TokenRow, **more: Any) -> Any:
    """What transformers makes of a text by itself."""
    with torch.no_grad():
        return network(input_ids=torch.tensor([text.ids]), **more)


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, EncoderNetwork]:
    network = random_network(ENCODERS[request.param])
    directory = tmp_path_factory.mktemp(request.param)
    write_encoder(directory, network)
    return network, loaded(directory)


@pytest.mark.parametrize("count", [1, 2, 8, 32])
def test_vectors_are_those_of_transformers_one_by_one(encoder: tuple[Any, EncoderNetwork], count: int) -> None:
    network, packed = encoder
    texts = some_texts(count)
    expected = [own(network, text).last_hidden_state[0].mean(dim=0).numpy() for text in texts]
    np.testing.assert_allclose(packed.run(texts), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "computed"), [("auto", "bfloat16"), ("float32", "float32"), ("float16", "float16")])
def test_an_encoder_is_computed_in_the_type_that_is_asked_for(dtype: str, computed: str, tmp_path: Path) -> None:
    network = random_network(ENCODERS["bert"]).to(torch.bfloat16)
    write_encoder(tmp_path, network)
    packed = loaded(tmp_path, dtype)
    assert {weights.dtype for weights in packed._model.parameters()} == {getattr(torch, computed)}
    texts = some_texts(8)
    expected = [own(network.float(), text).last_hidden_state[0].mean(dim=0).numpy() for text in texts]
    found = packed.run(texts)
    assert found.dtype == np.float32
    assert abs(found - expected).max() < (1e-4 if computed == "float32" else 0.1)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores_are_those_of_transformers_one_by_one(name: str, labels: int, tmp_path: Path) -> None:
    network = random_network(CLASSIFIERS[name], num_labels=labels)
    write_encoder(tmp_path, network)
    texts = some_texts()
    logits = torch.stack([own(network, text).logits[0] for text in texts])
    np.testing.assert_allclose(loaded(tmp_path, activation="none").run(texts), logits, rtol=1e-4, atol=1e-5)
    usual = logits.sigmoid() if labels == 1 else logits.softmax(-1)
    np.testing.assert_allclose(loaded(tmp_path).run(texts), usual, rtol=1e-4, atol=1e-5)


def test_pairs_are_told_apart(tmp_path: Path) -> None:
    network = random_network(CLASSIFIERS["bert"], num_labels=1)
    write_encoder(tmp_path, network)
    text = some_texts()[3]
    types = [0, 0, 0, 1, 1, 1, 1]
    (found,) = loaded(tmp_path, activation="none").run([TokenRow(text.ids, types)])
    assert found == pytest.approx(own(network, text, token_type_ids=torch.tensor([types])).logits[0].numpy(), rel=1e-4)
    assert found != pytest.approx(own(network, text).logits[0].numpy(), rel=1e-2)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (("pooling_mode_cls_token",), lambda states: states[0]),
        (("pooling_mode_lasttoken",), lambda states: states[-1]),
        (("pooling_mode_max_tokens",), lambda states: states.max(dim=0).values),
        (
            ("pooling_mode_mean_tokens", "normalize"),
            lambda states: torch.nn.functional.normalize(states.mean(dim=0), dim=0),
        ),
        (
            ("pooling_mode_mean_tokens", "pooling_mode_cls_token"),
            lambda states: torch.cat([states[0], states.mean(dim=0)]),
        ),
    ],
)
def test_vectors_are_made_as_sentence_transformers_says(
    tmp_path: Path, modules: tuple[str, ...], expected: Any
) -> None:
    network = random_network(ENCODERS["bert"])
    write_encoder(tmp_path, network, modules=modules)
    texts = some_texts(8)
    wanted = [expected(own(network, text).last_hidden_state[0]).numpy() for text in texts]
    np.testing.assert_allclose(loaded(tmp_path).run(texts), wanted, rtol=1e-4, atol=1e-5)


def test_vectors_go_through_dense_layers(tmp_path: Path) -> None:
    torch.manual_seed(7)
    network = random_network(ENCODERS["bert"])
    denses = [(torch.nn.Linear(32, 20), "Tanh"), (torch.nn.Linear(20, 6, bias=False), "Identity")]
    write_encoder(tmp_path, network, modules=("pooling_mode_mean_tokens", "normalize"), denses=denses)
    texts = some_texts(8)
    means = torch.stack([own(network, text).last_hidden_state[0].mean(dim=0) for text in texts])
    (first, _), (second, _) = denses
    with torch.no_grad():
        expected = torch.nn.functional.normalize(second(first(means).tanh()), dim=-1)
    packed = loaded(tmp_path)
    assert packed.run(texts).shape == (8, 6)
    np.testing.assert_allclose(packed.run(texts), expected, rtol=1e-4, atol=1e-5)


def test_a_dense_layer_that_cannot_be_is_refused(tmp_path: Path) -> None:
    network = random_network(ENCODERS["bert"])
    modules = ("pooling_mode_mean_tokens",)
    write_encoder(tmp_path, network, modules=modules, denses=[(torch.nn.Linear(31, 4), "Tanh")])
    with pytest.raises(InvalidArgumentError, match="has in_features 31; expected 32"):
        loaded(tmp_path)
    write_encoder(tmp_path, network, modules=modules, denses=[(torch.nn.Linear(32, 4), "Softsign")])
    with pytest.raises(UnsupportedError, match="its activation_function is Softsign; expected one of Identity, Tanh"):
        loaded(tmp_path)
    write_encoder(tmp_path, network, modules=modules, denses=[(torch.nn.Linear(32, 4), "Tanh")])
    about = tmp_path / "2_Dense" / "config.json"
    about.write_text(about.read_text().replace('"out_features": 4', '"out_features": 5'))
    with pytest.raises(InternalError, match=r"unable to use .*size mismatch for weight"):
        loaded(tmp_path)
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(InternalError, match=r"unable to read .*model\.safetensors"):
        loaded(tmp_path)
    rows = json.loads((tmp_path / "modules.json").read_text())
    rows.insert(2, {"idx": 9, "name": "9", "path": "", "type": "sentence_transformers.models.Normalize"})
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(UnsupportedError, match="Transformer, Pooling, Dense and Normalize, in this order"):
        loaded(tmp_path)


def test_half_precision_is_kept(tmp_path: Path) -> None:
    network = random_network(ENCODERS["bert"]).to(torch.bfloat16)
    write_encoder(tmp_path, network)
    texts = some_texts(8)
    expected = [own(network, text).last_hidden_state[0].mean(dim=0).float().numpy() for text in texts]
    for found, wanted in zip(loaded(tmp_path).run(texts), expected, strict=True):
        assert found @ wanted / (np.linalg.norm(found) * np.linalg.norm(wanted)) > 0.999


def test_a_network_of_no_such_attention_is_refused(tmp_path: Path) -> None:
    network = random_network(lambda: transformers.MPNetModel(transformers.MPNetConfig(**SIZES)))
    write_encoder(tmp_path, network)
    with pytest.raises(UnsupportedError, match="MPNetModel cannot be computed without padding: its attention does not"):
        loaded(tmp_path)


def test_a_network_is_refused_if_a_row_is_not_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had its own way of counting positions."""
    write_encoder(tmp_path, random_network(ENCODERS["roberta"]))
    monkeypatch.setattr("trireme.engine.backends.generation.encoding.network._first_position", lambda _base: 0)
    with pytest.raises(UnsupportedError, match="its results are not those of texts by themselves"):
        loaded(tmp_path)


def test_a_head_without_weights_is_refused(tmp_path: Path) -> None:
    """Its labels would be random."""
    write_encoder(tmp_path, random_network(ENCODERS["bert"]))
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"BertModel"', '"BertForSequenceClassification"'))
    with pytest.raises(InternalError, match=r"2 of its weights are missing, such as 'classifier\.bias'"):
        loaded(tmp_path)


def test_how_long_a_text_may_be(tmp_path: Path) -> None:
    for name, context in (("bert", CONTEXT), ("roberta", CONTEXT - PAD - 1)):
        write_encoder(tmp_path / name, random_network(ENCODERS[name]))
        assert loaded(tmp_path / name).context == context
    write_encoder(tmp_path / "limited", random_network(ENCODERS["bert"]), modules=("pooling_mode_cls_token",))
    (tmp_path / "limited" / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    assert loaded(tmp_path / "limited").context == 24


def test_a_directory_that_is_no_network_is_an_error(tmp_path: Path) -> None:
    write_encoder(tmp_path, random_network(ENCODERS["bert"]))
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InternalError, match="unable to load the network in"):
        loaded(tmp_path)
