"""What is refused when an ensemble and its members do not go together, and in which words
(docs/reference/ensembles.md#members)."""

from __future__ import annotations

import pytest
from ensembles import ensemble, member, step

from trireme.engine.config import ModelConfig
from trireme.engine.ensemble import EnsemblePlan
from trireme.engine.errors import InvalidArgumentError

A_TO_B = [step("a", {"IN": "I"}, {"OUT": "t"}), step("b", {"IN": "t"}, {"OUT": "O"})]
TWO = ("A", "B")


def decoupled(name: str = "d") -> ModelConfig:
    return member(name, decoupled=True)


REFUSED: list[tuple[ModelConfig, list[ModelConfig], str]] = [
    (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], max_batch_size=16),
        [member("a", max_batch_size=8)],
        "ensemble e allows maximum batch size 16, but it contains model a which only allows maximum batch size to be 8",
    ),
    (
        ensemble([step("a", {"NOPE": "I"}, {"OUT": "O"})]),
        [member("a")],
        "in ensemble e, ensemble tensor I is mapping to non-existing input NOPE in model a",
    ),
    (
        ensemble([step("a", {"IN": "I"}, {"NOPE": "O"})]),
        [member("a")],
        "in ensemble e, ensemble tensor O is mapped from non-existing output NOPE in model a",
    ),
    (
        ensemble([step("a", {"A": "I"}, {"OUT": "O"})]),
        [member("a", TWO)],
        "in ensemble e, input B in model a is not mapped to any ensemble tensors",
    ),
    (
        ensemble(A_TO_B),
        [member("a"), member("b", ("IN INT32 -1",))],
        (
            "in ensemble e, ensemble tensor t: inconsistent data type: TYPE_FP32 is inferred from model a while "
            "TYPE_INT32 is inferred from model b"
        ),
    ),
    (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], ("I FP32 5",)),
        [member("a", ("IN FP32 4",))],
        (
            "in ensemble e, ensemble tensor I: inconsistent shape: [5] is inferred from model e while [4] is "
            "inferred from model a"
        ),
    ),
    (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], outputs=("O FP32 2,3",), max_batch_size=4),
        [member("a", outputs=("OUT FP32 3,2",), max_batch_size=8)],
        (
            "in ensemble e, ensemble tensor O: inconsistent shape: [-1,2,3] is inferred from model e while [-1,3,2] is "
            "inferred from model a"
        ),
    ),
    (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], ("I FP32 4/2,2",)),
        [member("a", ("IN FP32 4",))],
        (
            "in ensemble e, ensemble tensor I: inconsistent shape: [2,2] is inferred from model e while [4] is "
            "inferred from model a"
        ),
    ),
    (
        ensemble([step("d", {"IN": "I"}, {"OUT": "t"}), step("j", {"A": "t", "B": "I"}, {"OUT": "O"})]),
        [decoupled(), member("j", TWO)],
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
    ),
    (
        ensemble(
            [
                step("d", {"IN": "I"}, {"OUT": "t"}),
                step("j", {"A": "t", "B": "I"}, {"OUT": "u"}),
                step("b", {"IN": "u"}, {"OUT": "O"}),
            ]
        ),
        [decoupled(), member("j", TWO), member("b")],
        "in ensemble e, step of model 'j' receives inputs originated from different decoupled models",
    ),
    (
        ensemble([step("d", {"IN": "I"}, {"OUT": "O"}), step("a", {"IN": "I"}, {"OUT": "P"})], outputs=("O", "P")),
        [decoupled(), member("a")],
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
    ),
    (
        ensemble([step("d", {"IN": "I"}, {"OUT": "O"}), step("d2", {"IN": "I"}, {"OUT": "P"})], outputs=("O", "P")),
        [decoupled(), decoupled("d2")],
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
    ),
    (
        ensemble([step("a", {"IN": "I"}, {"OUT": "I"}), step("b", {"IN": "I"}, {"OUT": "O"})]),
        [member("a"), member("b")],
        (
            "in ensemble e, ensemble tensor I is an input of the ensemble, so it cannot be mapped from output OUT in "
            "model a"
        ),
    ),
]


@pytest.mark.parametrize(("config", "members", "text"), REFUSED, ids=[text[:60] for _, _, text in REFUSED])
def test_what_does_not_go_together_is_refused(config: ModelConfig, members: list[ModelConfig], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        EnsemblePlan(config, members)
    assert str(caught.value) == text


ACCEPTED: dict[str, tuple[ModelConfig, list[ModelConfig], bool]] = {
    "a member without a batch dimension is not asked about batch sizes": (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], max_batch_size=16),
        [member("a")],
        False,
    ),
    "an optional input may stay unmapped": (
        ensemble([step("a", {"A": "I"}, {"OUT": "O"})]),
        [member("a", ("A", "B?"))],
        False,
    ),
    "a variable dimension fits any": (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], ("I FP32 5",)),
        [member("a")],
        False,
    ),
    "a batching member fits with its batch dimension": (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], ("I FP32 5,2",), ("O FP32 -1,2",)),
        [member("a", ("IN FP32 2",), ("OUT FP32 2",), max_batch_size=8)],
        False,
    ),
    "a batching member fits without its batch dimension": (
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], ("I FP32 2",), ("O FP32 2",)),
        [member("a", ("IN FP32 2",), ("OUT FP32 2",), max_batch_size=8)],
        False,
    ),
    "a decoupled member makes the ensemble decoupled": (
        ensemble([step("d", {"IN": "I"}, {"OUT": "t"}), step("a", {"IN": "t"}, {"OUT": "O"})]),
        [decoupled(), member("a")],
        True,
    ),
    "answers of one decoupled member may meet again": (
        ensemble(
            [
                step("d", {"IN": "I"}, {"X": "x", "Y": "y"}),
                step("a", {"IN": "x"}, {"OUT": "u"}),
                step("j", {"A": "u", "B": "y"}, {"OUT": "O"}),
            ]
        ),
        [member("d", outputs=("X", "Y"), decoupled=True), member("a"), member("j", TWO)],
        True,
    ),
}


@pytest.mark.parametrize(("config", "members", "is_decoupled"), ACCEPTED.values(), ids=ACCEPTED)
def test_what_goes_together_is_accepted(config: ModelConfig, members: list[ModelConfig], is_decoupled: bool) -> None:
    assert EnsemblePlan(config, members).decoupled is is_decoupled
