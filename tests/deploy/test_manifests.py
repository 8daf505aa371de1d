"""What is in deploy/ says what the server understands: flags, ports, times, folders."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import blocks

from trireme.api.cli.command import ServeCommand, build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kustomize" / "base"
KSERVE = DEPLOY / "kserve"
UNIT = DEPLOY / "systemd" / "trireme.service"
CHART = DEPLOY / "helm" / "trireme"


def command(words: list[str]) -> ServeCommand:
    """What a container's arguments ask for; there is no warning about any of them, but that the server
    is open to the network."""
    assert words[0] == "tritonserver"
    made = build_command(parse(words[1:], FLAGS), {})
    assert [line for line in made.warnings if not line.startswith("clients that reach")] == []
    return made


def pod() -> dict[str, Any]:
    return yaml.safe_load((BASE / "deployment.yaml").read_text())["spec"]["template"]["spec"]


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return found


def unit(name: str) -> str:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)[-1]


def seconds(words: list[str]) -> int:
    """How long a stop may take."""
    given = dict(word.removeprefix("--").split("=") for word in words if word.startswith("--") and "=" in word)
    return int(given["drain-secs"]) + int(given.get("exit-timeout-secs", "30"))


def test_the_manifests_of_the_documentation() -> None:
    """They name what is in deploy/, and the patch adds a flag that there is."""
    overlay, services = blocks(ROOT / "docs" / "kubernetes.md", "yaml")
    shown = yaml.safe_load(overlay)
    assert [(DEPLOY / Path(each).relative_to("../../trireme/deploy")).is_dir() for each in shown["resources"]] == [True]
    assert [each["name"] for each in shown["images"]] == [container()["image"].partition(":")[0]]
    (patch,) = yaml.safe_load(shown["patches"][0]["patch"])
    assert patch["path"] == "/spec/template/spec/containers/0/args/-"
    command([*container()["args"], patch["value"]])
    service, trained = yaml.safe_load_all(services)
    runtime = yaml.safe_load((KSERVE / "clusterservingruntime-multimodel.yaml").read_text())
    assert service["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]
    assert trained["spec"]["inferenceService"] == service["metadata"]["name"]


def test_the_base_asks_for_what_there_is() -> None:
    made = command(container()["args"])
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert made.http is not None
    assert made.grpc is not None
    assert made.metrics is not None
    for name, service in (("http", made.http.service), ("grpc", made.grpc.service), ("metrics", made.metrics.service)):
        assert service.bind == (f"0.0.0.0:{ports[name]}",)
    assert {
        path for mount in container()["volumeMounts"] if mount["name"] == "models" for path in [mount["mountPath"]]
    } == {str(path) for path in made.server.model_repository}


@pytest.mark.parametrize("name", ["clusterservingruntime", "clusterservingruntime-multimodel"])
def test_kserve_gets_its_ports(name: str) -> None:
    spec = yaml.safe_load((KSERVE / f"{name}.yaml").read_text())["spec"]
    runtime = spec["containers"][0]
    made = command(runtime["args"])
    assert made.http is not None
    assert made.grpc is not None
    assert (made.http.service.bind, made.grpc.service.bind) == (("0.0.0.0:8080",), ("0.0.0.0:9000",))
    assert made.server.model_repository == (Path("/mnt/models"),)
    assert runtime["args"][:6] == [
        *("tritonserver", "--model-store=/mnt/models", "--grpc-port=9000", "--http-port=8080"),
        *("--allow-grpc=true", "--allow-http=true"),
    ], "as KServe starts Triton"
    assert made.server.model_control_mode.takes_orders is spec.get("multiModel", False)


def test_the_unit_asks_for_what_there_is() -> None:
    words = shlex.split(unit("ExecStart"))
    assert words[:2] == ["/opt/trireme/bin/trireme", "serve"]
    assert words.pop() == "$TRIREME_FLAGS"
    flags = (DEPLOY / "systemd" / "trireme.env").read_text().splitlines()[-1].partition("=")[2]
    command(["tritonserver", *words[2:], *shlex.split(flags)])


def test_a_stop_is_given_the_time_that_it_may_take() -> None:
    assert pod()["terminationGracePeriodSeconds"] > seconds(container()["args"])
    assert int(unit("TimeoutStopSec")) > seconds(shlex.split(unit("ExecStart")))


def test_the_chart_asks_for_what_there_is() -> None:
    """Its templates cannot be parsed without helm; `make check-deploy` renders them."""
    template = (CHART / "templates" / "deployment.yaml").read_text()
    flags = re.findall(r"^\s+- --([a-z-]+)=", template, re.MULTILINE)
    assert flags == ["model-repository", "drain-secs", "exit-timeout-secs"]
    assert set(flags) <= FLAGS.keys()
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[name]["httpGet"]["path"] in template
    for path in re.findall(r"Files\.Get \"([^\"]+)\"", (CHART / "templates" / "monitoring.yaml").read_text()):
        assert (CHART / path).is_file()


def test_every_value_of_the_chart_is_used() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in values.items():
        members = value if isinstance(value, dict) and name not in ("resources", "nodeSelector", "affinity") else {}
        for each in [f"{name}.{member}" for member in members] or [name]:
            assert re.search(rf"\.Values\.{re.escape(each)}\b", templates), f"{each} has no effect"
    for used in re.findall(r"\.Values\.([A-Za-z.]+)", templates):
        found: Any = values
        for part in used.split("."):
            assert part in found, f"{used} has no default"
            found = found[part]


def test_the_base_is_complete() -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in BASE.iterdir() if path.name != "kustomization.yaml")
    for name in listed:
        document = yaml.safe_load((BASE / name).read_text())
        assert document["kind"].lower() == name.removesuffix(".yaml")


@pytest.mark.parametrize("of", ["chart", "base"])
def test_a_rolling_update_takes_no_server_away_before_the_next_is_there(of: str) -> None:
    path = CHART / "templates" / "deployment.yaml" if of == "chart" else BASE / "deployment.yaml"
    assert "maxUnavailable: 0" in path.read_text()


def test_the_image_has_all_packages_and_its_own_user() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = set(project["tool"]["setuptools"]["package-dir"].values())
    copied = {words[1] for line in lines if (words := line.split()) and words[0] == "COPY"}
    assert folders <= copied
    allowed = {line[1:] for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert {name for name in copied if not name.startswith("-")} - {"deploy/container/"} <= allowed
    assert sum(line.startswith("FROM ") for line in lines) == 2
    assert "USER 1000:1000" in lines
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    extras = re.findall(r"^ARG EXTRAS=(.*)$", "\n".join(lines), re.MULTILINE)[0].split(",")
    assert set(extras) <= project["project"]["optional-dependencies"].keys()
