"""A fleet on a Ray cluster of this machine, in the environment that `make test-slow` makes for it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http
from cluster_page import BIN, ClusterReader, RayHead
from documents import ROOT
from page_models import copy_models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BIN / "ray").exists(), reason="needs the environment of `make demo-cluster`"),
]


def test_the_demonstration_finds_nothing_wrong() -> None:
    """Scaling, an upgrade, sequences, kill -9, a lost node, and 20 models over replicas with room for 8."""
    command = [BIN / "python", "-B", ROOT / "benchmarks" / "cluster_demo.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything is as it is to be" in done.stdout


@pytest.fixture
def address() -> Iterator[str]:
    """Of a Ray cluster."""
    with RayHead() as head:
        yield head.address


def test_the_page(tmp_path: Path) -> None:
    """docs/cluster.md, beside the models that it takes for granted."""
    copy_models(tmp_path / "models", "digits", "simple")
    with ClusterReader(tmp_path) as reader:
        reader.read(ROOT / "docs" / "cluster.md")


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "trireme"), "cluster", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_command(address: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    fleet = (
        '[cluster]\nname = "shop"\nmodel-repository = ["{}"]\nflags = {}\n[gateways]\nhttp-port = 0\ngrpc-port = 0\n'
    )
    path.write_text(fleet.format(ROOT / "model_repository", []))
    up = run("up", path, f"--address={address}")
    assert up.returncode == 0, up.stdout + up.stderr
    found = re.search(r"ask GRPCInferenceService at \S+, HTTPService at (\S+)\n", up.stdout)
    assert found is not None, up.stdout
    with tritonclient.http.InferenceServerClient(found[1]) as client:
        assert client.is_model_ready("simple")
    status = json.loads(run("status", "shop", f"--address={address}").stdout)
    assert {name: each["status"] for name, each in status["applications"].items()} == {
        "shop": "RUNNING",
        "shop-gateways": "RUNNING",
    }
    (member,) = status["members"].values()
    assert "simple" in member["ready"]

    path.write_text(fleet.format(ROOT / "model_repository", '["--no-such-flag"]'))
    faulty = run("up", path, f"--address={address}")
    assert faulty.returncode == 1
    assert "unrecognized option '--no-such-flag'" in faulty.stderr
    with tritonclient.http.InferenceServerClient(found[1]) as client:
        assert client.is_model_ready("simple"), "the replicas of before go on"

    assert run("down", "shop", f"--address={address}").returncode == 0
    for action in ("status", "down"):
        gone = run(action, "shop", f"--address={address}")
        assert (gone.returncode, gone.stderr) == (1, "trireme cluster: there is no fleet 'shop' on this cluster\n")


def test_without_a_cluster_it_says_how_to_start_one() -> None:
    done = run("status", "--address=127.0.0.1:9")
    assert done.returncode == 1
    assert "there is no Ray cluster at '127.0.0.1:9'" in done.stderr
    assert "ray start --head" in done.stderr
