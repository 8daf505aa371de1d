"""docs/migrating-from-torchserve.md: its handler and its model agree, and its commands do what they say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from documents import ROOT, Reader, blocks
from serve_process import infer, outputs_of, serve_process, tensor

DOCUMENT = ROOT / "docs" / "migrating-from-torchserve.md"
ROWS = [[5.1, 3.5, 1.4, 0.2], [6.2, 2.9, 4.3, 1.3]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that the document completes, with a network of random weights."""
    version = tmp_path_factory.mktemp("migrated") / "models" / "flower" / "1"
    version.mkdir(parents=True)
    torch.manual_seed(0)
    torch.jit.script(torch.nn.Linear(4, 3)).save(str(version / "network.pt"))
    (version / "labels.txt").write_text("setosa\nversicolor\nvirginica\n")
    with Reader(version.parents[2]) as reader:
        reader.read(DOCUMENT)
    return version.parents[1]


@pytest.fixture(scope="module")
def handled(models: Path) -> list[dict[str, Any]]:
    """What the handler answers, run as TorchServe runs it."""
    names: dict[str, Any] = {}
    exec(blocks(DOCUMENT, "python")[0], names)  # the document's own code
    handler = names["FlowerHandler"]()
    context = SimpleNamespace(system_properties={"model_dir": str(models / "flower" / "1")})
    handler.initialize(context)
    return handler.handle([{"body": {"features": row}} for row in ROWS], context)


def test_the_commands_do_what_the_document_shows_and_the_model_answers_as_the_handler_did(
    models: Path, handled: list[dict[str, Any]]
) -> None:
    with serve_process(models) as server:
        status, answer = infer(
            server.http_port, "flower", tensor("features", "FP32", [each for row in ROWS for each in row], [2, 4])
        )
    assert status == 200
    assert outputs_of(answer) == {
        "label": [each["label"] for each in handled],
        "chance": pytest.approx([each["chance"] for each in handled]),
    }
