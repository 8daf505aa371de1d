"""What a directory in the layout of Hugging Face says of an encoder: what it is for, and how its vectors are made.

Rules:
 1. What ``modules.json`` lists, as sentence-transformers writes it, is for embeddings. It may list a transformer, its
    pooling, dense layers, and a normalization in the end.
 2. Else the architecture in ``config.json`` says it: one for the classification of sequences gives labels, or with
    a single label a score; the bare network, or one that guesses missing words, gives embeddings; one that guesses the
    next word is no encoder.
 3. Parameters of the model's configuration go before what the files say, and that before the defaults.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import InvalidArgumentError, UnsupportedError
from ...hugging_face import CONFIG, read_json, read_object
from ...parameters import parse_bool
from .dense import DenseLayer, read_dense

MODULES = "modules.json"
_CLASSIFIES = "ForSequenceClassification"
_EMBEDS = ("Model", "ForMaskedLM", "ForPreTraining")
_GENERATES = ("ForCausalLM", "LMHeadModel")
POOLINGS = ("cls", "max", "mean", "last")
"""How a text's vector is made of those of its tokens. Several are put together in this order, as
sentence-transformers does."""
_POOLING_NAMES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
ACTIVATIONS = ("softmax", "sigmoid", "none")


class EncoderKind(enum.Enum):
    """What comes of a text."""

    EMBEDDING = "embedding"
    LABELS = "labels"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class EncoderLayout:
    """An encoder, as its files describe it.

    Attributes:
        directory: of the network.
        width: of what comes of a text: numbers of its vector, or labels.
        poolings: of `POOLINGS`; for embeddings.
        denses: layers that a text's vector goes through.
        normalizes: vectors have the length 1.
        labels: by their places.
        activation: of `ACTIVATIONS`: what makes scores of the network's logits.
        longest: tokens of a text, as far as the files limit them beyond what the network can read.
    """

    directory: Path
    kind: EncoderKind
    width: int
    poolings: tuple[str, ...] = ("mean",)
    denses: tuple[DenseLayer, ...] = ()
    normalizes: bool = False
    labels: tuple[str, ...] = ()
    activation: str = "none"
    longest: int | None = None


def read_layout(directory: Path, parameters: Mapping[str, str]) -> EncoderLayout | None:
    """What a version's directory has; None if that is no encoder.

    Raises:
        TriremeError: it is one that cannot be served, or a file cannot be read.
    """
    modules = directory / MODULES
    if modules.is_file():
        return _sentence_transformer(directory, parameters)
    if not (directory / CONFIG).is_file():
        return None
    config = read_object(directory / CONFIG)
    architecture = str((config.get("architectures") or [""])[0])
    if not architecture or architecture.endswith(_GENERATES):
        return None
    if architecture.endswith(_CLASSIFIES):
        return _classifier(directory, config, parameters)
    if architecture.endswith(_EMBEDS):
        return _embedding(directory, config, parameters, ("mean",), False)
    raise UnsupportedError(
        f"unable to serve '{directory / CONFIG}': its architecture is {architecture}; expected one that ends with "
        f"{', '.join((*_GENERATES, _CLASSIFIES, *_EMBEDS))}"
    )


def _classifier(directory: Path, config: Mapping[str, Any], parameters: Mapping[str, str]) -> EncoderLayout:
    names: Mapping[str, str] = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(len(names)))
    problem = config.get("problem_type")
    single = len(labels) == 1
    usual = "sigmoid" if single or problem == "multi_label_classification" else "softmax"
    activation = parameters.get("activation", "none" if problem == "regression" else usual)
    if activation not in ACTIVATIONS:
        raise InvalidArgumentError(f"parameter 'activation' is {activation}; expected one of {', '.join(ACTIVATIONS)}")
    kind = EncoderKind.SCORE if single else EncoderKind.LABELS
    return EncoderLayout(directory, kind, len(labels), labels=labels, activation=activation)


def _embedding(
    directory: Path,
    config: Mapping[str, Any],
    parameters: Mapping[str, str],
    poolings: tuple[str, ...],
    normalizes: bool,
    longest: int | None = None,
    denses: tuple[DenseLayer, ...] = (),
) -> EncoderLayout:
    if "pooling" in parameters:
        given = {each.strip() for each in parameters["pooling"].split(",")}
        if not given <= set(POOLINGS):
            raise InvalidArgumentError(
                f"parameter 'pooling' is {parameters['pooling']}; expected some of {', '.join(POOLINGS)}"
            )
        poolings = tuple(each for each in POOLINGS if each in given)
    if "normalize" in parameters:
        normalizes = parse_bool(parameters["normalize"])
    width = next((config[name] for name in ("hidden_size", "dim", "d_model") if name in config), None)
    if not isinstance(width, int) or width < 1:
        raise InvalidArgumentError(f"'{directory / CONFIG}' has no 'hidden_size'; expected that of an encoder")
    width *= len(poolings)
    for dense in denses:
        if dense.takes != width:
            raise InvalidArgumentError(
                f"'{dense.directory / CONFIG}' has in_features {dense.takes}; expected {width}, as vectors have there"
            )
        width = dense.gives
    return EncoderLayout(
        directory,
        EncoderKind.EMBEDDING,
        width,
        poolings=poolings,
        denses=denses,
        normalizes=normalizes,
        longest=longest,
    )


def _sentence_transformer(directory: Path, parameters: Mapping[str, str]) -> EncoderLayout:
    """Rule 1."""
    modules = read_json(directory / MODULES)
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise InvalidArgumentError(f"unable to read '{directory / MODULES}': expected an array of JSON objects")
    network, poolings, normalizes = directory, ("mean",), False
    denses: list[DenseLayer] = []
    for module in modules:
        path = directory / str(module.get("path") or "")
        match str(module.get("type", "")).rpartition(".")[2]:
            case "Transformer":
                network = path
            case "Pooling":
                poolings = _poolings(path / CONFIG)
            case "Dense" if not normalizes:
                denses.append(read_dense(path))
            case "Normalize":
                normalizes = True
            case other:
                raise UnsupportedError(
                    f"unable to serve '{directory / MODULES}': it has a module {other!r}; expected Transformer, "
                    "Pooling, Dense and Normalize, in this order"
                )
    about = network / "sentence_bert_config.json"
    longest = read_object(about).get("max_seq_length") if about.is_file() else None
    return _embedding(network, read_object(network / CONFIG), parameters, poolings, normalizes, longest, tuple(denses))


def _poolings(path: Path) -> tuple[str, ...]:
    about = read_object(path)
    named = about.get("pooling_mode")
    if named is not None:
        names: Sequence[str] = [named] if isinstance(named, str) else list(named)
        found = {"last" if name == "lasttoken" else name for name in names}
    else:
        found = {_POOLING_NAMES.get(name, name) for name, value in about.items() if "pooling_mode" in name and value}
    if not found or not found <= set(POOLINGS):
        raise UnsupportedError(
            f"unable to serve '{path}': its pooling is {', '.join(sorted(found)) or 'not said'}; expected some of "
            f"{', '.join(POOLINGS)}"
        )
    return tuple(each for each in POOLINGS if each in found)
