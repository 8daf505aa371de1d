"""docs/migrating-from-torchserve.md: its handler and its model agree, and its commands do what they say."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from serve_process import ServeProcess, serve_process

DOCUMENT = Path(__file__).parents[2] / "docs" / "migrating-from-torchserve.md"
ROWS = [[5.1, 3.5, 1.4, 0.2], [6.2, 2.9, 4.3, 1.3]]

pytestmark = pytest.mark.slow


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that the document shows, with a network of random weights."""
    model = tmp_path_factory.mktemp("migrated") / "models" / "flower"
    version = model / "1"
    version.mkdir(parents=True)
    torch.manual_seed(0)
    torch.jit.script(torch.nn.Linear(4, 3)).save(str(version / "network.pt"))
    (version / "labels.txt").write_text("setosa\nversicolor\nvirginica\n")
    (version / "model.py").write_text(blocks("python")[1])
    (model / "config.pbtxt").write_text(blocks("protobuf")[0])
    return model.parent


@pytest.fixture(scope="module")
def handled(models: Path) -> list[dict[str, Any]]:
    """What the handler answers, run as TorchServe runs it."""
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)  # the document's own code
    handler = names["FlowerHandler"]()
    context = SimpleNamespace(system_properties={"model_dir": str(models / "flower" / "1")})
    handler.initialize(context)
    return handler.handle([{"body": {"features": row}} for row in ROWS], context)


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServeProcess]:
    """It is started by the document's own command, on free ports."""
    words = blocks("sh")[0].replace("\\\n", "").split()
    assert words[:4] == ["trireme", "serve", "--model-repository", models.name]
    with serve_process(models, *words[4:]) as running:
        yield running


def answers(server: ServeProcess, commands: str) -> list[str]:
    """What each line that begins with `curl` prints."""
    here = commands.replace("localhost:8000", f"127.0.0.1:{server.http_port}")
    each = [f"curl {command}" for command in re.split(r"^curl ", here, flags=re.MULTILINE)[1:]]
    done = [subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True) for line in each]
    return [one.stdout for one in done]


def test_the_model_answers_as_the_handler_did(server: ServeProcess, handled: list[dict[str, Any]]) -> None:
    (lone,) = (json.loads(told) for told in answers(server, blocks("sh")[1]))
    assert {"label": lone["label"], "chance": pytest.approx(lone["chance"])} == handled[0]
    assert lone.keys() - handled[0].keys() == {"model_name", "model_version"}
    (both,) = (json.loads(told) for told in answers(server, blocks("sh")[2]))
    label, chance = (each["data"] for each in both["outputs"])
    assert label == [each["label"] for each in handled]
    assert chance == pytest.approx([each["chance"] for each in handled])


def test_management_calls(server: ServeProcess) -> None:
    loaded, index, stats, unloaded = answers(server, blocks("sh")[3])
    assert (loaded, unloaded) == ("", "")
    assert [each["state"] for each in json.loads(index)] == ["READY"]
    assert json.loads(stats)["model_stats"][0]["name"] == "flower"
    assert server.ask("GET", "/v2/models/flower/ready")[0] == 400
